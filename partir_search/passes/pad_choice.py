"""Choice of the uneven dims worth padding until they divide by the mesh.

A dim of 50,257 cannot be tiled by 8; one of 50,264 can. Dims mapped to each other by an op are
padded together: these dims form a class, found by union over the factors of rules. `pad.pad_module`
rewrites the program; arguments and results keep their shapes.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Value
from partir_search.ir.data_flow import tied_values
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, OpRule

MAX_GROWTH = 1.125  # largest ratio of padded to original extent
MIN_SHARE = 0.02  # least share of the program's FLOPs in contractions over a padded dim

_MASKED = frozenset({"", "sum", "max", "min", "and", "or"})


@dataclasses.dataclass(frozen=True, slots=True)
class Pad:
    """A dim to pad, with all dims of its class.

    Attributes:
      value: name of a value.
      dim: dim of the value.
      size: extent after padding.
    """

    value: str
    dim: int
    size: int


class DimClasses:
    """Classes of dims that are padded together or not at all.

    Attributes:
      count: number of dims of all values; class numbers are below `count`.
      padded: extent after padding, by class.
    """

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        self.module, self.rules = module, rules
        starts = itertools.accumulate((len(v.type.shape) for v in module.values), initial=0)
        *self._start, self.count = starts
        self._classes = UnionFind(self.count)
        self.padded: dict[int, int] = {}
        paddable: dict[
            int, tuple[bool, ...]
        ] = {}  # by id of the rule; ops of one rule have equal types
        for op, rule in zip(module.ops, rules, strict=True):
            if id(rule) not in paddable:
                paddable[id(rule)] = tuple(_may_pad(op, rule, f) for f in range(len(rule.sizes)))
        self._paddable = [paddable[id(rule)] for rule in rules]
        for op in module.ops:
            for places in self._together(op):
                first, *rest = places
                for other in rest:
                    self._classes.merge(self._at(*first), self._at(*other))

    def _together(self, op: Op) -> Iterator[list[tuple[Value, int]]]:
        """Yields lists of dims that an op forces into one class."""
        if op.regions:
            edges = self.rules[op.id].data_flow
            for group in tied_values(op, edges):
                rank = min(len(v.type.shape) - stacked for v, stacked in group)
                yield from ([(v, stacked + d) for v, stacked in group] for d in range(rank))
            for r, i, s, j in edges.shared:
                one, two = op.regions[r].args[i], op.regions[s].args[j]
                yield from ([(one, d), (two, d)] for d in range(len(one.type.shape)))
            return
        rule = self.rules[op.id]
        values: list[tuple[Operand, tuple[int, ...]]] = [
            *zip(op.operands, rule.operands, strict=True),
            *zip(op.results, rule.results, strict=True),
        ]
        for f, paddable in enumerate(self._paddable[op.id]):
            if paddable:
                yield [
                    (v, dims.index(f))
                    for at, (v, dims) in enumerate(values)
                    if isinstance(v, Value)
                    and f in dims
                    and not (at < len(op.operands) and rule.window_on(at, dims.index(f)))
                ]

    def of(self, value: Value, dim: int) -> int:
        """Returns the class of a dim."""
        return self._classes.find(self._at(value, dim))

    def _at(self, value: Value, dim: int) -> int:
        return self._start[value.id] + dim

    def carries(self, op: Op, factor: int) -> bool:
        """True if the op can compute with a padded factor."""
        return factor >= 0 and self._paddable[op.id][factor]

    def read_size(self, op: Op, operand: int, dim: int) -> int:
        """Returns the extent of a dim as read by an op: padded if the op and the class allow."""
        x, rule = op.operands[operand], self.rules[op.id]
        f, n = rule.operands[operand][dim], x.type.shape[dim]
        if not isinstance(x, Value) or f == NONE:
            return n
        if not rule.window_on(operand, dim):
            return self.size(x, dim) if self.carries(op, f) else n
        how = rule.resizing
        if how is None or (operand, dim) in how.fixed or not self.carries(op, f):
            return n
        return self.size(x, dim)

    def size(self, value: Value, dim: int) -> int:
        """Returns the extent of a dim, after padding if its class is padded."""
        return self.padded.get(self.of(value, dim), value.type.shape[dim])


def _may_pad(op: Op, rule: OpRule, f: int) -> bool:
    """True if a factor may exceed its original size: no dim has a second factor beside it.

    Factors of size 1 may not grow: their dims broadcast and are squeezed.
    """
    paddable = rule.tolerates_padding and f not in rule.blocked and rule.reducers[f] in _MASKED
    read = {(r.operand, r.dim) for r in rule.reads if rule.operands[r.operand][r.dim] == f}
    if not paddable or rule.sizes[f] == 1 or (read and rule.resizing is None):
        return False
    types = [*(x.type for x in op.operands), *(r.type for r in op.results)]
    found = False
    for at, (kind, dims) in enumerate(zip(types, (*rule.operands, *rule.results), strict=True)):
        d = rule.dim_of(dims, f)
        if d != NONE and (at, d) not in read:
            found = True
            if rule.factors_on(dims, d) != (f,) or kind.shape[d] != rule.sizes[f]:
                return False
    return found


def find_pads(module: Module, rules: Sequence[OpRule], mesh: MeshShape) -> tuple[Pad, ...]:
    """Returns pads for heavy classes divided badly by the mesh, if padding lengthens little.

    A class is heavy if contractions over its dims do more than `MIN_SHARE` of all operations.
    """
    runs: dict[int, int] = collections.Counter(id(rule) for rule in rules)
    work: dict[int, float] = collections.defaultdict(float)  # FLOPs by extent of a factor
    total = 0.0
    for rule in {id(rule): rule for rule in rules if rule.contracts}.values():
        flops = runs[id(rule)] * rule.flops_per_point * math.prod(rule.sizes)
        total += flops
        for n in set(rule.sizes):
            work[n] += flops
    heavy = [n for n, flops in work.items() if flops > MIN_SHARE * total]
    sizes = {n: size for n in heavy if (size := _padded_size(n, mesh))}
    if not sizes:
        return ()
    classes = DimClasses(module, rules)
    weight: dict[int, float] = collections.defaultdict(float)
    for op in module.ops:
        rule = rules[op.id]
        if op.regions or not rule.contracts:
            continue
        flops = rule.flops_per_point * math.prod(rule.sizes)
        found = {
            classes.of(v, dims.index(f))
            for f in range(len(rule.sizes))
            if classes.carries(op, f)
            for v, dims in zip(op.results, rule.results, strict=True)
            if f in dims
        }
        for i, v in op.inputs():
            dims = rule.operands[i]
            found |= {classes.of(v, d) for d in range(len(dims)) if classes.carries(op, dims[d])}
        for cls in found:
            weight[cls] += flops
    pads: dict[int, Pad] = {}
    for v in module.values:
        for d, n in enumerate(v.type.shape):
            cls = classes.of(v, d)
            if n in sizes and cls not in pads and weight[cls] > MIN_SHARE * total:
                pads[cls] = Pad(v.name, d, sizes[n])
    return tuple(pads.values())


def _padded_size(n: int, mesh: MeshShape) -> int:
    """Returns the next extent divisible by the most devices.

    0 if padding gains nothing, or if each axis of the user's mesh divides `n` already.
    """
    if all(n % mesh.size(mesh.axes(name)) == 0 for name in mesh.whole):
        return 0
    best = (1, 0)
    for k in range(1, len(mesh.sizes) + 1):
        for sizes in itertools.combinations(mesh.sizes, k):
            tiles = math.prod(sizes)
            size = -(-n // tiles) * tiles
            if n >= tiles and size <= MAX_GROWTH * n:
                best = max(best, (tiles, -size))
    return -best[1] if best[0] > 1 and n % best[0] else 0
