"""The known strategies as moves on a graph: data, model, sequence parallelism and ZeRO.

A move looks at the state that it is played in (which dims are still free, which sums are pending)
and performs plain tile and keep decisions, so that one ZeRO move serves any model. The answer of a
search is never behind the best of `expert_plans`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Union

from partir_search.ir.core import Module, Op, Value, walk_regions
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE
from partir_search.propagation.graph import Graph
from partir_search.propagation.propagate import State

Axes = tuple[int, ...]  # positions in the mesh, major to minor


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass:
    """Tile one dim of a class on axes (all of one, or some parts of it); propagation leaves the
    classes in `barriers` undecided.
    """

    cls: int
    dim: int
    axes: Axes
    barriers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class KeepClass:
    """Keep a class whole along axes."""

    cls: int
    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class DataParallel:
    """Tile the leading dim of every data argument."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class EdgeParallel:
    """Tile the leading dim of the longest data arguments only: the edges of a graph, whose nodes
    stay whole (PartIR's ES on graph networks).
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ExpertParallel:
    """Tile the experts of a mixture (GShard, arXiv 2006.16668): the dim that parameters share with
    what they are multiplied by and with the result. Played before data parallelism on the same
    axes: what goes in and what comes out is left to that, so that tokens are sorted where they are
    and travel to the experts and back by all_to_all.
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ModelParallel:
    """Megatron (Shoeybi et al. 2019): split each parameter that meets a whole activation by its
    outputs; propagation splits the next one by its inputs. `head` includes the last one.
    """

    axes: Axes
    head: bool


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SequenceParallel:
    """Tile activations between blocks where sums on the axes are finished (Korthikanti 2022)."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Zero:
    """ZeRO (Rajbhandari et al. 2020) on matrices: stage 2 keeps parameters whole and tiles the
    optimizer's state (and with it the gradients); stage 3 tiles the parameters too.
    """

    axes: Axes
    stage: int


Decision = Union[TileClass, KeepClass]
StrategyMove = Union[
    TileClass,
    KeepClass,
    DataParallel,
    EdgeParallel,
    ExpertParallel,
    ModelParallel,
    SequenceParallel,
    Zero,
]


@dataclasses.dataclass(frozen=True, slots=True)
class Roles:
    """What the arguments are for, by dataflow: classes of parameters, optimizer state and data."""

    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]
    data: tuple[int, ...]


def find_roles(graph: Graph) -> Roles:
    """Roles of a graph's arguments.

    State is what is tied to a result. Parameters are the state that some other result (the loss)
    depends on; the rest of the state is the optimizer's. Where every result is state, parameters
    are the state that most of the new state depends on. Without ties, a top-level argument whose
    leaves share their leading dim is data, the others are parameters.
    """
    module = graph.module
    tied = {a for a, _ in module.ties}
    ranked = [(i, v) for i, v in enumerate(module.body.args) if v.type.shape]
    if tied:
        loss = _ancestors(module, exclude={r for _, r in module.ties})
        if not loss:
            loss = _influential(module, [v for i, v in ranked if i in tied])
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


def _influential(module: Module, state: Sequence[Value]) -> set[int]:
    """Those of the values that more than half as many results depend on as on any."""
    reached_by = {v.id: 1 << i for i, v in enumerate(state)}  # per value, a bit for each of `state`
    for op in module.ops:
        mask = 0
        for _, v in op.inputs():
            mask |= reached_by.get(v.id, 0)
        if mask:
            for region in op.regions:  # whatever enters may reach everything inside
                for inner in walk_regions(region):
                    reached_by.update((a.id, mask) for a in inner.args)
            reached_by.update((r.id, mask) for r in op.results)
    count = [0] * len(state)
    for result in module.body.results:
        mask = reached_by.get(result.id, 0) if isinstance(result, Value) else 0
        for i in range(len(state)):
            count[i] += mask >> i & 1
    return {v.id for v, n in zip(state, count, strict=True) if n > max(count) / 2}


class Strategist:
    """Performs moves on states of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.roles = find_roles(graph)
        self._weights = self._find_weights()
        self._loopable = self._find_loopable()
        self._performed: dict[tuple[StrategyMove, bytes], list[Decision]] = {}

    def perform(self, move: StrategyMove, state: State) -> list[Decision]:
        """Plays a move; returns the decisions that had an effect."""
        if isinstance(move, TileClass | KeepClass):
            return [move] if decide(state, move) else []
        # Searches play the same moves in the same states over and over.
        key = (move, hashlib.blake2b(state.key(), digest_size=16).digest())
        known = self._performed.get(key)
        if known is None:
            known = self._performed[key] = self._perform(move, state)
        else:
            for decision in known:
                decide(state, decision)
        return list(known)

    def _perform(self, move: StrategyMove, state: State) -> list[Decision]:
        if isinstance(move, DataParallel):
            wanted: list[Decision] = [TileClass(c, 0, move.axes) for c in self.roles.data]
        elif isinstance(move, EdgeParallel):
            wanted = [TileClass(c, 0, move.axes) for c in self.edges]
        elif isinstance(move, ExpertParallel):
            ends = self._expert_barriers(move.axes, state)
            wanted = [TileClass(c, d, move.axes, ends) for c, d in self.experts]
        elif isinstance(move, ModelParallel):
            return self._model_parallel(move, state)
        elif isinstance(move, SequenceParallel):
            return self._sequence_parallel(move.axes, state)
        elif isinstance(move, Zero):
            return self._zero(move, state)
        else:
            wanted = [move]
        return [d for d in wanted if decide(state, d)]

    @property
    def edges(self) -> tuple[int, ...]:
        """The longest data arguments, where some are shorter."""
        length = {c: self.graph.shapes[c][0] for c in self.roles.data}
        longest = max(length.values(), default=0)
        found = tuple(c for c, n in length.items() if n == longest)
        return found if len(found) < len(length) else ()

    @functools.cached_property
    def experts(self) -> tuple[tuple[int, int], ...]:
        """(class, dim) of parameters that hold a matrix per expert."""
        found = []
        for op_id, operand, cls in self._weights:
            rule = self.graph.rules[op_id]
            for dim, f in enumerate(rule.operands[operand]):
                places = (*rule.operands, *rule.results)
                if f >= 0 and all(f in dims for dims in places):
                    found.append((cls, dim))
        return tuple(dict.fromkeys(found))

    def _expert_barriers(self, axes: Axes, state: State) -> tuple[int, ...]:
        """Classes that data parallelism tiles too, unless only the experts' own ops touch them."""

        def tiled_by(decisions: Sequence[Decision]) -> set[int]:
            mark = state.mark()
            before = state.tiles[axes[0]][:]
            for decision in decisions:
                decide(state, decision)
            after = state.tiles[axes[0]]
            found = {c for c, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
            state.undo(mark)
            return found

        data = tiled_by([TileClass(c, 0, axes) for c in self.roles.data])
        experts = tiled_by([TileClass(c, d, axes) for c, d in self.experts])
        touching = self.graph.touching
        own = {n for c in experts - data for n in touching[c]}
        return tuple(sorted(c for c in experts & data if not own.issuperset(touching[c])))

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

    def first_divisible_dim(self, state: State, cls: int, axes: Axes) -> int:
        """PartIR's FIRST_DIVISIBLE_DIM: the first dim that `axes` divide, or NONE.

        Dims that no other axis tiles come first, and dims that every user can loop over.
        """
        dims = [d for d in range(len(self.graph.shapes[cls])) if state.may_tile(cls, d, axes)]
        free = [d for d in dims if all(row[cls] != d for row in state.tiles)]
        useful = [d for d in free if (cls, d) in self._loopable]
        return next(iter(useful or free or dims), NONE)

    def _model_parallel(self, move: ModelParallel, state: State) -> list[Decision]:
        graph, done = self.graph, list[Decision]()
        weights = self._weights if move.head else self._weights[:-1]
        for op, operand, cls in weights:
            node = graph.node_of[op]
            if node < 0 or any(state.loops[a][node] != NONE for a in move.axes):
                continue
            rule = graph.rules[op]
            for dim, f in enumerate(rule.operands[operand]):
                if f >= 0 and not rule.reducers[f]:
                    decision = TileClass(cls, dim, move.axes)
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
                keep = KeepClass(cls, axes)
                if decide(state, keep):
                    done.append(keep)
        targets = matrices if move.stage >= 3 else self.roles.optimizer
        for cls in targets:
            if len(shapes[cls]) >= 2:
                dim = self.first_divisible_dim(state, cls, axes)
                if dim >= 0:
                    tile = TileClass(cls, dim, axes)
                    if decide(state, tile):
                        done.append(tile)
        return done


def decide(state: State, decision: Decision) -> bool:
    """Plays a decision if it is legal."""
    if isinstance(decision, TileClass):
        if not state.may_tile(decision.cls, decision.dim, decision.axes):
            return False
        state.tile(decision.cls, decision.dim, decision.axes, (), decision.barriers)
        return True
    if not state.free(decision.cls, decision.axes):
        return False
    state.keep(decision.cls, decision.axes)
    return True


def expert_plans(
    mesh: MeshShape, axes: Sequence[str], strategist: Strategist
) -> list[tuple[str, tuple[StrategyMove, ...]]]:
    """Named strategies on axes of the user's mesh: what people use, on every choice of axes.

    Model parallelism takes any of the axes, alone or together, or the minor parts of a split axis;
    data parallelism and ZeRO take the rest, or one of the rest. Where data arguments differ in
    length, edge parallelism stands beside data parallelism; where there is a mixture of experts,
    these may lie on axes of data parallelism too.
    """
    plans: dict[str, tuple[StrategyMove, ...]] = {}
    every = tuple(a for name in axes for a in mesh.axes(name))

    def name(axes: Axes) -> str:
        return mesh.label(axes)

    def data(axes: Axes) -> tuple[StrategyMove, ...]:
        """Data parallelism axis by axis: a small batch takes as many as divide it."""
        return tuple(DataParallel(mesh.axes(n)) for n in mesh.label(axes).split("+"))

    def zero(axes: Axes, stage: int) -> tuple[StrategyMove, ...]:
        return tuple(Zero(mesh.axes(n), stage) for n in mesh.label(axes).split("+"))

    def add(title: str, *moves: StrategyMove) -> None:
        plans.setdefault(title, moves)

    def add_data(
        rest: Axes, title: str, *moves: StrategyMove, first: StrategyMove | None = None
    ) -> None:
        """`moves` with data parallelism on `rest`, and ZeRO on all or each of its axes."""
        base = (*([first] if first else []), *data(rest), *moves)
        title = f"BP({name(rest)}){title}"
        add(title, *base)
        single = [mesh.axes(n) for n in mesh.label(rest).split("+")]
        for stage in (2, 3):
            add(f"{title}+Z{stage}", *base, *zero(rest, stage))
            if len(single) > 1:
                for one in single:
                    add(f"{title}+Z{stage}({name(one)})", *base, Zero(one, stage))

    for m in _choices(mesh, axes):
        rest = tuple(a for a in every if a not in m)
        add(f"MP({name(m)})", ModelParallel(m, False))
        add_data(m, "")
        if strategist.edges:
            edges = EdgeParallel(m)
            add(f"ES({name(m)})", edges)
            for stage in (2, 3):
                add(f"ES({name(m)})+Z{stage}", edges, *zero(m, stage))
        if strategist.experts:
            experts = ExpertParallel(m)
            add_data(every, f"+EP({name(m)})", first=experts)
            if rest:
                moves = (ModelParallel(rest, True), SequenceParallel(rest))
                add_data(m, f"+EP({name(m)})+MP({name(rest)}, head)", moves[0], first=experts)
                add_data(m, f"+EP({name(m)})+MP({name(rest)}, head)+SP", *moves, first=experts)
        if not rest:
            continue
        for head in (False, True):
            title = f"+MP({name(m)}{', head' if head else ''})"
            add_data(rest, title, ModelParallel(m, head))
            add_data(rest, title + "+SP", ModelParallel(m, head), SequenceParallel(m))
    return list(plans.items())


def _choices(mesh: MeshShape, axes: Sequence[str]) -> list[Axes]:
    """Sets of axes that one strategy may take: any of the user's, or minor parts of one."""
    found = [
        tuple(a for name in names for a in mesh.axes(name))
        for n in range(1, len(axes) + 1)
        for names in itertools.combinations(axes, n)
    ]
    for name in axes:
        parts = mesh.axes(name)
        found += [parts[k:] for k in range(1, len(parts))]
    return found
