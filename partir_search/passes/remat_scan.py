"""Rematerialization within scans: each iteration's residuals are recomputed from its carry.

The forward scan over layers hands all residuals to the backward scan, stacked over the layers.
After the rewrite, the carry entering each iteration is stored, and the backward scan repeats the
iteration's forward pass. `jax.checkpoint` on the scanned function gives the same program; here a
trace without `jax.checkpoint` is rewritten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.remat_copies import RematRewriter
from partir_search.rules.registry import role_of

Pair = tuple[Operand, Value]  # operand of the scan, argument of its region
MIN_GAIN = 2.0  # bytes freed by recomputing over bytes newly stored, at least


@dataclasses.dataclass(frozen=True, slots=True)
class ScanRemat:
    """Segment of a scan to be computed again in the backward scans.

    Attributes:
      position: of the scan in the module's body.
      users: positions of the backward scans.
      dropped: indices of the scan's results that are no longer stacked.
      ops: positions, in the scan's region, of the ops to recompute.
      carries: indices of the region's arguments whose values are stored instead.
      kept: by index of a carry, the result of the scan that stacks its values already.
    """

    position: int
    users: tuple[int, ...]
    dropped: tuple[int, ...]
    ops: tuple[int, ...]
    carries: tuple[int, ...]
    kept: Mapping[int, int]


def find_scan_remats(module: Module, forward: int) -> list[ScanRemat]:
    """Returns the scans among the first `forward` ops whose recomputation frees enough memory."""
    found = (
        _scan_remat(module, at, forward) for at in range(forward) if _is_scan(module.body.ops[at])
    )
    return [r for r in found if r is not None]


def _is_scan(op: Op) -> bool:
    return role_of(op) is Role.SCAN


def _scan_remat(module: Module, at: int, forward: int) -> ScanRemat | None:
    """Returns the segment of the scan at a position worth recomputing, or None."""
    op = module.body.ops[at]
    region, carries = op.regions[0], int(op.params["num_carry"])
    consts = int(op.params["num_consts"])
    uses = def_use(module)
    returned = {x.id for x in module.body.results if isinstance(x, Value)}
    arg_index = {a.id: i for i, a in enumerate(region.args)}

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
        if isinstance(inner, Value) and inner.id in arg_index:
            kept[arg_index[inner.id]] = k
        elif (
            isinstance(inner, Value)
            and uses.makers[inner.id]
            and feeds_backward_scans(op.results[k])
        ):
            dropped.append(k)
    recomputed, needed = _slice(region, uses, dropped)
    if not recomputed:
        return None
    stored = tuple(sorted(i for i in needed if consts <= i < consts + carries))
    freed_bytes = sum(op.results[k].type.nbytes for k in dropped)
    length = int(op.params["length"])
    stored_bytes = sum(length * region.args[i].type.nbytes for i in stored if i not in kept)
    users = {int(uses.position[g.id]) for k in dropped for g in uses.users[op.results[k].id]}
    if freed_bytes <= MIN_GAIN * stored_bytes:
        return None
    return ScanRemat(at, tuple(sorted(users)), tuple(dropped), recomputed, stored, kept)


def _slice(
    region: Region, uses: DefUse, results: Sequence[int]
) -> tuple[tuple[int, ...], set[int]]:
    """Returns positions of the ops computing some results, and the indices of arguments needed.

    No positions are returned if an op has an effect.
    """
    arg_index = {a.id: i for i, a in enumerate(region.args)}
    recomputed: set[int] = set()
    needed: set[int] = set()
    todo = [x.id for k in results if isinstance(x := region.results[k], Value)]
    while todo:
        v = todo.pop()
        if v in arg_index:
            needed.add(arg_index[v])
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
        # Stacked carries, by position of the scan and index of the argument.
        self.stacked: dict[tuple[int, int], Value] = {}

    def ops(self, old: Region) -> list[Op]:
        ops = []
        for at, op in enumerate(old.ops):
            new = self.op(op)
            if at in self.forward:
                new = self.save_carries(new, self.forward[at])
            for r in self.backward.get(at, ()):
                new = self.recompute(new, r)
            ops.append(new)
        return ops

    def save_carries(self, new: Op, remat: ScanRemat) -> Op:
        """Returns the forward scan with stacked carries in place of the dropped results."""
        region, old = new.regions[0], self.module.body.ops[remat.position]
        remaining = [k for k in range(len(new.results)) if k not in remat.dropped]
        inner, outer = [region.results[k] for k in remaining], [new.results[k] for k in remaining]
        for i in remat.carries:
            if i in remat.kept:
                self.stacked[remat.position, i] = new.results[remat.kept[i]]
                continue
            arg = region.args[i]
            shape = (int(new.params["length"]), *arg.type.shape)
            name = f"{old.results[0].name}_carry_{i}"
            value = Value(-1, dataclasses.replace(arg.type, shape=shape), name)
            self.stacked[remat.position, i] = value
            inner.append(arg)
            outer.append(value)
        body = Region(region.args, region.ops, tuple(inner))
        return dataclasses.replace(new, results=tuple(outer), regions=(body,), key=None)

    def recompute(self, new: Op, remat: ScanRemat) -> Op:
        """Returns a (copied) backward scan that repeats the forward iteration first."""
        forward = self.module.body.ops[remat.position]
        forward_region, region = forward.regions[0], new.regions[0]
        backward_consts = int(new.params["num_consts"])
        dropped = {
            id(self.value(forward.results[k])): forward_region.results[k] for k in remat.dropped
        }
        _, needed = _slice(forward_region, def_use(self.module), remat.dropped)
        forward_consts = int(forward.params["num_consts"])
        carry_stop = forward_consts + int(forward.params["num_carry"])
        inside: dict[int, Value] = {}  # by id of the forward region's value: the recomputed one
        new_consts: list[Pair] = []  # read whole by each iteration
        new_inputs: list[Pair] = []  # one element read by each iteration
        for i in sorted(needed):
            arg = forward_region.args[i]
            inside[arg.id] = fresh = Value(-1, arg.type, f"{arg.name}_again")
            if i < forward_consts:
                new_consts.append((self.operand(forward.operands[i]), fresh))
            elif i < carry_stop:
                new_inputs.append((self.stacked[remat.position, i], fresh))
            else:
                new_inputs.append((self.operand(forward.operands[i]), fresh))
        ops = []
        for at in remat.ops:
            again = self.copy(forward_region.ops[at], inside, "_again")
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
