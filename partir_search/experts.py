"""The known strategies as moves on a graph: data, model, sequence parallelism and ZeRO.

A move looks at the state that it is played in (which dims are still free, which sums are pending)
and performs plain tile and keep decisions, so that one ZeRO move serves any model. The answer of a
search is never behind the best of `expert_plans`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Union

from partir_search.ir.core import Module, Op, Value, walk_regions
from partir_search.ir.rule import NONE
from partir_search.propagation.graph import Graph
from partir_search.propagation.propagate import State


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass:
    """Tile one dim of a class on an axis."""

    cls: int
    dim: int
    axis: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class KeepClass:
    """Keep a class whole along an axis."""

    cls: int
    axis: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class DataParallel:
    """Tile the leading dim of every data argument."""

    axis: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ModelParallel:
    """Megatron (Shoeybi et al. 2019): split each parameter that meets a whole activation by its
    outputs; propagation splits the next one by its inputs. `head` includes the last one.
    """

    axis: int
    head: bool


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SequenceParallel:
    """Tile activations between blocks where sums on the axis are finished (Korthikanti 2022)."""

    axis: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Zero:
    """ZeRO (Rajbhandari et al. 2020) on matrices: stage 2 keeps parameters whole and tiles the
    optimizer's state (and with it the gradients); stage 3 tiles the parameters too.
    """

    axis: int
    stage: int


Decision = Union[TileClass, KeepClass]
StrategyMove = Union[TileClass, KeepClass, DataParallel, ModelParallel, SequenceParallel, Zero]


@dataclasses.dataclass(frozen=True, slots=True)
class Roles:
    """What the arguments are for, by dataflow: classes of parameters, optimizer state and data."""

    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]
    data: tuple[int, ...]


def find_roles(graph: Graph) -> Roles:
    """Roles of a graph's arguments.

    State is what is tied to a result. Parameters are the state that some other result (the loss)
    depends on; the rest of the state is the optimizer's. Without ties, a top-level argument
    whose leaves share their leading dim is data, the others are parameters.
    """
    module = graph.module
    tied = {a for a, _ in module.ties}
    ranked = [(i, v) for i, v in enumerate(module.body.args) if v.type.shape]
    if tied:
        loss = _ancestors(module, exclude={r for _, r in module.ties})
        parameters = [v for i, v in ranked if i in tied and v.id in loss]
        optimizer = [v for i, v in ranked if i in tied and v.id not in loss]
        data = [v for i, v in ranked if i not in tied]
    else:
        groups: dict[str, list[Value]] = {}
        for i, v in ranked:
            groups.setdefault(module.arg_paths[i].split("/")[0], []).append(v)
        alike = [len({v.type.shape[0] for v in g}) == 1 for g in groups.values()]
        data = [v for g, same in zip(groups.values(), alike, strict=True) if same for v in g]
        parameters = [v for _, v in ranked if v not in data]
        optimizer = []

    def classes(values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(graph.class_of[v.id] for v in values))

    return Roles(classes(parameters), classes(optimizer), classes(data))


def _ancestors(module: Module, exclude: set[int]) -> set[int]:
    """Values that results outside of `exclude` depend on."""
    makers: dict[int, list[Op]] = {}
    inside: dict[int, list[Value]] = {}
    for op in module.ops:
        for r in op.results:
            makers.setdefault(r.id, []).append(op)
        for region in op.regions:
            for inner in walk_regions(region):
                inside.setdefault(op.id, []).extend(
                    x for x in inner.results if isinstance(x, Value)
                )
    seen: set[int] = set()
    todo = [
        x.id for i, x in enumerate(module.body.results) if i not in exclude and isinstance(x, Value)
    ]
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            for op in makers.get(v, ()):
                todo.extend(x.id for _, x in op.inputs())
    return seen


class Strategist:
    """Performs moves on states of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.roles = find_roles(graph)
        self._weights = self._find_weights()
        self._loopable = self._find_loopable()

    def perform(self, move: StrategyMove, state: State) -> list[Decision]:
        """Plays a move; returns the decisions that had an effect."""
        if isinstance(move, TileClass | KeepClass):
            wanted: list[Decision] = [move]
        elif isinstance(move, DataParallel):
            wanted = [TileClass(c, 0, move.axis) for c in self.roles.data]
        elif isinstance(move, ModelParallel):
            return self._model_parallel(move, state)
        elif isinstance(move, SequenceParallel):
            return self._sequence_parallel(move.axis, state)
        else:
            return self._zero(move, state)
        return [d for d in wanted if decide(state, d)]

    def _find_weights(self) -> list[tuple[int, int, int]]:
        """(op, operand, class) of forward contractions with a parameter, in program order."""
        graph = self.graph
        origin = {v.id: graph.class_of[v.id] for v in graph.module.body.args}
        origin = {v: c for v, c in origin.items() if c in self.roles.parameters}
        found = []
        for op in graph.module.ops:
            if op.regions or op.backward:
                continue
            rule = graph.rules[op.id]
            inputs = [(i, v) for i, v in op.inputs() if v.type.shape]
            if rule.elementwise and len(inputs) == 1 and inputs[0][1].id in origin:
                shape = inputs[0][1].type.shape
                if op.results[0].type.shape == shape:
                    origin[op.results[0].id] = origin[inputs[0][1].id]
            elif rule.contracts and len(inputs) == 2:
                found += [(op.id, i, origin[v.id]) for i, v in inputs if v.id in origin]
        return found

    def _find_loopable(self) -> set[tuple[int, int]]:
        """(class, dim) pairs that every user can loop over: scanned leading dims are not."""
        bad = {
            (cls, d)
            for node in self.graph.nodes
            for cls, dims in node.ports
            for d, f in enumerate(dims)
            if f == NONE or not node.sizes[f]
        }
        shapes = self.graph.shapes
        return {(c, d) for c in range(len(shapes)) for d in range(len(shapes[c]))} - bad

    def first_divisible_dim(self, state: State, cls: int, axis: int) -> int:
        """PartIR's FIRST_DIVISIBLE_DIM: the first dim that `axis` divides, or NONE.

        Dims that no other axis tiles come first, and dims that every user can loop over.
        """
        dims = [d for d in range(len(self.graph.shapes[cls])) if state.may_tile(cls, d, axis)]
        free = [d for d in dims if all(row[cls] != d for row in state.tiles)]
        useful = [d for d in free if (cls, d) in self._loopable]
        return next(iter(useful or free or dims), NONE)

    def _model_parallel(self, move: ModelParallel, state: State) -> list[Decision]:
        graph, done = self.graph, list[Decision]()
        weights = self._weights if move.head else self._weights[:-1]
        for op, operand, cls in weights:
            node = graph.node_of[op]
            if node < 0 or state.loops[move.axis][node] != NONE:
                continue
            rule = graph.rules[op]
            for dim, f in enumerate(rule.operands[operand]):
                if f >= 0 and not rule.reducers[f]:
                    decision = TileClass(cls, dim, move.axis)
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _sequence_parallel(self, axis: int, state: State) -> list[Decision]:
        graph, done = self.graph, list[Decision]()
        for op in graph.module.ops:
            node = graph.node_of[op.id]
            if op.regions or op.backward or node < 0:
                continue
            f = state.loops[axis][node]
            if f < 0 or graph.rules[op.id].reducers[f] != "sum":
                continue
            cls = graph.class_of[op.results[0].id]
            for dim in range(len(graph.shapes[cls]) - 1):
                if all(row[cls] != dim for row in state.tiles):
                    decision = TileClass(cls, dim, axis)
                    if decide(state, decision):
                        done.append(decision)
                        break
        return done

    def _zero(self, move: Zero, state: State) -> list[Decision]:
        done: list[Decision] = []
        shapes, axis = self.graph.shapes, move.axis
        matrices = [c for c in self.roles.parameters if len(shapes[c]) >= 2]
        if move.stage < 3:
            for cls in matrices:
                keep = KeepClass(cls, axis)
                if decide(state, keep):
                    done.append(keep)
        targets = matrices if move.stage >= 3 else self.roles.optimizer
        for cls in targets:
            if len(shapes[cls]) >= 2:
                dim = self.first_divisible_dim(state, cls, axis)
                if dim >= 0:
                    tile = TileClass(cls, dim, axis)
                    if decide(state, tile):
                        done.append(tile)
        return done


