"""Buffers and traffic of a program before any partitioning: the static half of the simulator.

Compilers recompute elementwise values inside their users instead of storing them, so only some
values exist in memory: arguments, results of other ops, values that cross a region's boundary. A
*kernel* is an op that stores its results; it reads the stored values that its operands come from.
An elementwise value with several uses is stored too when keeping its sources alive would cost
more than the value itself (the residual stream). So XLA:TPU's own liveness was found to behave.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import Places
from partir_search.rules.control_flow import flows_of
from partir_search.simulator.memory.loop_carries import Carried, carried, in_place, lent
from partir_search.simulator.memory.rematerialized import Readers, Users
from partir_search.simulator.target.traits import UNKNOWN, XlaTraits
from partir_search.simulator.time.fusion import Fused, fuse, reduces

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """Storage on a target where it differs from the program's (see `simulator/memory/dtypes.py`).

    Attributes:
      one_hot: ids of ops recomputed in their users though they are not elementwise.
      operands: ids of elementwise values that are stored, as products read them.
      wide: ids of values of which a form twice as wide is stored too, for the forward pass.
      at_once: by id of a product's result, whether its softmax is worked out in its own kernel
        (else in one of its own, that stores the exponentials); other products' in two.
      width: by value id, stored bytes as a multiple of the type's, where they differ.
      traits: of the target's compiler.
    """

    one_hot: Set[int] = frozenset()
    operands: Set[int] = frozenset()
    wide: Set[int] = frozenset()
    at_once: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    width: Mapping[int, float] = dataclasses.field(default_factory=dict)
    traits: XlaTraits = UNKNOWN


AS_WRITTEN = Storage()


@dataclasses.dataclass(eq=False, slots=True)
class RegionTraffic:
    """One region's stored values and when they live.

    Attributes:
      reads: per op position, the stored values that the op reads (empty: not a kernel).
      start / stop / value: live intervals over op positions, both ends included.
      weight: bytes that the interval holds, as a multiple of the value's.
      inner: per position of a region op, the traffic of its regions.
      fused: what the kernels become.
    """

    region: Region
    reads: dict[int, tuple[int, ...]]
    start: Ints
    stop: Ints
    value: Ints
    weight: Floats
    inner: dict[int, list[RegionTraffic]]
    fused: Fused


def analyse(module: Module, rules: list[OpRule], storage: Storage = AS_WRITTEN) -> RegionTraffic:
    """Traffic of the module's body. Donated, tied results live in their argument's buffer.

    Args:
      storage: what the target stores otherwise than the program says.
    """
    in_place = {r for a, r in module.ties if a in module.donated}
    free = {
        x.id for i, x in enumerate(module.body.results) if i in in_place and isinstance(x, Value)
    }
    users = module.users()
    return region_traffic(
        module.body, rules, users, frozenset(free), {v: (v,) for v in module.constants}, storage
    )


def region_traffic(
    region: Region,
    rules: list[OpRule],
    users: Users,
    free: frozenset[int] = frozenset(),
    outside: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    storage: Storage = AS_WRITTEN,
    carries: Carried = (),
) -> RegionTraffic:
    """Traffic of one region; `free` results take no bytes, `outside` gives captured values."""
    sources: dict[int, tuple[int, ...]] = dict(outside)
    nbytes: dict[int, int] = {}
    for arg in region.args:
        sources[arg.id] = (arg.id,)
        nbytes[arg.id] = arg.type.nbytes
    traits = storage.traits
    forced = {x.id for x in region.results if isinstance(x, Value)} | storage.operands
    for op in region.ops:
        if op.regions:
            forced.update(v.id for _, v in op.inputs())
    reads: dict[int, tuple[int, ...]] = {}
    inner: dict[int, list[RegionTraffic]] = {}
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    until: dict[int, int] = {}  # last use in the forward pass

    readers = Readers(region, rules, users, forced, storage.one_hot)

    def of(operand: Operand) -> tuple[int, ...]:
        return sources.get(operand.id, (operand.id,)) if isinstance(operand, Value) else ()

    def inlined(result: Value, leaves: tuple[int, ...]) -> bool:
        """True if products alone read `result`, making it in each of them moves fewer bytes, and
        it waits for a reduction, so that it can't be made where its sources are.
        """
        if not all(rules[u.id].contracts for u in users[result.id]):
            return False
        waits = any(
            reduces(rules[region.ops[made[s]].id]) and not set(leaves).isdisjoint(reads[made[s]])
            for s in leaves
            if s in made
        )
        each = sum(nbytes.get(s, 0) * storage.width.get(s, 1.0) for s in leaves)
        n = len(users[result.id])
        return waits and n * each < each + (n + 1) * result.type.nbytes

    for at, op in enumerate(region.ops):
        if rules[op.id].rests:  # looks at types and shardings only
            continue
        leaves = tuple(dict.fromkeys(s for x in op.operands for s in of(x)))
        if op.regions:
            inner[at] = inner_traffic(op, rules, users, outside, storage)
        if (rules[op.id].elementwise or op.id in storage.one_hot) and not op.regions:
            result = op.results[0]
            keep = len(op.results) == 1 and not (
                result.id in forced
                or len(leaves) > traits.max_fused_inputs
                or (
                    len(users[result.id]) > 1
                    and sum(nbytes.get(s, 0) for s in leaves)
                    > traits.materialize_ratio * result.type.nbytes
                    > 0
                    and not rules[op.id].reads  # a slice is read in place, however often
                    and sum(nbytes.get(s, 0) for s in readers.kept_for(op, leaves, made))
                    >= result.type.nbytes
                    and not (traits.recomputes_dot_operands and inlined(result, leaves))
                )
            )
            if keep or (len(op.results) > 1 and not any(r.id in forced for r in op.results)):
                for r in op.results:
                    sources[r.id] = leaves
                continue
        reads[at] = leaves
        for s in leaves:
            last[s] = at
            if not op.backward:
                until[s] = at
        for r in op.results:
            sources[r.id] = (r.id,)
            nbytes[r.id] = r.type.nbytes
            made[r.id] = last[r.id] = until[r.id] = at
    end = max(len(region.ops) - 1, 0)
    returned = {x.id for x in region.results if isinstance(x, Value)}
    dies = {v: at for v, at in last.items() if v not in returned}
    ends = last | {v: end for v in returned if v in made}
    for at in inner:
        ends.update((v, at - 1) for v in lent(region.ops[at], at, made, dies) if made[v] < at)
    free |= set(in_place(region, carries, rules, made, dies))
    for at in reads if traits.in_place_elementwise else ():
        if any(storage.width.get(v, 1.0) > 1.0 for v in reads[at]):
            continue
        for v in _reused(region.ops[at], rules[region.ops[at].id], reads[at], nbytes, made, dies):
            ends[v] = max(at - 1, made[v])
    live = [(made[v], ends[v], v) for v in made if v not in free]
    weight = [storage.width.get(v, 1.0) for v in made if v not in free]
    wide = [(made[v], until[v], v) for v in made if v in storage.wide]
    columns = np.array(live + wide, dtype=np.int64).reshape(-1, 3)
    weights = np.array(weight + [2.0] * len(wide))
    start, stop, value = columns[:, 0], columns[:, 1], columns[:, 2]
    owned = made.keys() | {region.args[arg].id for _, arg in carries}
    updates = [at for at in reads if _updates(region.ops[at], rules, at, owned, dies)]
    fused = fuse(region, rules, reads, nbytes, traits, storage.at_once, updates)
    return RegionTraffic(region, reads, start, stop, value, weights, inner, fused)


def inner_traffic(
    op: Op,
    rules: list[OpRule],
    users: Users,
    outside: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    storage: Storage = AS_WRITTEN,
) -> list[RegionTraffic]:
    """Traffic of an op's regions."""
    return [
        region_traffic(
            r, rules, users, outside=outside, storage=storage, carries=carried(op, number)
        )
        for number, r in enumerate(op.regions)
    ]


