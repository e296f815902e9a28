"""Moves of the known strategies: data, model, expert, edge, sequence parallelism, ZeRO ...

A move becomes tile and replicate decisions that depend on the state (undecided dims, partial sums):
one ZeRO move serves any model.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Union

from partir_search.ir.rule import NONE, OpRule
from partir_search.propagation.state import State
from partir_search.strategies.decisions import Axes, Decision, ReplicateClass, TileClass
from partir_search.strategies.targets import StrategyTargets, Weight


class Strategy(abc.ABC):
    """A move of several decisions that depend on the state.

    Attributes:
      axes: mesh axes, except of moves on two sets of axes.
    """

    __slots__ = ()

    @abc.abstractmethod
    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        """Applies the move; returns the decisions with an effect."""

    def is_legal(self, state: State) -> bool:
        """True: decisions that a state does not admit are skipped."""
        return True

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        """Text of the move, given names of classes and labels of axes; without defaults."""
        given = dataclasses.fields(self)  # type: ignore[arg-type]
        fields = {f.name: x for f in given if (x := getattr(self, f.name)) != f.default}
        axes = label(fields.pop("axes"))
        return " ".join([type(self).__name__, axes, *(f"{k}={x}" for k, x in fields.items())])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileAlike(Strategy):
    """Tile one dim of several classes, skipping illegal tiles: parameters of one shape, in layers
    without a fold.
    """

    classes: tuple[int, ...]
    dim: int
    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        return _played(state, [TileClass(c, self.dim, self.axes) for c in self.classes])

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        first = TileClass(self.classes[0], self.dim, self.axes).describe(name_of, label)
        return f"{first} and {len(self.classes) - 1} alike"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class DataParallel(Strategy):
    """Tile the leading dim of every data argument, and the next dim of data read by a loop."""

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        looped = _played(state, [TileClass(c, d, self.axes) for c, d in targets.loop_batches])
        # Longest first: edges of a graph network then look up nodes, and no node is scattered.
        longest = sorted(targets.roles.data, key=lambda c: -targets.graph.shapes[c][0])
        data = [(c, *targets.padded.get(c, ())) for c in longest]
        leading = [TileClass(c, 0, self.axes) for forms in data for c in forms]
        return [*looped, *_played(state, leading)]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class EdgeParallel(Strategy):
    """Tile the leading dim of the longest data arguments only: the edges of a graph, with its nodes
    replicated (PartIR's ES on graph networks).
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        return _played(state, [TileClass(c, 0, self.axes) for c in targets.edges])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ExpertParallel(Strategy):
    """Tile the experts of a mixture (GShard, arXiv 2006.16668): the dim shared by a parameter, the
    second operand of its contraction and the result.

    Applied before data parallelism on equal axes, with barriers on inputs and outputs of the
    experts: data parallelism tiles these, and tokens reach the experts by all_to_all.
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        ends = targets.expert_barriers(self.axes, state)
        return _played(state, [TileClass(c, d, self.axes, ends) for c, d in targets.experts])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ModelParallel(Strategy):
    """Megatron (Shoeybi et al. 2019): tile the outputs of each parameter contracted with an
    activation not tiled on the axes; propagation tiles the inputs of the next parameter.

    Attributes:
      head: include the last parameter, the output head.
    """

    axes: Axes
    head: bool

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        graph, done = targets.graph, list[Decision]()
        weights = targets.weights
        if not self.head:  # without the last weight, in all its uses (a tied embedding)
            weights = [weight for weight in weights[:-1] if weight.cls != weights[-1].cls]
        for weight in weights:
            node = graph.node_of[weight.op]
            if node < 0 or any(state.loops[a][node] != NONE for a in self.axes):
                continue
            rule = graph.rules[weight.op]
            done += _output_tile(weight, rule, self.axes, state)
        return done


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SequenceParallel(Strategy):
    """Tile activations between blocks: results of sums over the axes (Korthikanti et al. 2022).

    A dim of sequences tiled by context parallelism is tiled further.
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        graph, done = targets.graph, list[Decision]()
        contexts = targets.context_axes(state)
        others = [row for a, row in enumerate(state.tiles) if a not in contexts]
        for op in graph.module.ops:
            node = graph.node_of[op.id]
            if op.regions or op.backward or node < 0:
                continue
            reducers = graph.rules[op.id].reducers
            looped = [state.loops[a][node] for a in self.axes]
            if not all(f >= 0 and reducers[f] == "sum" for f in looped):
                continue
            cls = graph.class_of[op.results[0].id]
            dims = range(len(graph.shapes[cls]) - 1)
            free = [d for d in dims if all(row[cls] != d for row in others)]
            done += _first_played(state, [TileClass(cls, d, self.axes) for d in free])
        return done


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileStacks(Strategy):
    """Tile stacks of arrays, on as many axes as divide each: a device owns whole matrices.

    Applied before all strategies that tile the arrays: propagation would tile stacks alike.
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        return _played(state, [TileClass(c, 0, (a,)) for c in targets.stacks for a in self.axes])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileStages(Strategy):
    """Tile the stages of a pipeline: each group of devices holds the layers of one stage."""

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        return _played(state, [TileClass(c, 0, self.axes) for c in targets.stages])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileContext(Strategy):
    """Tile the sequences of queries and keys in attention; propagation tiles activations.

    Source: Llama 3.1, arXiv 2407.21783, section 3.3.2.
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        return _played(state, [TileClass(c, d, self.axes) for c, d in targets.contexts])


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class AlternateParallel(Strategy):
    """Tile inputs and outputs of each matrix on two sets of axes, swapped from matrix to matrix.

    The tiles of the incoming activation decide; the first matrix has its inputs on `inputs`.
    """

    inputs: Axes
    outputs: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in targets.weights:
            node, rule = targets.graph.node_of[weight.op], targets.graph.rules[weight.op]
            if node < 0:
                continue
            propagated = state.loops[self.outputs[0]][node]
            swapped = propagated >= 0 and rule.reducers[propagated]
            inputs, outputs = self.inputs, self.outputs
            if swapped:
                inputs, outputs = outputs, inputs
            for summed, axes in ((True, inputs), (False, outputs)):
                own = [d for d, f in weight.dims if f >= 0 and bool(rule.reducers[f]) == summed]
                done += _first_played(state, [TileClass(weight.cls, d, axes) for d in own])
        return done


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class OutputParallel(Strategy):
    """Tile the outputs of every matrix, last matrix first; activations are gathered (SUMMA)."""

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in reversed(targets.weights):
            rule = targets.graph.rules[weight.op]
            done += _output_tile(weight, rule, self.axes, state)
        return done


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Zero(Strategy):
    """ZeRO (Rajbhandari et al. 2020) on matrices.

    Attributes:
      stage: 2 replicates parameters and tiles optimizer state, hence gradients; 3 tiles parameters
        as well.
      once: True keeps sums of gradients over microbatches, and casts of parameters, replicated in
        the loop over microbatches: they are reduced and gathered once a step. Stage 2 becomes 1.
    """

    axes: Axes
    stage: int
    once: bool = False

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        done: list[Decision] = []
        shapes, axes = targets.graph.shapes, self.axes
        matrices = [c for c in targets.roles.parameters if len(shapes[c]) >= 2]
        if self.stage < 3:
            for cls in matrices:
                replicate = ReplicateClass(cls, axes)
                if replicate.decide(state):
                    done.append(replicate)
        for cls in (*targets.totals, *targets.held) if self.once else ():
            replicate = ReplicateClass(cls, axes)
            if replicate.decide(state):
                done.append(replicate)
        for cls in matrices if self.stage >= 3 else targets.roles.optimizer:
            if len(shapes[cls]) >= 2:
                dim = targets.first_divisible_dim(state, cls, axes)
                if dim >= 0:
                    tile = TileClass(cls, dim, axes)
                    if tile.decide(state):
                        done.append(tile)
        return done


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RingParallel(Strategy):
    """PrimePar's P_{n x n} (ASPLOS 2024) in the form without redistribution.

    Matrices are tiled on one of two axes and on their diagonal: every product with one is a ring.
    Inputs and outputs swap the two from matrix to matrix, after the tiles of the incoming
    activation. The second axis is for data parallelism, applied before.

    Attributes:
      axes: the axis of the residual stream's features, and the diagonal.
    """

    axes: Axes

    def apply(self, targets: StrategyTargets, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in targets.weights:
            node, rule = targets.graph.node_of[weight.op], targets.graph.rules[weight.op]
            if node < 0:
                continue
            summed = [d for d, f in weight.dims if f >= 0 and rule.reducers[f]]
            free = [d for d, f in weight.dims if f >= 0 and not rule.reducers[f]]
            for axis, other in (self.axes, self.axes[::-1]):
                if state.loops[axis][node] != NONE:
                    continue
                across = state.loops[other][node]
                first = free if across >= 0 and rule.reducers[across] else summed
                done += _first_played(state, [TileClass(weight.cls, d, (axis,)) for d in first])
        return done


StrategyMove = Union[Decision, Strategy]


def _first_played(state: State, decisions: Sequence[Decision]) -> list[Decision]:
    """Applies the first decision admitted by the state, and returns it; [] if none is."""
    return next(([d] for d in decisions if d.decide(state)), [])


def _played(state: State, decisions: Sequence[Decision]) -> list[Decision]:
    """Applies the legal ones of some decisions, in order, and returns them."""
    return [d for d in decisions if d.decide(state)]


def _output_tile(weight: Weight, rule: OpRule, axes: Axes, state: State) -> list[Decision]:
    """Tiles the first output dim of a weight that the state admits, if any.

    Args:
      rule: of the weight's contraction.
    """
    outputs = [d for d, f in weight.dims if f >= 0 and not rule.reducers[f]]
    return _first_played(state, [TileClass(weight.cls, d, axes) for d in outputs])
