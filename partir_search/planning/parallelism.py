"""Tactics over several axes: rings, context parallelism, 2D and 3D tensor parallelism."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Literal

from partir_search.ir.mesh import DIAGONAL, MeshShape
from partir_search.ir.skewed_schedule import OUTPUT_STATIONARY
from partir_search.messages import validators
from partir_search.propagation.actions import (
    Action,
    KeepGathered,
    Mode,
    RingSchedule,
    WindowedEinsum,
)
from partir_search.propagation.actions.modes import ring_form
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.moves import (
    AlternateParallel,
    DataParallel,
    OutputParallel,
    RingParallel,
    SequenceParallel,
    Strategy,
    TileContext,
    TileStacks,
    Zero,
)
from partir_search.strategies.targets import StrategyTargets


class Parallelism(abc.ABC):
    """A tactic of strategies and of modes of its axes."""

    @property
    @abc.abstractmethod
    def axis_names(self) -> tuple[str, ...]:
        """Axes of the mesh."""

    @property
    def diagonals(self) -> tuple[str, ...]:
        """Diagonals that the tactic tiles on."""
        return ()

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        """Strategies to apply, in order."""
        return ()

    def modes(self) -> Sequence[Mode]:
        """Modes of axes to apply after the strategies."""
        return ()

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        """Applies the tactic to `state`; returns the effective actions.

        Raises:
          IllegalAction: the state or the program does not admit the tactic.
        """
        mesh, values = state.mesh, graph.module.values
        decisions = [d for s in self.strategies(mesh) for d in s.apply(targets, state)]
        modes = self.modes()
        for mode in modes:
            mode.apply(state)
        named = ((values[d.values(graph)[0]].name, d) for d in decisions)
        return [*(d.action(name, mesh.label(d.axes)) for name, d in named), *modes]


@dataclasses.dataclass(frozen=True)
class SpatialTemporal(Parallelism):
    """PrimePar's P_{n x n} on two axes of equal size: partitioning in space and time.

    The batch is tiled on the first axis, features on the second, and hidden features on the
    diagonal of both. Matmuls with parameters rotate blocks around rings during the computation.
    Nothing is replicated. The batch, features and hidden features (and heads) must divide by n.

    Attributes:
      axes: two axes of the mesh.
      form: ring schedule. "output_stationary" rotates the operands and keeps the result
        stationary; "min_traffic" keeps the largest of operands and result stationary; "primepar" is
        PrimePar's schedule: the backward matmul starts from the matrix as left by the forward
        matmul, and the gradient's matmul from both.

    Source: PrimePar (ASPLOS 2024, doi 10.1145/3620666.3651357). In the variant "output_stationary",
    cotangents have the layouts of their primals.
    """

    axes: tuple[str, str]
    form: Literal["output_stationary", "min_traffic", "primepar"] = "output_stationary"

    def __post_init__(self) -> None:
        _check_axes(self, "('data', 'model')", 2)
        object.__setattr__(self, "form", ring_form(self.form))

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.axes

    @property
    def diagonal(self) -> str:
        return DIAGONAL.join(self.axes)

    @property
    def diagonals(self) -> tuple[str, ...]:
        return (self.diagonal,)

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        r, c, d = mesh.triple(mesh.index(self.diagonal))
        return DataParallel((r,)), RingParallel((c, d))

    def modes(self) -> Sequence[Mode]:
        return () if self.form == OUTPUT_STATIONARY else (RingSchedule(self.diagonal, self.form),)


@dataclasses.dataclass(frozen=True)
class CollectiveMatmul(Parallelism):
    """Overlaps gathers and scatters with the matmuls that consume or produce the data.

    A matmul with a gathered operand computes on one block at a time while blocks rotate around the
    axis; a matmul with a scattered result computes its blocks one at a time and passes on the
    partial sums. Operands shared by several matmuls are gathered as before.

    Attributes:
      axes: axes of the mesh.

    Source: Wang et al., ASPLOS 2023 (doi 10.1145/3567955.3567959).
    """

    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_axes(self, "('model',)")

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.axes

    def modes(self) -> Sequence[Mode]:
        return tuple(map(WindowedEinsum, self.axes))


@dataclasses.dataclass(frozen=True)
class ContextParallel(Parallelism):
    """Tiles the sequence dim of attention, for long contexts.

    Attention is recognized in plain code (matmul, masks, softmax, matmul) and planned as one op
    forward and one backward; the backward op recomputes the scores. Queries stay in place; keys,
    values and their gradients rotate around the axis block by block during the computation.

    Attributes:
      axis: an axis of the mesh.
      ring: False gathers keys and values instead (as in Llama 3.1).
      zigzag: True gives each device an early and a late chunk of positions, to balance causal
        attention: half the work, for two permutes of half a block per operand and result.

    Source: Liu et al., Ring Attention (arXiv 2310.01889); Llama 3.1 (arXiv 2407.21783, 3.3.2).
    """

    axis: str
    ring: bool = True
    zigzag: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.axis, tuple | list):
            raise TypeError(f"ContextParallel: axis is the name of one axis, not {self.axis!r}")
        validators.text("ContextParallel: axis", self.axis, "'context'")
        validators.flag("ContextParallel: ring", self.ring)
        validators.flag("ContextParallel: zigzag", self.zigzag)

    @property
    def axis_names(self) -> tuple[str, ...]:
        return (self.axis,)

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        return (TileContext(mesh.axes(self.axis)),)

    def modes(self) -> Sequence[Mode]:
        return (WindowedEinsum(self.axis, self.zigzag),) if self.ring else ()

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        _check_sequences(self, graph, state, targets)
        return super().actions(graph, state, targets)


@dataclasses.dataclass(frozen=True)
class TensorParallel3D(Parallelism):
    """Three-dimensional tensor parallelism on mesh axes i, j, l, without replication.

    The batch is tiled on i. Matrices alternate between (inputs on l, outputs on j) and the reverse,
    and are stored tiled on i as well. Operands are gathered along the third axis and results
    scattered over the same axis: 3 gathers and 3 scatters per linear layer, and no reshard between
    layers. Activations are stored tiled on all axes: features on one, positions on the remaining
    one.

    Attributes:
      axes: i, j, l.
      hold: True keeps gathered operands for the backward pass. False gathers again: two more
        gathers per linear layer, and a third of the activation memory.

    Source: Bian et al., arXiv 2105.14450 (Colossal-AI's 3D).
    """

    axes: tuple[str, str, str]
    hold: bool = True

    def __post_init__(self) -> None:
        _check_axes(self, "('i', 'j', 'l')", 3)
        validators.flag("TensorParallel3D: hold", self.hold)

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.axes

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        rows, outputs, inputs = map(mesh.axes, self.axes)
        scatters = SequenceParallel(inputs), SequenceParallel(outputs)
        return DataParallel(rows), AlternateParallel(inputs, outputs), *scatters, Zero(rows, 3)

    def modes(self) -> Sequence[Mode]:
        return tuple(map(KeepGathered, self.axes)) if self.hold else ()


@dataclasses.dataclass(frozen=True)
class Summa(Parallelism):
    """Two-dimensional tensor parallelism on mesh axes r, c, without replication.

    Rows of activations are tiled on r, features on c; matrices are tiled by outputs on c, and
    stored tiled on r as well. Each matmul gathers its activations along c and its matrix along r,
    and needs no reduction; gradients are scattered over the same axes.

    Attributes:
      axes: r, c.
      hold: True keeps gathered operands for the backward pass; False gathers again.

    Source: van de Geijn and Watts, SUMMA (1997); Xu and You, arXiv 2104.05343 (Colossal-AI's 2D).
    """

    axes: tuple[str, str]
    hold: bool = True

    def __post_init__(self) -> None:
        _check_axes(self, "('data', 'model')", 2)
        validators.flag("Summa: hold", self.hold)

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.axes

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        rows, features = map(mesh.axes, self.axes)
        return DataParallel(rows), OutputParallel(features), Zero(rows, 3)

    def modes(self) -> Sequence[Mode]:
        return tuple(map(KeepGathered, self.axes)) if self.hold else ()


@dataclasses.dataclass(frozen=True)
class StackParallel(Parallelism):
    """Gives each device whole matrices of a matrix optimizer (Muon, Shampoo, SOAP).

    Equal programs on matrices of one shape are computed once on a stack of the matrices (see
    `auto_partition(stack=)`), and every stack is tiled along its leading dim, on those of the axes
    that divide the stack. Precedes tactics that tile the parameters: their tilings would propagate
    into the stacks.

    Attributes:
      axes: axes of the mesh.
    """

    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_axes(self, "('data', 'model')")

    @property
    def axis_names(self) -> tuple[str, ...]:
        return self.axes

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        return (TileStacks(tuple(a for name in self.axes for a in mesh.axes(name))),)

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        if not targets.stacks:
            raise IllegalAction(
                "StackParallel: the program has no equal programs on matrices of one shape, or"
                " stack=False forbids to stack them"
            )
        return super().actions(graph, state, targets)


def _check_axes(
    tactic: SpatialTemporal | CollectiveMatmul | TensorParallel3D | Summa | StackParallel,
    example: str,
    count: int = 0,
) -> None:
    """Checks a tactic's axes, and stores the names as a tuple.

    Args:
      tactic: the tactic.
      example: valid axes, for messages.
      count: required number of axes; 0 for any positive number.

    Raises:
      TypeError: the axes are no sequence of names.
      ValueError: the number is wrong, or an axis is repeated.
    """
    what = f"{type(tactic).__name__}: axes"
    axes = validators.names(what, tactic.axes, example)
    if len(axes) != count if count else not axes:
        raise ValueError(f"{what} are {count or 'one or more'} axes, {example}, not {axes}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"{what} are different axes, {example}, not {axes}")
    object.__setattr__(tactic, "axes", axes)


PARALLELISM = (
    *(SpatialTemporal, CollectiveMatmul, ContextParallel, TensorParallel3D, Summa),
    StackParallel,
)


def _check_sequences(
    tactic: ContextParallel, graph: Graph, state: State, targets: StrategyTargets
) -> None:
    """Checks that the axis divides the sequences of attention.

    Raises:
      IllegalAction: a sequence does not divide, or zigzag is not applicable.
    """
    mesh, axes = state.mesh, state.mesh.axes(tactic.axis)
    for cls, dim in targets.contexts:
        now = state.tiles[axes[0]][cls]
        shape = graph.shapes[cls]
        if now != dim and shape[dim] % mesh.size(axes):
            value = graph.module.values[graph.members[cls][0]]
            raise IllegalAction(
                f"attention goes over a sequence of {shape[dim]} (dim {dim} of %{value.name}),"
                f" which does not divide by axis {tactic.axis!r} of size {mesh.size(axes)}"
            )
    if tactic.zigzag:
        _check_zigzag(tactic, graph, mesh.size(axes))


def _check_zigzag(tactic: ContextParallel, graph: Graph, size: int) -> None:
    rules = [(op, graph.rules[op.id]) for op in graph.module.ops if not op.regions]
    attentions = [(op, r.blockwise, r.sizes) for op, r in rules if r.blockwise]
    if not any(how.causal for _, how, _ in attentions):
        raise IllegalAction(
            f"attention at {attentions[0][0].source} looks at later positions (or no mask was found"
            " that keeps it from them): zigzag=True is for causal attention, all blocks are needed"
        )
    for op, how, sizes in attentions:
        if how.causal and sizes[how.factor] % (2 * size):
            raise IllegalAction(
                f"attention at {op.source} goes over a sequence of {sizes[how.factor]}, which"
                f" zigzag=True cuts into {2 * size} chunks on axis {tactic.axis!r} of size {size}:"
                f" use a multiple of {2 * size}, or zigzag=False"
            )