def _updates(
    op: Op, rules: list[OpRule], at: int, owned: Set[int], dies: Mapping[int, int]
) -> bool:
    """True if an op writes a part into a stored value that is dead afterwards."""
    if not rules[op.id].writes_into:
        return False
    whole, part = op.operands[:2]
    held = isinstance(whole, Value) and whole.id in owned and dies.get(whole.id) == at
    return held and isinstance(part, Value)


def _reused(
    op: Op,
    rule: OpRule,
    leaves: tuple[int, ...],
    nbytes: Mapping[int, int],
    made: Mapping[int, int],
    dies: Mapping[int, int],
) -> list[int]:
    """Values whose buffers the results of an elementwise kernel take: they die in it."""
    if not rule.elementwise:
        return []
    dying = [v for v in leaves if v in made and dies.get(v) == made[op.results[0].id]]
    taken: list[int] = []
    for r in op.results:
        same = (v for v in dying if nbytes[v] == r.type.nbytes and v not in taken)
        taken += list(same)[:1]
    return taken


@dataclasses.dataclass(eq=False, slots=True)
class Kernels:
    """All kernels of a module, as arrays over kernels.

    Attributes:
      op: [K] op ids.
      times: [K] runs per step: trip counts and fold counts.
      flops: [K] floating-point operations, unpartitioned.
      leader: [K] the kernel that it is fused into, often itself.
      touched / offsets: values read and written by kernel k: touched[offsets[k]:offsets[k + 1]].
      dtype: [K] of the first operand: it sets the matrix rate.
    """

    op: Ints
    times: Floats
    flops: Floats
    leader: Ints
    touched: Ints
    offsets: Ints
    dtype: list[str]

    def sums(self, each: Floats) -> Floats:
        """[K] sums of what stands for each value touched."""
        upto = np.zeros(len(each) + 1)
        np.cumsum(each, out=upto[1:])
        found: Floats = upto[self.offsets[1:]] - upto[self.offsets[:-1]]
        return found


