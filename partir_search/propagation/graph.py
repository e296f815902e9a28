"""Graph of a module for propagation: nodes over classes of values with one tiling.

Train state before and after the step is one class, and so are matching arguments of a loop's body
and condition. With `contract` a class also spans elementwise ops of one shape, for a smaller graph
and a faster search, but no argument: a parameter, its gradient and its optimizer state keep
separate tilings.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from partir_search.ir.analysis.axis_rows import AxisRows, axis_rows
from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Shape, Value
from partir_search.ir.data_flow import tied_values
from partir_search.ir.flat import FlatLists
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.passes.debug_ops import find_debug_ops
from partir_search.propagation.adjacency import Adjacency
from partir_search.rules.registry import RuleTable

Bools = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeStructure:
    """Factors of a node without its classes, shared by the nodes of one rule and one set of ports.

    Attributes:
      is_edge: the nodes are data-flow edges of a region op, not ops.
      dims: [ports][dims] factor of the dim (the most major of several), or NONE.
      sizes: [factors] extents; 0 for blocked factors.
      places: [factors] (port, dim) pairs tiled by a loop over the factor.
      major_factors: as in `OpRule`; () unless a dim has several factors.
      factors_on: [ports][dims] factors of the dim, major to minor.
      low_priority_factors: indexed factors (of gathers, scatters); a node loops over one only if no
        value asks for a factor of normal priority.
    """

    is_edge: bool
    dims: tuple[Dims, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    major_factors: tuple[tuple[int, ...], ...]
    factors_on: tuple[tuple[tuple[int, ...], ...], ...]
    low_priority_factors: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An op, or a data-flow edge of a region op, over classes.

    Attributes:
      op: id of the op; for an edge, of the region op.
      classes: [ports] operands, then results; equal uses of one class share a port.
    """

    op: int
    classes: tuple[int, ...]
    structure: NodeStructure

    @property
    def ports(self) -> Iterator[tuple[int, Dims]]:
        """(class, factor per dim) of each port."""
        return zip(self.classes, self.structure.dims, strict=True)

    def supports_ring(self, rule: OpRule, factors: tuple[int, ...]) -> bool:
        """True if the node may loop over three factors on two axes and their diagonal.

        Exactly one factor must be a sum, whose blocks the ring visits in turns, and every operand
        and result must have two of the three.
        """
        return (
            rule.supports_ring
            and not self.structure.is_edge
            and len(set(factors)) == 3
            and sum(bool(rule.reducers[f]) for f in factors) == 1
            and all(sum(f in dims for f in factors) == 2 for dims in self.structure.dims)
        )


