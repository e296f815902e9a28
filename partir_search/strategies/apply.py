"""Application of strategy moves to states of one graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from partir_search.ir.core import Shape, Value
from partir_search.ir.rule import NONE
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.argument_roles import Roles, find_roles
from partir_search.strategies.moves import (
    AlternateParallel,
    Axes,
    ContextParallel,
    DataParallel,
    Decision,
    EdgeParallel,
    ExpertParallel,
    ModelParallel,
    OutputParallel,
    ReplicateClass,
    RingParallel,
    SequenceParallel,
    Strategy,
    StrategyMove,
    TileAlike,
    TileClass,
    Zero,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """Use of a parameter by a forward contraction.

    Attributes:
      op: id of the contraction.
      cls: class of the parameter.
      dims: (dim of the class, factor of the op) for each dim of the operand.
    """

    op: int
    cls: int
    dims: tuple[tuple[int, int], ...]


class StrategyApplier:
    """Applies moves to states of one graph.

    Attributes:
      roles: classes of parameters, optimizer state and data.
    """

    def __init__(self, graph: Graph, roles: Roles | None = None) -> None:
        """Finds the weights of `graph` and the roles of its arguments.

        Args:
          roles: ids of the graph's values by role; default: found by dataflow. For a folded program
            give the roles of the whole program: in a fold with separate copies of a layer the loss
            does not depend on every copy.
        """
        self.graph = graph
        self.roles = (roles or find_roles(graph.module)).of(graph.class_of)
        self._weights = self._find_weights()
        self._unloopable = self._find_unloopable()

    def apply(self, move: StrategyMove, state: State) -> list[Decision]:
        """Applies a move; returns the decisions with an effect."""
        if isinstance(move, TileClass | ReplicateClass):
            return [move] if decide(state, move) else []
        return self._apply_strategy(move, state)

    def _apply_strategy(self, move: Strategy, state: State) -> list[Decision]:
        if isinstance(move, DataParallel):
            # Longest first: edges of a graph network then look up nodes, and no node is scattered.
            longest = sorted(self.roles.data, key=lambda c: -self.graph.shapes[c][0])
            data = [(c, *self.padded.get(c, ())) for c in longest]
            wanted = [TileClass(c, 0, move.axes) for forms in data for c in forms]
        elif isinstance(move, EdgeParallel):
            wanted = [TileClass(c, 0, move.axes) for c in self.edges]
        elif isinstance(move, ExpertParallel):
            ends = self._expert_barriers(move.axes, state)
            wanted = [TileClass(c, d, move.axes, ends) for c, d in self.experts]
        elif isinstance(move, TileAlike):
            wanted = [TileClass(c, move.dim, move.axes) for c in move.classes]
        elif isinstance(move, ModelParallel):
            return self._model_parallel(move, state)
        elif isinstance(move, AlternateParallel):
            return self._alternate_parallel(move, state)
        elif isinstance(move, OutputParallel):
            return self._output_parallel(move.axes, state)
        elif isinstance(move, RingParallel):
            return self._ring_parallel(move, state)
        elif isinstance(move, ContextParallel):
            wanted = [TileClass(c, d, move.axes) for c, d in self.contexts]
        elif isinstance(move, SequenceParallel):
            return self._sequence_parallel(move.axes, state)
        else:
            return self._zero(move, state)
        return [d for d in wanted if decide(state, d)]

    @property
    def edges(self) -> tuple[int, ...]:
        """Classes of the longest data arguments; () if all have one length."""
        length = {c: self.graph.shapes[c][0] for c in self.roles.data}
        longest = max(length.values(), default=0)
        found = tuple(c for c, n in length.items() if n == longest)
        return found if len(found) < len(length) else ()

    @functools.cached_property
    def experts(self) -> tuple[tuple[int, int], ...]:
        """(class, dim of the experts) of parameters with one matrix per expert of a mixture."""
        found = []
        for weight in self._weights:
            rule = self.graph.rules[weight.op]
            for dim, f in weight.dims:
                places = (*rule.operands, *rule.results)
                if f >= 0 and all(f in dims for dims in places):
                    found.append((weight.cls, dim))
        return tuple(dict.fromkeys(found))

    @functools.cached_property
    def contexts(self) -> tuple[tuple[int, int], ...]:
        """(class, dim) of the sequences of queries and keys in attention ops."""
        found = []
        for op in self.graph.module.ops:
            rule = self.graph.rules[op.id] if not op.regions else None
            if rule is None or rule.blockwise is None:
                continue
            factors = (rule.blockwise.along, rule.blockwise.factor)
            for i, v in op.inputs():
                places = [d for d, f in enumerate(rule.operands[i]) if f in factors]
                found += [(self.graph.class_of[v.id], d) for d in places]
        return tuple(dict.fromkeys(found))

    def _expert_barriers(self, axes: Axes, state: State) -> tuple[int, ...]:
        """Classes tiled by expert and by data parallelism, used by an op outside of the experts."""

        def tiled_by(decisions: Sequence[Decision]) -> set[int]:
            start = state.key()
            before = state.tiles[axes[0]][:]
            for decision in decisions:
                decide(state, decision)
            after = state.tiles[axes[0]]
            found = {c for c, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
            state.restore(start)
            return found

        data = tiled_by([TileClass(c, 0, axes) for c in self.roles.data])
        experts = tiled_by([TileClass(c, d, axes) for c, d in self.experts])
        touching = self.graph.touching
        own = {n for c in experts - data for n in touching[c]}
        return tuple(sorted(c for c in experts & data if not own.issuperset(touching[c])))

    def _find_weights(self) -> list[Weight]:
        """Uses of parameters by forward contractions, in program order.

        Transposed and padded parameters count as the parameter, and so do slices of stacked
        parameters in the body of a scan.
        """
        graph = self.graph
        args = [v for v in graph.module.body.args if graph.class_of[v.id] in self.roles.parameters]
        # By value id, for parameters and values derived from one: the class, and its dim per dim.
        origin = {v.id: (graph.class_of[v.id], tuple(range(len(v.type.shape)))) for v in args}
        found = []
        for op in graph.module.ops:
            if op.backward:
                continue
            if op.regions:
                for i, r, j, stacked in graph.rules[op.id].data_flow.inputs:
                    x = op.operands[i]
                    if isinstance(x, Value) and x.id in origin:
                        cls, dims = origin[x.id]
                        origin[op.regions[r].args[j].id] = (cls, dims[stacked:])
                continue
            rule = graph.rules[op.id]
            inputs = [(i, v) for i, v in op.inputs() if v.type.shape]
            if len(inputs) == len(op.results) == 1 and inputs[0][1].id in origin:
                (i, x), result = inputs[0], op.results[0]
                cls, dims = origin[x.id]
                factors, made = rule.operands[i], rule.results[0]
                if rule.elementwise and _longer(result.type.shape, x.type.shape):
                    # Padded: moves tile the padded form instead of the parameter.
                    origin[result.id] = (graph.class_of[result.id], tuple(range(len(made))))
                elif NONE not in factors and sorted(factors) == sorted(made) and not rule.reads:
                    origin[result.id] = (cls, tuple(dims[factors.index(f)] for f in made))
            elif rule.contracts and len(inputs) == 2:
                for i, v in inputs:
                    if v.id in origin:
                        cls, dims = origin[v.id]
                        places = tuple(zip(dims, rule.operands[i], strict=True))
                        found.append(Weight(op.id, cls, places))
        return found

    @functools.cached_property
    def padded(self) -> dict[int, tuple[int, ...]]:
        """Classes of padded forms of each argument, by class: tiled in place of the argument."""
        graph, found = self.graph, dict[int, tuple[int, ...]]()
        arguments = {v.id for v in graph.module.body.args}
        for op in graph.module.ops:
            shaped = [v for _, v in op.inputs() if v.type.shape]
            if len(shaped) == len(op.results) == 1 and shaped[0].id in arguments:
                shape, result = shaped[0].type.shape, op.results[0]
                if shape != result.type.shape and _longer(result.type.shape, shape):
                    cls = graph.class_of[shaped[0].id]
                    found[cls] = (*found.get(cls, ()), graph.class_of[result.id])
        return found

    def _find_unloopable(self) -> set[tuple[int, int]]:
        """(class, dim) pairs with a user unable to loop over the dim: scanned leading dims."""
        return {
            (cls, d)
            for node in self.graph.nodes
            for cls, dims in node.ports
            for d, f in enumerate(dims)
            if f == NONE or not node.structure.sizes[f]
        }

    def first_divisible_dim(self, state: State, cls: int, axes: Axes) -> int:
        """PartIR's FIRST_DIVISIBLE_DIM: the first dim divided by `axes`, or NONE.

        Preferred are dims without a tile whose users can all loop over them; for optimizer state
        the users of parameters of equal shape count too, since gradients are computed there.
        """
        dims = [d for d in range(len(self.graph.shapes[cls])) if state.may_tile(cls, d, axes)]
        free = [d for d in dims if all(row[cls] != d for row in state.tiles)]
        shape, users = self.graph.shapes[cls], self.roles.parameters
        alike = [c for c in users if self.graph.shapes[c] == shape and c != cls]
        if cls in self.roles.parameters:
            alike = []
        useful = [d for d in free if all((c, d) not in self._unloopable for c in (cls, *alike))]
        useful = useful or [d for d in free if (cls, d) not in self._unloopable]
        return next(iter(useful or free or dims), NONE)

    def _model_parallel(self, move: ModelParallel, state: State) -> list[Decision]:
        graph, done = self.graph, list[Decision]()
        weights = self._weights
        if not move.head:  # without the last weight, in all its uses (a tied embedding)
            weights = [weight for weight in weights[:-1] if weight.cls != weights[-1].cls]
        for weight in weights:
            node = graph.node_of[weight.op]
            if node < 0 or any(state.loops[a][node] != NONE for a in move.axes):
                continue
            rule = graph.rules[weight.op]
            for dim, f in weight.dims:
                if f >= 0 and not rule.reducers[f]:
                    decision = TileClass(weight.cls, dim, move.axes)
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _ring_parallel(self, move: RingParallel, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in self._weights:
            node, rule = self.graph.node_of[weight.op], self.graph.rules[weight.op]
            if node < 0:
                continue
            summed = [d for d, f in weight.dims if f >= 0 and rule.reducers[f]]
            free = [d for d, f in weight.dims if f >= 0 and not rule.reducers[f]]
            for axis, other in (move.axes, move.axes[::-1]):
                if state.loops[axis][node] != NONE:
                    continue
                across = state.loops[other][node]
                first = free if across >= 0 and rule.reducers[across] else summed
                for dim in first:
                    decision = TileClass(weight.cls, dim, (axis,))
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _alternate_parallel(self, move: AlternateParallel, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in self._weights:
            node, rule = self.graph.node_of[weight.op], self.graph.rules[weight.op]
            if node < 0:
                continue
            propagated = state.loops[move.outputs[0]][node]
            swapped = propagated >= 0 and rule.reducers[propagated]
            inputs, outputs = move.inputs, move.outputs
            if swapped:
                inputs, outputs = outputs, inputs
            for summed, axes in ((True, inputs), (False, outputs)):
                for dim, f in weight.dims:
                    if f >= 0 and bool(rule.reducers[f]) == summed:
                        decision = TileClass(weight.cls, dim, axes)
                        if decide(state, decision):
                            done.append(decision)
                            break
        return done

    def _output_parallel(self, axes: Axes, state: State) -> list[Decision]:
        done = list[Decision]()
        for weight in reversed(self._weights):
            rule = self.graph.rules[weight.op]
            for dim, f in weight.dims:
                if f >= 0 and not rule.reducers[f]:
                    decision = TileClass(weight.cls, dim, axes)
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _sequence_parallel(self, axes: Axes, state: State) -> list[Decision]:
        graph, done = self.graph, list[Decision]()
        for op in graph.module.ops:
            node = graph.node_of[op.id]
            if op.regions or op.backward or node < 0:
                continue
            reducers = graph.rules[op.id].reducers
            looped = [state.loops[a][node] for a in axes]
            if not all(f >= 0 and reducers[f] == "sum" for f in looped):
                continue
            cls = graph.class_of[op.results[0].id]
            for dim in range(len(graph.shapes[cls]) - 1):
                if all(row[cls] != dim for row in state.tiles):
                    decision = TileClass(cls, dim, axes)
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _zero(self, move: Zero, state: State) -> list[Decision]:
        done: list[Decision] = []
        shapes, axes = self.graph.shapes, move.axes
        matrices = [c for c in self.roles.parameters if len(shapes[c]) >= 2]
        if move.stage < 3:
            for cls in matrices:
                replicate = ReplicateClass(cls, axes)
                if decide(state, replicate):
                    done.append(replicate)
        targets = matrices if move.stage >= 3 else self.roles.optimizer
        for cls in targets:
            if len(shapes[cls]) >= 2:
                dim = self.first_divisible_dim(state, cls, axes)
                if dim >= 0:
                    tile = TileClass(cls, dim, axes)
                    if decide(state, tile):
                        done.append(tile)
        return done


def _longer(shape: Shape, than: Shape) -> bool:
    """True if `shape` pads `than`: dims equal or longer, dims of size 1 equal."""
    return len(shape) == len(than) and all(
        m == n or m > n > 1 for m, n in zip(shape, than, strict=True)
    )


def decide(state: State, decision: Decision) -> bool:
    """Applies a decision if legal; False if not."""
    if isinstance(decision, TileClass):
        if not state.may_tile(decision.cls, decision.dim, decision.axes):
            return False
        state.tile(decision.cls, decision.dim, decision.axes, (), decision.barriers)
        return True
    if not state.free(decision.cls, decision.axes):
        return False
    state.replicate(decision.cls, decision.axes)
    return True
