"""Tactics of several axes that are played as one: rings, sequences, two and three dims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Union

from partir_search.ir.mesh import DIAGONAL, MeshShape
from partir_search.ir.skewed_schedule import FORMS, RESULT
from partir_search.messages import validators
from partir_search.propagation.actions import (
    Action,
    KeepGathered,
    RingSchedule,
    Tile,
    WindowedEinsum,
)
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.apply import StrategyApplier
from partir_search.strategies.moves import (
    AlternateParallel,
    DataParallel,
    Decision,
    OutputParallel,
    RingParallel,
    SequenceParallel,
    StrategyMove,
    TileClass,
    Zero,
)
from partir_search.strategies.moves import ContextParallel as ContextMove


@dataclasses.dataclass(frozen=True)
class SpatialTemporal:
    """PrimePar's P_{n x n} on two axes of equal size: partitioning in space and time.

    The batch is tiled on the first axis, features on the second, hidden features on their
    diagonal; products with parameters pass blocks around in rings while they work. Nothing is
    held twice. Rows of the batch, features and hidden features must divide by n (heads too).

    Attributes:
      axes: two axes of the mesh.
      form: what passes. "result": operands, the result stays; "least": what is largest stays, be it
        an operand; "paper": as PrimePar has it, where the backward product begins with the matrix
        where the forward one has left it, and the gradient's product with both.

    Source: PrimePar (ASPLOS 2024, doi 10.1145/3620666.3651357); "result" is a form of it in which
    cotangents lie as what they belong to does.
    """

    axes: tuple[str, str]
    form: Literal["result", "least", "paper"] = "result"

    def __post_init__(self) -> None:
        _check_axes(self, "('data', 'model')", 2)
        if not isinstance(self.form, str) or self.form not in FORMS:
            raise ValueError(f"form is one of {', '.join(FORMS)}, not {self.form!r}")

    @property
    def diagonal(self) -> str:
        return DIAGONAL.join(self.axes)


@dataclasses.dataclass(frozen=True)
class CollectiveMatmul:
    """Hides gathers and scatters behind the products that they are for, on some axes.

    A product that needs a gathered operand works on one block after the other as they pass around
    the axis; one whose result is scattered makes its blocks one after the other and passes the
    sums on. Operands that several products share are gathered as before.

    Attributes:
      axes: of the mesh.

    Source: Wang et al., ASPLOS 2023 (doi 10.1145/3567955.3567959).
    """

    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_axes(self, "('model',)")


@dataclasses.dataclass(frozen=True)
class ContextParallel:
    """Tiles the sequences that attention goes over: long contexts on several devices.

    Attention is found in ordinary code (a product, masks, a softmax, a product) and planned as one
    op forward and one backward; scores are not kept from one to the other but made again. Queries
    stay on their devices; keys and values pass around the axis block by block while attention works
    on them, and their gradients pass with them.

    Attributes:
      axis: of the mesh.
      ring: False gathers keys and values instead (as Llama 3.1 does).
      zigzag: whether, where no position looks at later ones, each device works on a chunk of early
        and one of late positions, so that all have equal work: half of it, for two permutes of half
        a block for each operand and result.

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


@dataclasses.dataclass(frozen=True)
class TensorParallel3D:
    """Three-dimensional tensor parallelism on mesh axes i, j, l: nothing is held twice.

    The batch is tiled on i. Matrices with inputs on l and outputs on j, and the other way round,
    alternate; they rest tiled on i too. What is multiplied is gathered along the third axis,
    results are scattered over it: of each linear 3 gathers and 3 scatters, and no redistribution
    between linears. Activations at rest are tiled on all axes: features on one, positions on the
    other.

    Attributes:
      axes: i, j, l.
      hold: whether gathered operands are held for the backward pass. False gathers them again: two
        gathers more for each linear, and a third of the memory for activations.

    Source: Bian et al., arXiv 2105.14450 (Colossal-AI's 3D).
    """

    axes: tuple[str, str, str]
    hold: bool = True

    def __post_init__(self) -> None:
        _check_axes(self, "('i', 'j', 'l')", 3)
        validators.flag("TensorParallel3D: hold", self.hold)


