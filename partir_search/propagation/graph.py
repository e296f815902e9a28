"""The module as propagation sees it: classes of values that are tiled alike, and nodes over them.

Classes merge what must agree: train state in and out, arguments of a loop's body and condition.
With `contract`, values joined by elementwise ops of equal shape merge too (never across an
argument, or a parameter, its gradient and its optimizer state would collapse into one): a
smaller graph, on which search was twice as fast and its answers better in a prototype.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.ir.analysis.axis_rows import AxisRows, axis_rows
from partir_search.ir.analysis.def_use import Index
from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Shape, Value
from partir_search.ir.flat import FlatLists
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.passes.debug_ops import watching
from partir_search.propagation.frontier import Reach
from partir_search.rules.control_flow import flows_of, outer_inner
from partir_search.rules.registry import RuleTable


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """Structure that nodes alike share: all that does not depend on the classes of their ports.

    Attributes:
      flow: whether the nodes are flows in or out of a region, not ops.
      dims: factor per dim, by port.
      sizes: extents of factors; blocked ones have extent 0.
      places: per factor, the (port, dim) pairs that it tiles.
      above: as in `OpRule`; () for most.
      held: per port and dim, the factors on it, major to minor.
      yields: factors that numbers point into: an op loops over one of them for want of others only.
    """

    flow: bool
    dims: tuple[Dims, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    above: tuple[tuple[int, ...], ...]
    held: tuple[tuple[tuple[int, ...], ...], ...]
    yields: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An op, or a flow in or out of a region, over classes.

    Attributes:
      op: id of the op that it stands for (of the region op for a flow).
      classes: by port, operands then results; a class that is read twice in one way has one port.
    """

    op: int
    classes: tuple[int, ...]
    form: Form

    @property
    def ports(self) -> Iterator[tuple[int, Dims]]:
        """(class, factor per dim) of each port."""
        return zip(self.classes, self.form.dims, strict=True)

    def walks(self, rule: OpRule, factors: tuple[int, ...]) -> bool:
        """True if the node may loop over three factors on two axes and their diagonal: one of them
        is a sum, to be walked in time, and every operand and result has two.
        """
        return (
            rule.walks
            and not self.form.flow
            and len(set(factors)) == 3
            and sum(bool(rule.reducers[f]) for f in factors) == 1
            and all(sum(f in dims for f in factors) == 2 for dims in self.form.dims)
        )