def points(op: Op, rule: OpRule) -> float:
    """Floating-point operations of the whole op."""
    if not rule.flops_per_point:
        return 0.0
    sizes = rule.sizes or op.results[0].type.shape
    return rule.flops_per_point * math.prod(sizes)


def kernels(
    traffic: RegionTraffic,
    rules: list[OpRule],
    folded: Folded | None = None,
    rules_of_folded: list[OpRule] | None = None,
    storage: Storage = AS_WRITTEN,
) -> Kernels:
    """Kernels of a module's traffic; with `folded`, one per class, counted.

    Args:
      storage: what the target stores otherwise in the folded module's regions.
    """
    op: list[int] = []
    times: list[float] = []
    flops: list[float] = []
    leader: list[int] = []
    touched: list[int] = []
    offsets: list[int] = [0]
    dtype: list[str] = []

    def add(o: Op, rule: OpRule, values: tuple[int, ...], head: int, trips: float) -> None:
        leader.append(head)
        op.append(o.id)
        times.append(trips * o.count)
        flops.append(points(o, rule))
        touched.extend(values)
        offsets.append(len(touched))
        first = o.operands[0] if o.operands else o.results[0]
        dtype.append(str(first.type.dtype))

    def visit(region: RegionTraffic, table: list[OpRule], trips: float) -> None:
        fused = region.fused
        place: dict[int, int] = {}
        for at in region.reads:
            o = region.region.ops[at]
            place[at] = len(op)
            if at in region.inner:
                each = flows_of(o).trips
                for part, n in zip(region.inner[at], each, strict=True):
                    visit(part, table, trips * n)
            else:
                add(o, table[o.id], fused.touched[at], place[fused.leader[at]], trips)

    def visit_folded(
        whole: RegionTraffic, region: Region, places: Places, table: list[OpRule], trips: float
    ) -> None:
        assert folded is not None
        fused, place = whole.fused, dict[int, int]()
        for q, at in enumerate(places.positions):
            if at not in whole.reads:
                continue
            place[q] = len(op)
            o = region.ops[q]
            if at in places.opened:
                pairs = zip(whole.inner[at], o.regions, places.opened[at], strict=True)
                for (part, inner, left), n in zip(pairs, flows_of(o).trips, strict=True):
                    visit_folded(part, inner, left, table, trips * n)
            elif at in whole.inner:
                users = folded.module.users()
                parts = inner_traffic(o, table, users, storage=storage)
                for part, n in zip(parts, flows_of(o).trips, strict=True):
                    visit(part, table, trips * n)
            else:
                values = tuple(folded.class_of[v] for v in fused.touched[at])
                head = place.get(places.op_of[fused.leader[at]], len(op))
                add(o, table[o.id], tuple(v for v in values if v >= 0), head, trips)

    if folded is None:
        visit(traffic, rules, 1.0)
    else:
        assert rules_of_folded is not None
        visit_folded(traffic, folded.module.body, folded.body, rules_of_folded, 1.0)
    return Kernels(
        np.array(op, dtype=np.int64),
        np.array(times),
        np.array(flops),
        np.array(leader, dtype=np.int64),
        np.array(touched, dtype=np.int64),
        np.array(offsets, dtype=np.int64),
        dtype,
    )
