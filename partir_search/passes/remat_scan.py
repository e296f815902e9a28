"""Rematerialisation inside of scans: an iteration's residuals are computed again from its carry.

The forward pass of a scan over layers hands the backward pass everything that it needs, stacked
over the layers. Instead, the carry that enters each iteration is kept, and the backward scan runs
the iteration's forward pass again: what `jax.checkpoint` on the scanned function gives, here as a
rewrite of a program that was traced without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.remat_copies import RematRewriter
from partir_search.rules.registry import role_of

Pair = tuple[Operand, Value]  # outside, and as the region's argument
WORTH = 2.0  # bytes that computing again must free, as a multiple of those that it keeps


@dataclasses.dataclass(frozen=True, slots=True)
class Rerun:
    """Part of a scan that is computed again.

    Attributes:
      position: of the scan among the body's ops; `users` are those of the backward scans.
      dropped: results of the scan's region that are not stacked any more.
      ops: positions in the region of the ops that run again.
      carries: arguments of the region whose values are kept instead.
      kept: of these the results that stack them already.
    """

    position: int
    users: tuple[int, ...]
    dropped: tuple[int, ...]
    ops: tuple[int, ...]
    carries: tuple[int, ...]
    kept: Mapping[int, int]


def find_reruns(module: Module, forward: int) -> list[Rerun]:
    """Scans among the first `forward` ops that free much if their iterations are run again."""
    found = (_rerun(module, at, forward) for at in range(forward) if _is_scan(module.body.ops[at]))
    return [r for r in found if r is not None]


def _is_scan(op: Op) -> bool:
    return role_of(op) is Role.SCAN


def _rerun(module: Module, at: int, forward: int) -> Rerun | None:
    op = module.body.ops[at]
    region, carries = op.regions[0], int(op.params["num_carry"])
    consts = int(op.params["num_consts"])
    uses = def_use(module)
    returned = {x.id for x in module.body.results if isinstance(x, Value)}
    place = {a.id: i for i, a in enumerate(region.args)}

    def late(result: Value) -> bool:
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
        if isinstance(inner, Value) and inner.id in place:
            kept[place[inner.id]] = k
        elif isinstance(inner, Value) and uses.makers[inner.id] and late(op.results[k]):
            dropped.append(k)
    again, needed = _slice(region, uses, dropped)
    if not again:
        return None
    held = tuple(sorted(i for i in needed if consts <= i < consts + carries))
    freed = sum(op.results[k].type.nbytes for k in dropped)
    length = int(op.params["length"])
    new = sum(length * region.args[i].type.nbytes for i in held if i not in kept)
    users = {int(uses.position[g.id]) for k in dropped for g in uses.users[op.results[k].id]}
    if freed <= WORTH * new:
        return None
    return Rerun(at, tuple(sorted(users)), tuple(dropped), again, held, kept)


def _slice(
    region: Region, uses: DefUse, results: Sequence[int]
) -> tuple[tuple[int, ...], set[int]]:
    """Positions of the ops that make some results of a region, and positions of the arguments that
    they need. No ops if one of them has an effect.
    """
    place = {a.id: i for i, a in enumerate(region.args)}
    again: set[int] = set()
    needed: set[int] = set()
    todo = [x.id for k in results if isinstance(x := region.results[k], Value)]
    while todo:
        v = todo.pop()
        if v in place:
            needed.add(place[v])
        elif (op := uses.makers[v]) and (at := int(uses.position[op.id])) not in again:
            if op.effect:
                return (), needed
            again.add(at)
            todo += [x.id for _, x in op.inputs()]
    return tuple(sorted(again)), needed


def rerun(module: Module, found: Sequence[Rerun]) -> Module:
    """The module with these scans' iterations run again. Positions of ops stay what they were."""
    return _Rewriter(module, found).run()


