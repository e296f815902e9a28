"""Rematerialization within scans: each iteration's residuals are recomputed from its carry.

The forward scan over layers hands all residuals to the backward scan, stacked over the layers.
After the rewrite, the carry entering each iteration is stored, and the backward scan repeats the
iteration's forward pass, but for ops with stored results. `jax.checkpoint` on the scanned function,
with a policy for these results, gives the same program; here a trace without `jax.checkpoint` is
rewritten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.remat_copies import AGAIN, ENTERING, STACKED, RematRewriter
from partir_search.rules.registry import role_of

Pair = tuple[Operand, Value]  # operand of the scan, argument of its region
MIN_GAIN = 2.0  # bytes freed by recomputing over bytes newly stored, at least


@dataclasses.dataclass(frozen=True, slots=True)
class ScanRemat:
    """Segment of a scan to be computed again in the backward scans.

    Attributes:
      position: of the scan in the module's body.
      users: positions of the backward scans.
      dropped: indices of the scan's results no longer stacked.
      ops: positions, in the scan's region, of the ops to recompute.
      stacked: ids of values of the scan's region, stored for all iterations for these ops: carries,
        and results of ops with stored results.
      kept: by id of a value of the region, the scan's result stacked without recomputation.
    """

    position: int
    users: tuple[int, ...]
    dropped: tuple[int, ...]
    ops: tuple[int, ...]
    stacked: tuple[int, ...]
    kept: Mapping[int, int]

    @property
    def added(self) -> tuple[int, ...]:
        """Ids of the newly stacked values of the region."""
        return tuple(v for v in self.stacked if v not in self.kept)


def find_scan_remats(module: Module, forward: int) -> list[ScanRemat]:
    """Returns the scans among the first `forward` ops whose recomputation frees enough memory."""
    uses, ops = def_use(module), module.body.ops
    found = (scan_remat(module, uses, at, forward) for at in range(forward) if _is_scan(ops[at]))
    return [r for r in found if r is not None and _frees_enough(module, r)]


def _is_scan(op: Op) -> bool:
    return role_of(op) is Role.SCAN


def _frees_enough(module: Module, remat: ScanRemat) -> bool:
    op = module.body.ops[remat.position]
    freed_bytes = sum(op.results[k].type.nbytes for k in remat.dropped)
    added = (module.values[v].type.nbytes for v in remat.added)
    return freed_bytes > MIN_GAIN * int(op.params["length"]) * sum(added)


def scan_remat(
    module: Module, uses: DefUse, at: int, forward: int, stored: Sequence[int] = ()
) -> ScanRemat | None:
    """Returns the segment of a scan; None if no op of an iteration runs again.

    Args:
      uses: of the module.
      at: position of the scan in the module's body.
      forward: position of the first op of the backward pass.
      stored: positions, in the scan's region, of ops with results stored for all iterations.
    """
    op = module.body.ops[at]
    region, carries = op.regions[0], int(op.params["num_carry"])
    consts = int(op.params["num_consts"])
    returned = {x.id for x in module.body.results if isinstance(x, Value)}
    saved = {r.id for p in stored for r in region.ops[p].results}
    given = {a.id for a in region.args} | saved

    def feeds_backward_scans(result: Value) -> bool:
        """True if only backward scans read a result, an element for each iteration."""
        users = uses.users[result.id]
        if result.id in returned or not users:
            return False
        for g in users:
            if uses.position[g.id] < forward or not _is_scan(g):
                return False
            first = g.params["num_consts"] + g.params["num_carry"]
            if g.params["length"] != op.params["length"] or result in g.operands[:first]:
                return False
        return True

    dropped, kept = [], dict[int, int]()
    for k in range(carries, len(op.results)):
        inner = region.results[k]
        if isinstance(inner, Value) and inner.id in given:
            kept[inner.id] = k
        elif (
            isinstance(inner, Value)
            and uses.makers[inner.id]
            and feeds_backward_scans(op.results[k])
        ):
            dropped.append(k)
    recomputed, needed = _slice(region, uses, dropped, given)
    if not recomputed:
        return None
    carried = {a.id for a in region.args[consts : consts + carries]}
    users = {int(uses.position[g.id]) for k in dropped for g in uses.users[op.results[k].id]}
    stacked = tuple(sorted(needed & (carried | saved)))
    return ScanRemat(at, tuple(sorted(users)), tuple(dropped), recomputed, stacked, kept)


def copied_ops(module: Module, uses: DefUse, remat: ScanRemat, user: int) -> tuple[int, ...]:
    """Positions, in the scan's region, of the ops recomputed by a backward scan.

    Ops for residuals read by further backward scans alone are left out.

    Args:
      uses: of the module.
      user: position of the backward scan in the module's body.
    """
    scan, backward = module.body.ops[remat.position], module.body.ops[user]
    region, inner = scan.regions[0], backward.regions[0]
    returned = {x for x in inner.results if isinstance(x, Value)}
    pairs = zip(backward.operands, inner.args, strict=True)
    read = {id(x) for x, arg in pairs if uses.users[arg.id] or arg in returned}
    results = [k for k in remat.dropped if id(scan.results[k]) in read]
    saved = (v for v in remat.stacked if uses.makers[v] is not None)
    return _slice(region, uses, results, {a.id for a in region.args}.union(saved))[0]


def _slice(
    region: Region, uses: DefUse, results: Sequence[int], given: Container[int]
) -> tuple[tuple[int, ...], set[int]]:
    """Returns positions of the ops computing some results, and the ids of `given` values needed.

    No positions are returned if an op has an effect.
    """
    recomputed: set[int] = set()
    needed: set[int] = set()
    todo = [x.id for k in results if isinstance(x := region.results[k], Value)]
    while todo:
        v = todo.pop()
        if v in given:
            needed.add(v)
        elif (op := uses.makers[v]) and (at := int(uses.position[op.id])) not in recomputed:
            if op.effect:
                return (), needed
            recomputed.add(at)
            todo += [x.id for _, x in op.inputs()]
    return tuple(sorted(recomputed)), needed


def remat_scans(module: Module, found: Sequence[ScanRemat]) -> Module:
    """Returns the module with iterations of some scans recomputed; ops keep their positions."""
    return _Rewriter(module, found).run()


class _Rewriter(RematRewriter):
    """Rewrites some scans of a module, and the backward scans that read their residuals."""

    def __init__(self, module: Module, found: Sequence[ScanRemat]) -> None:
        super().__init__(module)
        self.forward = {r.position: r for r in found}
        self.backward = {n: [r for r in found if n in r.users] for r in found for n in r.users}
        # Stacked values, by id of the value of the scan's region.
        self.stacked: dict[int, Value] = {}

    def ops(self, old: Region) -> list[Op]:
        ops = []
        for at, op in enumerate(old.ops):
            new = self.op(op)
            if at in self.forward:
                new = self.stack(new, self.forward[at])
            for r in self.backward.get(at, ()):
                new = self.recompute(new, r)
            ops.append(new)
        return ops

    def stack(self, new: Op, remat: ScanRemat) -> Op:
        """Returns the forward scan with newly stacked values in place of the dropped results."""
        region, old = new.regions[0], self.module.body.ops[remat.position].regions[0]
        remaining = [k for k in range(len(new.results)) if k not in remat.dropped]
        inner, outer = [region.results[k] for k in remaining], [new.results[k] for k in remaining]
        copies = dict(zip((a.id for a in old.args), region.args, strict=True))
        for op, copied in zip(old.ops, region.ops, strict=True):
            copies |= zip((r.id for r in op.results), copied.results, strict=True)
        for v in remat.stacked:
            if v in remat.kept:
                self.stacked[v] = new.results[remat.kept[v]]
                continue
            each = self.module.values[v]
            shape = (int(new.params["length"]), *each.type.shape)
            value = Value(-1, dataclasses.replace(each.type, shape=shape), f"{each.name}{STACKED}")
            self.stacked[v] = value
            inner.append(copies[v])
            outer.append(value)
        body = Region(region.args, region.ops, tuple(inner))
        return dataclasses.replace(new, results=tuple(outer), regions=(body,), key=None)

    def recompute(self, new: Op, remat: ScanRemat) -> Op:
        """Returns a (copied) backward scan that repeats the forward iteration first."""
        forward = self.module.body.ops[remat.position]
        forward_region, region = forward.regions[0], new.regions[0]
        backward_consts = int(new.params["num_consts"])
        elements = backward_consts + int(new.params["num_carry"])
        dropped = {
            id(self.value(forward.results[k])): forward_region.results[k] for k in remat.dropped
        }
        read = {v.id for at in remat.ops for _, v in forward_region.ops[at].inputs()}
        forward_consts = int(forward.params["num_consts"])
        inside: dict[int, Value] = {}  # by id of the forward region's value: the recomputed one
        new_consts: list[Pair] = []  # read whole by each iteration
        new_inputs: list[Pair] = []  # one element read by each iteration
        for i, arg in enumerate(forward_region.args):
            if arg.id in read and arg.id not in remat.stacked:
                inside[arg.id] = fresh = Value(-1, arg.type, f"{arg.name}{AGAIN}")
                pairs = new_consts if i < forward_consts else new_inputs
                pairs.append((self.operand(forward.operands[i]), fresh))
        by_element = zip(new.operands[elements:], region.args[elements:], strict=True)
        known = {id(operand): arg for operand, arg in by_element}
        carried = {arg.id for arg in forward_region.args}
        for v in remat.stacked:
            value, stack = self.module.values[v], self.stacked[v]
            if id(stack) in known:
                inside[v] = known[id(stack)]
            else:
                suffix = AGAIN if v in carried else ENTERING
                inside[v] = fresh = Value(-1, value.type, f"{value.name}{suffix}")
                new_inputs.append((stack, fresh))
        ops = []
        for at in remat.ops:
            again = self.copy(forward_region.ops[at], inside, AGAIN)
            ops.append(dataclasses.replace(again, backward=True))
            inside |= {
                o.id: v for o, v in zip(forward_region.ops[at].results, again.results, strict=True)
            }
        replaced: dict[int, Value] = {}  # by `id` of an argument of the copied region
        kept: list[Pair] = []
        for operand, arg in zip(new.operands, region.args, strict=True):
            result = dropped.get(id(operand))
            if isinstance(result, Value):
                replaced[id(arg)] = inside[result.id]
            else:
                kept.append((operand, arg))
        new_pairs = [*kept[:backward_consts], *new_consts, *kept[backward_consts:], *new_inputs]
        body = Region(
            tuple(a for _, a in new_pairs),
            (*ops, *(_with_operands(op, replaced) for op in region.ops)),
            tuple(replaced.get(id(x), x) for x in region.results),
        )
        params = {**new.params, "num_consts": backward_consts + len(new_consts)}
        params.pop("linear", None)
        return dataclasses.replace(
            new,
            operands=tuple(o for o, _ in new_pairs),
            regions=(body,),
            params=params,
            key=None,
        )


def _with_operands(op: Op, swapped: Mapping[int, Value]) -> Op:
    """Returns the op with some operands replaced, by `id` of the operand."""
    operands = tuple(swapped.get(id(x), x) for x in op.operands)
    return dataclasses.replace(op, operands=operands)