class Graph:
    """Classes and nodes of a module.

    Attributes:
      class_of: class per value id.
      shapes: shape per class.
      extents: the same with zeros, which nothing divides, where there are no elements: jax gives
        arrays without elements back whole.
      nodes: all nodes; `node_of[op.id]` is the op's node, or NONE where it was contracted.
      touching: per class, the nodes with a port on it.
    """

    def __init__(
        self,
        module: Module,
        table: RuleTable | None = None,
        *,
        contract: bool = False,
        alike: Sequence[Sequence[int]] = (),
    ) -> None:
        """A graph of `module`.

        Args:
          alike: ids of values that are tiled alike besides those that have to be.
        """
        table = table or RuleTable()
        self.module = module
        self.rules: list[OpRule] = [table(op) for op in module.ops]
        self.index = Index(module, self.rules)
        union = UnionFind(len(module.values))
        self._merge_ties(union)
        for first, *rest in alike:
            for other in rest:
                union.merge(first, other)
        contracted = self._contract(union) if contract else set()
        self.class_of = array("i")
        heads: list[int] = []  # the smallest of each class
        for v in range(len(module.values)):
            root = union.find(v)
            if root == v:
                heads.append(v)
            self.class_of.append(self.class_of[root] if root < v else len(heads) - 1)
        self.members = FlatLists(lambda: zip(self.class_of, itertools.count()), len(heads))
        self.shapes: list[Shape] = [module.values[v].type.shape for v in heads]
        self.extents = [(0,) * len(shape) if 0 in shape else shape for shape in self.shapes]
        self.nodes: list[Node] = []
        self.node_of = array("i", [NONE]) * len(module.ops)
        forms: dict[int, _Forms] = {}  # by rule: many ops share one
        for op in module.ops:
            if op.regions:
                self._add_flows(op)
            elif op.id not in contracted:
                self.node_of[op.id] = len(self.nodes)
                rule = self.rules[op.id]
                known = forms.get(id(rule))
                if known is None:
                    ports = [_spreading(rule, i) for i in range(len(rule.operands))]
                    known = forms[id(rule)] = _Forms(rule, (*ports, *rule.results))
                self._add(op, (*op.operands, *op.results), known)
        touching: list[list[int]] = [[] for _ in heads]
        for n, node in enumerate(self.nodes):
            for cls in dict.fromkeys(node.classes):
                touching[cls].append(n)
        self.touching = list(map(tuple, touching))
        self.spread = np.array(self.class_of, dtype=np.int32)
        self.op_nodes = np.array(self.node_of, dtype=np.int32)
        self.result_of = np.array(
            [op.results[0].id if op.results else NONE for op in module.ops], dtype=np.int32
        )
        self.region_ops = np.array([bool(op.regions) for op in module.ops], dtype=bool)

    @functools.cached_property
    def reach(self) -> Reach:
        """Adjacency of nodes and classes that propagation looks at."""
        return Reach(self.touching, [node.classes for node in self.nodes])

    def rows(self, tiles: array[int], loops: array[int], travels: bool) -> AxisRows:
        """Rows of an axis over all ops and values: classes spread to values, nodes to ops."""
        spread = np.frombuffer(tiles, dtype=np.int8)[self.spread]
        # A contracted op is elementwise: its factors are its result's dims.
        contracted = np.maximum(spread[self.result_of], NONE)
        known = np.append(np.frombuffer(loops, dtype=np.int8), NONE)[self.op_nodes]
        row = np.where(self.op_nodes >= 0, known, contracted)
        row[self.region_ops] = NONE
        bytes_of = array("b", row.astype(np.int8).tobytes()), array("b", spread.tobytes())
        return axis_rows(self.index, *bytes_of, travels)

    def _merge_ties(self, union: UnionFind) -> None:
        module = self.module
        for arg, result in module.ties:
            value = module.body.results[result]
            if isinstance(value, Value) and value.type.shape == module.body.args[arg].type.shape:
                union.merge(module.body.args[arg].id, value.id)
        for one, other in module.alike:
            union.merge(module.body.args[one].id, module.body.args[other].id)
        for op in module.ops:
            if op.regions:
                for r, i, s, j in flows_of(op).same:
                    union.merge(op.regions[r].args[i].id, op.regions[s].args[j].id)

    def _contract(self, union: UnionFind) -> set[int]:
        """Merges classes across identity elementwise ops; returns the ops that vanished."""
        module = self.module
        fixed = {v.id for v in module.body.args}
        fixed |= {v.id for v in module.body.results if isinstance(v, Value)}
        for op in module.ops:  # a region's boundary is where layouts may differ
            if self.rules[op.id].fixes:
                fixed |= {v.id for v in op.results}
            for region in op.regions:
                fixed |= {v.id for v in region.args}
                fixed |= {v.id for v in region.results if isinstance(v, Value)}
            if op.regions:
                fixed |= {v.id for v in op.results} | {v.id for _, v in op.inputs()}
        aside = watching(module, self.rules)  # what is printed joins nothing
        gone: set[int] = set()
        merging: dict[int, tuple[int, ...]] = {}  # by rule: operands of one tiling with the result
        for op in module.ops:
            if op.id in aside:
                continue
            rule = self.rules[op.id]
            operands = merging.get(id(rule))
            if operands is None:
                operands = merging[id(rule)] = _plain(rule)
            ports = [x.id for i in operands if isinstance(x := op.operands[i], Value)]
            if ports and not fixed.intersection(ports) and op.results[0].id not in fixed:
                gone.add(op.id)
                for other in ports:
                    union.merge(op.results[0].id, other)
        return gone

    def _add_flows(self, op: Op) -> None:
        for group in dict.fromkeys(outer_inner(op)):  # folded: the same for all of a class
            rank = min(len(v.type.shape) - lead for v, lead in group)
            ports = [(v, (NONE,) * lead + tuple(range(rank))) for v, lead in group]
            value, lead = group[0]
            rule = OpRule(Kind.REGION, value.type.shape[lead:], (), (), ("",) * rank)
            self._add(op, [v for v, _ in ports], _Forms(rule, [d for _, d in ports], flow=True))

    def _add(self, op: Op, ports: Sequence[Operand], forms: _Forms) -> None:
        class_of, dims = self.class_of, forms.dims
        classes: list[int] = []
        kept: list[int] = []
        for p, value in enumerate(ports):
            if not dims[p] or not isinstance(value, Value):
                continue
            cls = class_of[value.id]
            if cls in classes and any(
                c == cls and dims[q] == dims[p] for c, q in zip(classes, kept, strict=True)
            ):
                continue
            classes.append(cls)
            kept.append(p)
        self.nodes.append(Node(op.id, tuple(classes), forms(tuple(kept))))


class _Forms:
    """The forms of nodes of one rule, by the ports that they keep."""

    def __init__(self, rule: OpRule, dims: Sequence[Dims], *, flow: bool = False) -> None:
        """`dims`: factor per dim, by port."""
        self.rule, self.dims, self.flow = rule, dims, flow
        self.on = [tuple(rule.factors_on(port, d) for d in range(len(port))) for port in dims]
        self.sizes = tuple(0 if f in rule.blocked else n for f, n in enumerate(rule.sizes))
        self.known: dict[tuple[int, ...], Form] = {}

    def __call__(self, ports: tuple[int, ...]) -> Form:
        found = self.known.get(ports)
        if found is None:
            held = tuple(self.on[p] for p in ports)
            places: list[list[tuple[int, int]]] = [[] for _ in self.sizes]
            for p, on in enumerate(held):
                for d, factors in enumerate(on):
                    for f in factors:
                        if self.sizes[f]:
                            places[f].append((p, d))
            found = self.known[ports] = Form(
                self.flow,
                tuple(self.dims[p] for p in ports),
                self.sizes,
                tuple(map(tuple, places)),
                self.rule.above,
                held,
                self.rule.indexed,
            )
        return found


def _plain(rule: OpRule) -> tuple[int, ...]:
    """The operands of an identity elementwise op that have dims; () for all other ops."""
    if not rule.elementwise or rule.blocked or rule.reads or len(rule.results) != 1:
        return ()
    (result,) = rule.results
    operands = tuple(i for i, dims in enumerate(rule.operands) if dims)
    same = all(rule.operands[i] == result for i in operands)
    return operands if result and same and result == tuple(range(len(result))) else ()


def _spreading(rule: OpRule, operand: int) -> Dims:
    """Factors of an operand's dims, but for those whose tilings are no reason for a loop."""
    dims = rule.operands[operand]
    apart = {r.dim for r in rule.reads if r.operand == operand and not r.spreads}
    return tuple(NONE if d in apart else f for d, f in enumerate(dims)) if apart else dims