class Graph:
    """Classes and nodes of a module.

    Attributes:
      class_of: [values] class.
      members: [classes] ids of the values of the class.
      shapes: [classes] shape.
      extents: `shapes`, with zeros (divided by no axis) for classes without elements: jax returns
        arrays without elements replicated.
      nodes: ops and data-flow edges.
      node_of: [ops] node of the op; NONE for contracted and region ops.
      touching: [classes] nodes with a port on the class.
    """

    def __init__(
        self,
        module: Module,
        table: RuleTable | None = None,
        *,
        contract: bool = False,
        alike: Sequence[Sequence[int]] = (),
    ) -> None:
        """Builds the graph of `module`.

        Args:
          table: rules of ops; default: the registry's.
          contract: merge the operands and results of elementwise ops.
          alike: groups of value ids to merge further.
        """
        table = table or RuleTable()
        self.module = module
        self.rules: list[OpRule] = [table(op) for op in module.ops]
        self.analysis = ModuleAnalysis(module, self.rules)
        union = UnionFind(len(module.values))
        self._merge_ties(union)
        for first, *rest in alike:
            for other in rest:
                union.merge(first, other)
        contracted = self._contract(union) if contract else set()
        self.class_of = array("i")
        heads: list[int] = []  # smallest value id of each class
        for v in range(len(module.values)):
            root = union.find(v)
            if root == v:
                heads.append(v)
            self.class_of.append(self.class_of[root] if root < v else len(heads) - 1)
        self.members = FlatLists(zip(self.class_of, itertools.count(), strict=False), len(heads))
        self.shapes: list[Shape] = [module.values[v].type.shape for v in heads]
        self.extents = [(0,) * len(shape) if 0 in shape else shape for shape in self.shapes]
        self.nodes: list[Node] = []
        self.node_of = array("i", [NONE]) * len(module.ops)
        structures: dict[int, _Structures] = {}  # by id of the rule: many ops share one
        for op in module.ops:
            if op.regions:
                self._add_edges(op)
            elif op.id not in contracted:
                self.node_of[op.id] = len(self.nodes)
                rule = self.rules[op.id]
                known = structures.get(id(rule))
                if known is None:
                    ports = [_propagating_dims(rule, i) for i in range(len(rule.operands))]
                    known = structures[id(rule)] = _Structures(rule, (*ports, *rule.results))
                self._add(op, (*op.operands, *op.results), known)
        touching: list[list[int]] = [[] for _ in heads]
        for n, node in enumerate(self.nodes):
            for cls in dict.fromkeys(node.classes):
                touching[cls].append(n)
        self.touching = list(map(tuple, touching))
        self._class_row = np.array(self.class_of, dtype=np.int32)
        self._node_row = np.array(self.node_of, dtype=np.int32)
        self._result_row = np.array(
            [op.results[0].id if op.results else NONE for op in module.ops], dtype=np.int32
        )
        self._has_regions = np.array([bool(op.regions) for op in module.ops], dtype=bool)

    @functools.cached_property
    def adjacency(self) -> Adjacency:
        """Adjacency of nodes and classes."""
        return Adjacency(self.touching, [node.classes for node in self.nodes])

    @functools.cached_property
    def op_nodes(self) -> Bools:
        """[nodes] True for nodes of ops with results, False for edges of regions."""
        ops = self.module.ops
        named = [not n.structure.is_edge and bool(ops[n.op].results) for n in self.nodes]
        return np.array(named, dtype=np.bool_)

    def rows(self, tiles: array[int], loops: array[int], defers: bool) -> AxisRows:
        """Rows of one axis for ops and values.

        Args:
          tiles: [classes] dim per class.
          loops: [nodes] factor per node, or a negative code.
          defers: defer reductions past linear ops.
        """
        tile_row = np.frombuffer(tiles, dtype=np.int8)[self._class_row]
        # A contracted op is elementwise: factor d is dim d of its result.
        contracted = np.maximum(tile_row[self._result_row], NONE)
        looped = np.append(np.frombuffer(loops, dtype=np.int8), NONE)[self._node_row]
        loop_row = np.where(self._node_row >= 0, np.maximum(looped, NONE), contracted)
        loop_row[self._has_regions] = NONE
        arrays = array("b", loop_row.astype(np.int8).tobytes()), array("b", tile_row.tobytes())
        return axis_rows(self.analysis, *arrays, defers)

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
                for r, i, s, j in self.rules[op.id].data_flow.shared:
                    union.merge(op.regions[r].args[i].id, op.regions[s].args[j].id)

    def _contract(self, union: UnionFind) -> set[int]:
        """Merges operands and results of elementwise ops; returns the ids of the contracted ops."""
        module = self.module
        fixed = {v.id for v in module.body.args}
        fixed |= {v.id for v in module.body.results if isinstance(v, Value)}
        for op in module.ops:  # layouts may differ across the boundary of a region
            if self.rules[op.id].fixed_by_user:
                fixed |= {v.id for v in op.results}
            for region in op.regions:
                fixed |= {v.id for v in region.args}
                fixed |= {v.id for v in region.results if isinstance(v, Value)}
            if op.regions:
                fixed |= {v.id for v in op.results} | {v.id for _, v in op.inputs()}
        # A debugging op merges no classes: printing decides no tiling.
        debug_ops = find_debug_ops(module, self.rules)
        contracted: set[int] = set()
        merging: dict[int, tuple[int, ...]] = {}  # by id of the rule: operands to merge
        for op in module.ops:
            if op.id in debug_ops:
                continue
            rule = self.rules[op.id]
            operands = merging.get(id(rule))
            if operands is None:
                operands = merging[id(rule)] = _elementwise_operands(rule)
            ports = [x.id for i in operands if isinstance(x := op.operands[i], Value)]
            if ports and not fixed.intersection(ports) and op.results[0].id not in fixed:
                contracted.add(op.id)
                for other in ports:
                    union.merge(op.results[0].id, other)
        return contracted

    def _add_edges(self, op: Op) -> None:
        """Adds a node per group of values joined across the boundary of a region of `op`."""
        edges = self.rules[op.id].data_flow
        for group in dict.fromkeys(tied_values(op, edges)):  # layers of a fold give equal groups
            rank = min(len(v.type.shape) - stacked for v, stacked in group)
            ports = [(v, (NONE,) * stacked + tuple(range(rank))) for v, stacked in group]
            value, stacked = group[0]
            rule = OpRule(Kind.REGION, value.type.shape[stacked:], (), (), ("",) * rank)
            structures = _Structures(rule, [d for _, d in ports], is_edge=True)
            self._add(op, [v for v, _ in ports], structures)

    def _add(self, op: Op, ports: Sequence[Operand], structures: _Structures) -> None:
        """Adds a node; scalars, literals and repeated uses get no port."""
        class_of, dims = self.class_of, structures.dims
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
        self.nodes.append(Node(op.id, tuple(classes), structures(tuple(kept))))