def decide(state: State, decision: Decision) -> bool:
    """Plays a decision if it is legal."""
    if isinstance(decision, TileClass):
        if not state.may_tile(decision.cls, decision.dim, decision.axis):
            return False
        state.tile(decision.cls, decision.dim, decision.axis)
        return True
    if state.tiles[decision.axis][decision.cls] != NONE:
        return False
    state.keep(decision.cls, decision.axis)
    return True


def expert_plans(axes: Sequence[int]) -> list[tuple[str, tuple[StrategyMove, ...]]]:
    """Named strategies on the given mesh axes: all products of what people use."""
    plans: dict[str, tuple[StrategyMove, ...]] = {}

    def add(name: str, *moves: StrategyMove) -> None:
        plans.setdefault(name, moves)

    for a in axes:
        add(f"BP({a})", DataParallel(a))
        add(f"MP({a})", ModelParallel(a, False))
        for stage in (2, 3):
            add(f"BP({a})+Z{stage}({a})", DataParallel(a), Zero(a, stage))
    for a, b in itertools.permutations(axes, 2):
        for head in (False, True):
            base = (DataParallel(a), ModelParallel(b, head))
            name = f"BP({a})+MP({b}{', head' if head else ''})"
            add(name, *base)
            for stage in (2, 3):
                add(f"{name}+Z{stage}", *base, Zero(a, stage))
                add(f"{name}+SP+Z{stage}", *base, SequenceParallel(b), Zero(a, stage))
            add(f"{name}+SP", *base, SequenceParallel(b))
    everywhere = tuple(DataParallel(a) for a in axes)
    if len(axes) > 1:
        add("BP(all)", *everywhere)
        for stage in (2, 3):
            add(f"FSDP{stage}(all)", *everywhere, *(Zero(a, stage) for a in axes))
            for a in axes:
                add(f"BP(all)+Z{stage}({a})", *everywhere, Zero(a, stage))
    return list(plans.items())
