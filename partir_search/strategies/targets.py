"""Classes and dims of a step that strategies tile: weights, experts, edges, sequences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from partir_search.ir.core import Op, Shape, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE
from partir_search.passes.pipeline.module import stage_carries
from partir_search.propagation.graph import Graph
from partir_search.propagation.loop_batches import loop_batches
from partir_search.propagation.state import State
from partir_search.rules.registry import role_of
from partir_search.strategies.argument_roles import Roles, find_roles
from partir_search.strategies.decisions import Axes, Decision, TileClass

_MOVING = (Role.RESHAPE, Role.TRANSPOSITION, Role.CAST)  # between stacks and stages


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


class StrategyTargets:
    """Targets of strategies in one graph.

    Attributes:
      roles: classes of parameters, optimizer state and data.
      weights: uses of parameters by forward contractions, in program order.
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
        # By class of parameters by stage, the last dim that numbers chunks, stages or layers.
        self._layer_dims: dict[int, int] = {}
        self.weights = self._find_weights()
        self._unloopable = self._find_unloopable()
        self._users_by_shape: dict[Shape, list[int]] = {}
        for c in self.roles.parameters:
            self._users_by_shape.setdefault(graph.shapes[c], []).append(c)

    @property
    def edges(self) -> tuple[int, ...]:
        """Classes of the longest data arguments; () if all have one length."""
        length = {c: self.graph.shapes[c][0] for c in self.roles.data}
        longest = max(length.values(), default=0)
        found = tuple(c for c, n in length.items() if n == longest)
        return found if len(found) < len(length) else ()

    @functools.cached_property
    def loop_batches(self) -> tuple[tuple[int, int], ...]:
        """(class, dim of the batch) of data that a loop reads by their leading dim."""
        graph, data = self.graph, set(self.roles.data)
        args = graph.module.body.args
        positions = [i for i, v in enumerate(args) if graph.class_of[v.id] in data]
        members, values = graph.members, graph.module.values
        found = loop_batches(
            graph.module,
            positions,
            lambda value: [values[v] for v in members[graph.class_of[value.id]]],
        ).values()
        classes = [(graph.class_of[v.id], dim) for places in found for v, dim in places]
        return tuple(dict.fromkeys(classes))

    @functools.cached_property
    def experts(self) -> tuple[tuple[int, int], ...]:
        """(class, dim of the experts) of parameters with one matrix per expert of a mixture."""
        found = []
        for weight in self.weights:
            rule = self.graph.rules[weight.op]
            for dim, f in weight.dims:
                if dim <= self._layer_dims.get(weight.cls, NONE):
                    continue
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

    def context_axes(self, state: State) -> frozenset[int]:
        """Axes that tile the sequences of attention."""
        axes = range(len(state.tiles))
        return frozenset(a for a in axes for c, d in self.contexts if state.tiles[a][c] == d)

    @functools.cached_property
    def stacks(self) -> tuple[int, ...]:
        """Classes of stacks of arrays, with one array per index of dim 0."""
        found = [
            self.graph.class_of[op.results[0].id]
            for op in self.graph.module.ops
            if role_of(op) is Role.STACK
        ]
        return tuple(dict.fromkeys(found))

    @functools.cached_property
    def stages(self) -> tuple[int, ...]:
        """Classes of carries entering the stages of a pipeline, with a stage per index of dim 0."""
        values = stage_carries(self.graph.module.body.ops)
        return tuple(dict.fromkeys(self.graph.class_of[v.id] for v in values))

    @functools.cached_property
    def totals(self) -> tuple[int, ...]:
        """Classes of sums over microbatches: in the loops, and of their results."""
        found: list[Value] = []
        for op in self.graph.module.ops:
            edges = self.graph.rules[op.id].data_flow
            if not op.regions or not edges.accumulates:
                continue
            for at, result, to, place in edges.carries:
                new = op.regions[at].results[result]
                found += [op.regions[to].args[place], *([new] if isinstance(new, Value) else [])]
            found += op.results
        classes = dict.fromkeys(self.graph.class_of[v.id] for v in found)
        return tuple(c for c in classes if c not in self.stages)

    @functools.cached_property
    def held(self) -> tuple[int, ...]:
        """Classes of arrays read whole by each microbatch, without arguments: casts of
        parameters.
        """
        found: list[Value] = []
        for op in self.graph.module.body.ops:
            edges = self.graph.rules[op.id].data_flow
            if not op.regions or not edges.accumulates:
                continue
            carried = {(to, place) for _, _, to, place in edges.carries}
            operands = [
                op.operands[i]
                for i, r, place, stacked in edges.inputs
                if not stacked and (r, place) not in carried
            ]
            found += [x for x in operands if isinstance(x, Value) and len(x.type.shape) >= 2]
        arguments = {self.graph.class_of[v.id] for v in self.graph.module.body.args}
        classes = dict.fromkeys(self.graph.class_of[v.id] for v in found)
        return tuple(c for c in classes if c not in arguments)

    def expert_barriers(self, axes: Axes, state: State) -> tuple[int, ...]:
        """Classes tiled by expert and by data parallelism, used by an op outside of the experts."""

        def tiled_by(decisions: Sequence[Decision]) -> set[int]:
            start = state.key()
            before = state.tiles[axes[0]][:]
            for decision in decisions:
                decision.decide(state)
            after = state.tiles[axes[0]]
            found = {c for c, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
            state.restore(start)
            return found

        data = tiled_by(
            [
                *(TileClass(c, d, axes) for c, d in self.loop_batches),
                *(TileClass(c, 0, axes) for c in self.roles.data),
            ]
        )
        experts = tiled_by([TileClass(c, d, axes) for c, d in self.experts])
        touching = self.graph.touching
        own = {n for c in experts - data for n in touching[c]}
        return tuple(sorted(c for c in experts & data if not own.issuperset(touching[c])))

    def _find_weights(self) -> list[Weight]:
        """Uses of parameters by forward contractions, in program order.

        Transposed and padded parameters count as the parameter, and so do slices of stacked
        parameters in the body of a scan, by stage and chunk too.
        """
        graph = self.graph
        args = [v for v in graph.module.body.args if graph.class_of[v.id] in self.roles.parameters]
        # By value id, for parameters and values derived from one: the class, and its dim per dim.
        origin = {v.id: (graph.class_of[v.id], tuple(range(len(v.type.shape)))) for v in args}
        stack_of: dict[int, Value] = {}  # of layers, by id of a value with the elements moved
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
            if rule.role is Role.LAYERS and all(v.id in origin for _, v in op.inputs()):
                stack = op.results[0]  # tiled in place of the parameters
                origin[stack.id] = graph.class_of[stack.id], tuple(range(len(stack.type.shape)))
                stack_of[stack.id] = stack
                continue
            inputs = [(i, v) for i, v in op.inputs() if v.type.shape]
            whole = inputs[0][1] if inputs and inputs[0][1].id in origin else None
            moved = stack_of.get(inputs[0][1].id, whole) if inputs else None
            if inputs and inputs[0][1].id in stack_of and rule.role in _MOVING:
                stack_of[op.results[0].id] = stack_of[inputs[0][1].id]
            if moved is not None and self._by_stage(op, moved):
                whole = moved
                parts = op.results[0]  # layers by stage, tiled in place of the parameter
                rank = len(parts.type.shape)
                self._layer_dims[graph.class_of[parts.id]] = rank - len(whole.type.shape)
                origin[parts.id] = graph.class_of[parts.id], tuple(range(rank))
                continue
            of_stage = whole is not None and origin[whole.id][0] in self._layer_dims
            if whole is not None and of_stage and rule.is_table_lookup:  # the layer of a chunk
                cls, dims = origin[whole.id]
                at = {f: d for d, f in zip(dims, rule.operands[0], strict=True) if f != NONE}
                origin[op.results[0].id] = cls, tuple(at.get(f, NONE) for f in rule.results[0])
                continue
            if len(inputs) == len(op.results) == 1 and inputs[0][1].id in origin:
                (i, x), result = inputs[0], op.results[0]
                cls, dims = origin[x.id]
                factors, made = rule.operands[i], rule.results[0]
                if rule.elementwise and _longer(result.type.shape, x.type.shape):
                    # Padded: moves tile the padded form instead of the parameter.
                    origin[result.id] = (graph.class_of[result.id], tuple(range(len(made))))
                    if cls in self._layer_dims:
                        self._layer_dims[graph.class_of[result.id]] = self._layer_dims[cls]
                elif NONE not in factors and sorted(factors) == sorted(made) and not rule.reads:
                    origin[result.id] = (cls, tuple(dims[factors.index(f)] for f in made))
            elif rule.contracts and len(inputs) == 2:
                for i, v in inputs:
                    if v.id in origin:
                        cls, dims = origin[v.id]
                        pairs = zip(dims, rule.operands[i], strict=True)
                        places = tuple((d, f) for d, f in pairs if d != NONE)
                        found.append(Weight(op.id, cls, places))
        return found

    def _by_stage(self, op: Op, parameter: Value) -> bool:
        """True if an op of a pipeline splits the layers of a stacked parameter into stages."""
        if not self.stages or self.graph.rules[op.id].role is not Role.RESHAPE:
            return False
        return _splits_first(parameter.type.shape, op.results[0].type.shape)

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
        alike: Sequence[int] = ()
        if cls not in self.roles.parameters:
            alike = self._users_by_shape.get(self.graph.shapes[cls], ())
        useful = [d for d in free if all((c, d) not in self._unloopable for c in (cls, *alike))]
        useful = useful or [d for d in free if (cls, d) not in self._unloopable]
        # Else below the tiles of a dim: above them, no tile would stay in place.
        minor = state.tiles[max(axes, default=0) :]
        below = [d for d in dims if all(row[cls] != d for row in minor)]
        return next(iter(useful or free or below or dims), NONE)


def _splits_first(shape: Shape, parts: Shape) -> bool:
    """True if a reshape to `parts` splits the first dim of `shape` and keeps all others."""
    return len(parts) > len(shape) > 1 and parts[len(parts) - len(shape) + 1 :] == shape[1:]


def _longer(shape: Shape, than: Shape) -> bool:
    """True if `shape` pads `than`: dims equal or longer, dims of size 1 equal."""
    return len(shape) == len(than) and all(
        m == n or m > n > 1 for m, n in zip(shape, than, strict=True)
    )