@dataclasses.dataclass(frozen=True)
class Summa:
    """Two-dimensional tensor parallelism on mesh axes r, c: nothing is held twice.

    Rows of activations are tiled on r, features on c; matrices by outputs on c, and at rest on r
    too. Each product gathers its activations along c and its matrix along r, and leaves no sum;
    gradients are scattered over the same axes.

    Attributes:
      axes: r, c.
      hold: whether gathered operands are held for the backward pass; False gathers them again.

    Source: van de Geijn and Watts, SUMMA (1997); Xu and You, arXiv 2104.05343 (Colossal-AI's 2D).
    """

    axes: tuple[str, str]
    hold: bool = True

    def __post_init__(self) -> None:
        _check_axes(self, "('data', 'model')", 2)
        validators.flag("Summa: hold", self.hold)


def _check_axes(
    tactic: SpatialTemporal | CollectiveMatmul | TensorParallel3D | Summa,
    example: str,
    count: int = 0,
) -> None:
    """Errors for axes that are no tuple of names, `count` of them or at least one, all unlike."""
    what = f"{type(tactic).__name__}: axes"
    axes = validators.names(what, tactic.axes, example)
    if len(axes) != count if count else not axes:
        raise ValueError(f"{what} are {count or 'one or more'} axes, {example}, not {axes}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"{what} are different axes, {example}, not {axes}")
    object.__setattr__(tactic, "axes", axes)


Parallelism = Union[SpatialTemporal, CollectiveMatmul, ContextParallel, TensorParallel3D, Summa]
PARALLELISM = (SpatialTemporal, CollectiveMatmul, ContextParallel, TensorParallel3D, Summa)


def parallel_actions(
    tactic: Parallelism, graph: Graph, state: State, applier: StrategyApplier
) -> list[Action]:
    """Plays a tactic on `state`; returns the actions that had an effect."""
    if isinstance(tactic, ContextParallel):
        return context_actions(tactic, graph, state, applier)
    if isinstance(tactic, CollectiveMatmul):
        return _axis_actions([WindowedEinsum(a) for a in tactic.axes], graph, state)
    mesh, moves = state.mesh, list[StrategyMove]()
    if isinstance(tactic, SpatialTemporal):
        r, c, d = mesh.triple(mesh.index(tactic.diagonal))
        moves = [DataParallel((r,)), RingParallel((c, d))]
    elif isinstance(tactic, Summa):
        rows, features = map(mesh.axes, tactic.axes)
        moves = [DataParallel(rows), OutputParallel(features), Zero(rows, 3)]
    else:
        rows, one, other = map(mesh.axes, tactic.axes)
        scatters = SequenceParallel(other), SequenceParallel(one)
        moves = [DataParallel(rows), AlternateParallel(other, one), *scatters, Zero(rows, 3)]
    decisions = [d for move in moves for d in applier.apply(move, state)]
    actions = _named(decisions, graph, mesh)
    if isinstance(tactic, SpatialTemporal) and tactic.form != RESULT:
        actions += _axis_actions([RingSchedule(tactic.diagonal, tactic.form)], graph, state)
    if isinstance(tactic, TensorParallel3D | Summa) and tactic.hold:
        actions += _axis_actions([KeepGathered(a) for a in tactic.axes], graph, state)
    return actions


def _axis_actions(actions: Sequence[Action], graph: Graph, state: State) -> list[Action]:
    for action in actions:
        action.apply(state)
    return list(actions)


def context_actions(
    tactic: ContextParallel, graph: Graph, state: State, applier: StrategyApplier
) -> list[Action]:
    """Plays context parallelism on `state`; returns the actions that had an effect."""
    mesh, axes = state.mesh, state.mesh.axes(tactic.axis)
    for cls, dim in applier.contexts:
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
    actions = _named(applier.apply(ContextMove(axes), state), graph, mesh)
    if tactic.ring:
        actions += _axis_actions([WindowedEinsum(tactic.axis, tactic.zigzag)], graph, state)
    return actions


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


def _named(decisions: Sequence[Decision], graph: Graph, mesh: MeshShape) -> list[Action]:
    values = graph.module.values
    return [
        Tile(values[graph.members[x.cls][0]].name, x.dim, mesh.label(x.axes))
        for x in decisions
        if isinstance(x, TileClass)
    ]
