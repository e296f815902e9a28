"""Text of a partition as a tree: statements, runs of elementwise ops, loops, blocks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple, Union

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Op, Region, Value
from partir_search.ir.kind import Kind
from partir_search.ir.partition import Partition
from partir_search.ir.printing.loops import Loop, Nests, Piece, joins, pieces
from partir_search.ir.printing.names import Names
from partir_search.ir.printing.repeats import Likeness
from partir_search.ir.printing.scopes import Item, Scope, gathered, scopes_of
from partir_search.ir.printing.weights import Path

LIGHT = frozenset({Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.IDENTITY, Kind.REDUCTION, Kind.RANDOM})
RUN = 3  # minimum number of neighbouring light ops printed as one line


class Made(NamedTuple):
    """Result of a node, and ids of the ops outside of the node that read the result."""

    value: Value
    users: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One op.

    Attributes:
      results: values made.
      slices: per operand, slices taken by the op's loops.
      regions: regions with their nodes.
    """

    op: Op
    results: tuple[Made, ...]
    slices: tuple[tuple[Piece, ...], ...]
    regions: tuple[tuple[Region, tuple[Node, ...]], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring light ops of one loop nest; `results` are used outside of the run."""

    statements: tuple[Statement, ...]
    results: tuple[Made, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Looped:
    """Nodes in loops, the outermost first; `results` are used outside of the loops."""

    loops: tuple[Loop, ...]
    body: tuple[Node, ...]
    results: tuple[Made, ...]

    @property
    def run(self) -> Run | None:
        """The run, if the body is nothing but one."""
        tiled = all(loop.tiles for loop in self.loops)
        only = self.body[0] if len(self.body) == 1 else None
        return only if tiled and isinstance(only, Run) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Nodes of a scope.

    Attributes:
      repeats: number of equal scopes printed as this one.
      last: path of the last of them.
    """

    path: Path
    backward: bool
    body: tuple[Node, ...]
    repeats: int
    last: Path


Node = Union[Statement, Run, Looped, Block]


class Tree:
    """Builder of the nodes of ops under a partition."""

    def __init__(self, partition: Partition, names: Names) -> None:
        module = partition.module
        self.partition, self.names = partition, names
        self.nests = Nests(partition)
        self.weight: dict[int, bool] = {}
        uses = def_use(module)
        self.users, self.returned = uses.users, uses.returned
        self.local: dict[int, set[int]] = {}  # per axis, values made in the loop being built
        self.given = {v.id for v in module.body.args} | module.constants.keys()
        self.vectors = {v for v in self.given if len(module.values[v].type.shape) == 1}
        self.likeness = Likeness(partition, self.nests, self.returned)

    def weighs(self, op: Op) -> bool:
        """True for ops always printed as statements, never in runs."""
        found = self.weight.get(op.id)
        if found is None:
            found = self.weight[op.id] = self._weighs(op)
        return found

    def _weighs(self, op: Op) -> bool:
        rule = self.partition.rules[op.id]
        own = op.regions or op.effect or rule.fixed_by_user or rule.manual
        halo = rule.reads and (rule.kind is Kind.REDUCTION or self.partition.windows(op))
        tiled = all(loop.tiles for loop in self.nests[op.id])
        return bool(own or halo) or rule.kind not in LIGHT or not tiled

    def of(self, ops: Sequence[Op]) -> tuple[Node, ...]:
        return self._items(scopes_of(ops, self.names.paths, self.weighs))

    def _items(self, items: Sequence[Item]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for scoped, group in itertools.groupby(items, lambda item: isinstance(item, Scope)):
            if scoped:
                nodes += self._blocks([s for s in group if isinstance(s, Scope)])
            else:
                ops = [op for op in group if isinstance(op, Op)]
                nodes += self._nodes(gathered(ops, self.nests, self.weighs, self.given), 0)
        return tuple(nodes)

    def _blocks(self, scopes: Sequence[Scope]) -> list[Block]:
        """A block for each run of scopes equal up to names and a number."""
        blocks: list[Block] = []
        alike = self._alike if len(scopes) > 1 else id
        for _, group in itertools.groupby(scopes, alike):
            first, *more = group
            last = more[-1] if more else first
            body = self._items(first.items)
            blocks.append(Block(first.path, first.backward, body, 1 + len(more), last.path))
        return blocks

    def _alike(self, scope: Scope) -> tuple[object, ...]:
        title = re.sub(r"\d+", "#", "/".join(scope.path))
        return title, scope.backward, len(scope.ops), self.likeness.of(scope.ops)

    def _nodes(self, ops: Sequence[Op], level: int) -> list[Node]:
        """Nodes of ops with the first `level` loops in common."""
        nodes: list[Node] = []
        i = 0
        while i < len(ops):
            nest = self.nests[ops[i].id]
            if len(nest) <= level:
                nodes.append(self._statement(ops[i]))
                i += 1
                continue
            loop, j, made = nest[level], i, set[int]()
            while j == i or (j < len(ops) and self._joins(ops[j], level, loop, made)):
                made.update(r.id for r in ops[j].results)
                j += 1
            nodes.append(self._looped(ops[i:j], level, loop, made))
            i = j
        return self._runs(nodes)

    def _joins(self, op: Op, level: int, loop: Loop, made: set[int]) -> bool:
        return joins(self.partition, op, self.nests[op.id], level, loop, made)

    def _looped(self, ops: Sequence[Op], level: int, loop: Loop, made: set[int]) -> Looped:
        axis = loop.axes[0]
        before = self.local.get(axis, set())
        if not loop.in_time:
            self.local[axis] = made
        body = tuple(self._nodes(ops, level + 1))
        self.local[axis] = before
        results = self._leaving(ops)
        if len(ops) > 1 and self._only_moves_vectors(ops):
            body = (Run(tuple(map(self._statement, ops)), results),)
        if len(body) == 1 and isinstance(body[0], Looped):
            return Looped((loop, *body[0].loops), body[0].body, results)
        return Looped((loop,), body, results)

    def _only_moves_vectors(self, ops: Sequence[Op]) -> bool:
        """True for light ops that move vectors of the arguments, as reshapes of biases do."""
        made = {r.id for op in ops for r in op.results}
        return all(
            self.partition.rules[op.id].kind is Kind.MOVEMENT
            and not self.weighs(op)
            and op.inputs()
            and all(v.id in made or v.id in self.vectors for _, v in op.inputs())
            for op in ops
        )

    def _leaving(self, ops: Sequence[Op]) -> tuple[Made, ...]:
        """Results of the ops used outside of them."""
        inside, found = {op.id for op in ops}, []
        for r in (r for op in ops for r in op.results):
            users = tuple(u.id for u in self.users[r.id] if u.id not in inside)
            if users or r.id in self.returned:
                found.append(Made(r, users))
        return tuple(found)

    def _statement(self, op: Op) -> Statement:
        slices = tuple(
            tuple(pieces(self.partition, op, i, self.local)) for i in range(len(op.operands))
        )
        outer, self.local = self.local, {}
        regions = tuple((region, self.of(region.ops)) for region in op.regions)
        self.local = outer
        results = tuple(Made(r, tuple(u.id for u in self.users[r.id])) for r in op.results)
        return Statement(op, results, slices, regions)

    def _runs(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes with `RUN` or more light statements in a row merged into one."""

        def light(node: Node) -> bool:
            return isinstance(node, Statement) and not self.weighs(node.op)

        found: list[Node] = []
        for is_light, group in itertools.groupby(nodes, light):
            inside = [*group]
            if is_light and len(inside) >= RUN:
                statements = tuple(s for s in inside if isinstance(s, Statement))
                found.append(Run(statements, self._leaving([s.op for s in statements])))
            else:
                found += inside
        return found