class _Structures:
    """Structures of the nodes of one rule, by their ports."""

    def __init__(self, rule: OpRule, dims: Sequence[Dims], *, is_edge: bool = False) -> None:
        """`dims`: [operands, then results][dims] factors."""
        self.rule, self.dims, self.is_edge = rule, dims, is_edge
        self.on = [tuple(rule.factors_on(port, d) for d in range(len(port))) for port in dims]
        self.sizes = tuple(0 if f in rule.blocked else n for f, n in enumerate(rule.sizes))
        self.known: dict[tuple[int, ...], NodeStructure] = {}

    def __call__(self, ports: tuple[int, ...]) -> NodeStructure:
        """Structure of a node with the ports at these positions of `dims`."""
        found = self.known.get(ports)
        if found is None:
            factors_on = tuple(self.on[p] for p in ports)
            places: list[list[tuple[int, int]]] = [[] for _ in self.sizes]
            for p, on in enumerate(factors_on):
                for d, factors in enumerate(on):
                    for f in factors:
                        if self.sizes[f]:
                            places[f].append((p, d))
            found = self.known[ports] = NodeStructure(
                is_edge=self.is_edge,
                dims=tuple(self.dims[p] for p in ports),
                sizes=self.sizes,
                places=tuple(map(tuple, places)),
                major_factors=self.rule.major_factors,
                factors_on=factors_on,
                low_priority_factors=self.rule.indexed,
            )
        return found


def _elementwise_operands(rule: OpRule) -> tuple[int, ...]:
    """Operands with dims of an elementwise op with one result and dims in the result's order; ()
    for ops of further kinds.
    """
    if not rule.elementwise or rule.blocked or rule.reads or len(rule.results) != 1:
        return ()
    (result,) = rule.results
    operands = tuple(i for i, dims in enumerate(rule.operands) if dims)
    same = all(rule.operands[i] == result for i in operands)
    return operands if result and same and result == tuple(range(len(result))) else ()


def _propagating_dims(rule: OpRule, operand: int) -> Dims:
    """Factors of an operand's dims; NONE for dims whose windows do not propagate both ways."""
    dims = rule.operands[operand]
    apart = {r.dim for r in rule.reads if r.operand == operand and not r.propagates_both_ways}
    return tuple(NONE if d in apart else f for d, f in enumerate(dims)) if apart else dims