class _Rewriter(RematRewriter):
    """Rewrites some scans of a module, and those that read their residuals."""

    def __init__(self, module: Module, found: Sequence[Rerun]) -> None:
        super().__init__(module)
        self.forward = {r.position: r for r in found}
        self.backward = {n: [r for r in found if n in r.users] for r in found for n in r.users}
        self.stacked: dict[tuple[int, int], Value] = {}  # kept carries by scan and argument

    def ops(self, old: Region) -> list[Op]:
        ops = []
        for at, op in enumerate(old.ops):
            new = self.op(op)
            if at in self.forward:
                new = self.saving(new, self.forward[at])
            for r in self.backward.get(at, ()):
                new = self.rerunning(new, r)
            ops.append(new)
        return ops

    def saving(self, new: Op, r: Rerun) -> Op:
        """The scan without the results that are computed again, with the carries instead."""
        region, old = new.regions[0], self.module.body.ops[r.position]
        left = [k for k in range(len(new.results)) if k not in r.dropped]
        inner, outer = [region.results[k] for k in left], [new.results[k] for k in left]
        for i in r.carries:
            if i in r.kept:
                self.stacked[r.position, i] = new.results[r.kept[i]]
                continue
            arg = region.args[i]
            shape = (int(new.params["length"]), *arg.type.shape)
            name = f"{old.results[0].name}_carry_{i}"
            value = Value(-1, dataclasses.replace(arg.type, shape=shape), name)
            self.stacked[r.position, i] = value
            inner.append(arg)
            outer.append(value)
        body = Region(region.args, region.ops, tuple(inner))
        return dataclasses.replace(new, results=tuple(outer), regions=(body,), key=None)

    def rerunning(self, new: Op, r: Rerun) -> Op:
        """A (copied) backward scan that runs an iteration of the forward one first."""
        f = self.module.body.ops[r.position]
        source, region = f.regions[0], new.regions[0]
        consts = int(new.params["num_consts"])
        gone = {id(self.value(f.results[k])): source.results[k] for k in r.dropped}
        _, needed = _slice(source, def_use(self.module), r.dropped)
        fixed = int(f.params["num_consts"])
        moving = fixed + int(f.params["num_carry"])
        inside: dict[int, Value] = {}  # the forward body's arguments, in here
        first: list[Pair] = []  # constants
        last: list[Pair] = []  # one for each iteration
        for i in sorted(needed):
            arg = source.args[i]
            inside[arg.id] = fresh = Value(-1, arg.type, f"{arg.name}_again")
            if i < fixed:
                first.append((self.operand(f.operands[i]), fresh))
            elif i < moving:
                last.append((self.stacked[r.position, i], fresh))
            else:
                last.append((self.operand(f.operands[i]), fresh))
        ops = []
        for n in r.ops:
            again = self.copy(source.ops[n], inside, "_again")
            ops.append(dataclasses.replace(again, backward=True))
            inside |= {o.id: v for o, v in zip(source.ops[n].results, again.results, strict=True)}
        swapped: dict[int, Value] = {}  # by `id` of the copied region's argument
        kept: list[Pair] = []
        for operand, arg in zip(new.operands, region.args, strict=True):
            result = gone.get(id(operand))
            if isinstance(result, Value):
                swapped[id(arg)] = inside[result.id]
            else:
                kept.append((operand, arg))
        new_pairs = [*kept[:consts], *first, *kept[consts:], *last]
        body = Region(
            tuple(a for _, a in new_pairs),
            (*ops, *(_reading(op, swapped) for op in region.ops)),
            tuple(swapped.get(id(x), x) for x in region.results),
        )
        params = {**new.params, "num_consts": consts + len(first)}
        params.pop("linear", None)
        return dataclasses.replace(
            new,
            operands=tuple(o for o, _ in new_pairs),
            regions=(body,),
            params=params,
            key=None,
        )


def _reading(op: Op, swapped: Mapping[int, Value]) -> Op:
    """The op with some operands replaced."""
    operands = tuple(swapped.get(id(x), x) for x in op.operands)
    return dataclasses.replace(op, operands=operands)
