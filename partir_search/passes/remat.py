"""Rematerialisation as a rewrite of the module: segments of the forward pass are computed again.

A segment's values that the backward pass reads are not kept: the ops that make them are copied in
front of their first late use, and copy and late uses become one `checkpoint` op with a region, the
form in which jax writes `jax.checkpoint`. What the forward pass itself reads after the segment (the
residual stream) is kept: it is what the copy starts from. Chen et al. 2016 (arXiv 1604.06174).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.passes.remat_copies import MOVED, RematRewriter
from partir_search.passes.remat_scan import find_reruns, rerun
from partir_search.rules.construct import rematerialization

Range = tuple[int, int]  # first op and the one after the last, by position in the body
Windows = Mapping[int, tuple[int, Sequence[int]]]  # by first op: last op, ops that run again

WINDOWS = 40  # a cut is the narrowest place of this part of the forward pass to either side,
SHORTEST = 40  # of this many ops at least,
NARROW = 1.1  # or crosses this much more bytes
THIN = 0.1  # of the median that crosses: less lies outside the network's body
LONG = 1 / 3  # of the forward pass: what lives longer is kept anyway and crosses all cuts
WORTH = 2.0  # bytes that a segment must free, as a multiple of those that cross its cut

# Ends of the names of copies, and of values that enter regions with them.
AGAIN, ENTERING = "_again", "_in"


def forward_length(module: Module) -> int:
    """Ops of the body before the backward pass; 0 if it has none."""
    return next((i for i, op in enumerate(module.body.ops) if op.backward), 0)


def find_segments(module: Module) -> list[Range]:
    """Stretches of the forward pass that free much if they are computed again, in program order.

    Cuts lie where the fewest bytes cross: between the layers of a network. A scan over layers is a
    segment of its own; then whatever lies around it is kept.
    """
    n = forward_length(module)
    if n < 2:
        return []
    if reruns := find_reruns(module, n):
        return [(r.position, r.position + 1) for r in reruns]
    ops = module.body.ops
    uses = _Uses(module, n)
    crossing, freed = np.zeros(n + 1), np.zeros(n + 1)
    for at, op in enumerate(ops[:n]):
        for r in op.results:
            last = uses.early(r.id, at)
            if 0 < last - at <= n * LONG:
                crossing[at + 1] += r.type.nbytes
                crossing[last + 1] -= r.type.nbytes
            elif last <= at and uses.late(r.id):
                freed[at + 1] += r.type.nbytes
    crossing = np.cumsum(crossing)[: n + 1]
    around = 2 * max(n // WINDOWS, SHORTEST) + 1
    floor = THIN * float(np.median(crossing))  # inputs and losses are no places to cut at
    nearby = np.where(crossing < floor, np.inf, crossing)
    wide = np.pad(nearby, around // 2, mode="edge")
    narrow = NARROW * np.lib.stride_tricks.sliding_window_view(wide, around).min(axis=1)
    freed = np.cumsum(freed)
    segments: list[Range] = []
    begin = 0
    for at in range(1, n + 1):
        if floor < crossing[at] <= narrow[at] and freed[at] - freed[begin] > WORTH * crossing[at]:
            segments.append((begin, at))
            begin = at
    return segments


def namesake(name: str, known: Container[str]) -> str:
    """Name of a value where other segments are computed again; its own name if nowhere."""
    suffix = next((s for s in (AGAIN, ENTERING, MOVED) if name.endswith(s)), "")
    first = name.removesuffix(suffix)
    return next((n for n in (name, first, first + MOVED) if n in known), name)


def rematerialize(module: Module, segments: Sequence[Range]) -> Module:
    """The module with these segments of its forward pass computed again in the backward pass.

    Args:
      segments: disjoint, in program order. One whose late uses lie among those of a later one is
        left as it is. Of one that is a scan, the iterations are run again.
    """
    n = forward_length(module)
    scans = [r for r in find_reruns(module, n) if (r.position, r.position + 1) in segments]
    if scans:
        module = rerun(module, scans)
        alone = {(r.position, r.position + 1) for r in scans}
        segments = [s for s in segments if s not in alone]
    windows: dict[int, tuple[int, Sequence[int]]] = {}
    free = n  # where the next window may begin
    uses = _Uses(module, n)
    for begin, stop in reversed(segments):
        found = _window(module, uses, begin, stop)
        if found is not None and found[0] >= free:
            first, last, again = found
            windows[first] = last, again
            free = last + 1
    return _Rewriter(module, windows, uses).run()


class _Uses:
    """Uses of values made in a module's body, as positions in the body.

    Attributes:
      results: ids of the values that the module returns.
    """

    def __init__(self, module: Module, n: int) -> None:
        """Uses before and after position `n`."""
        uses = def_use(module)
        self._users, self._position, self._n = uses.users, uses.position.tolist(), n
        self.results = {x.id for x in module.body.results if isinstance(x, Value)}

    def early(self, v: int, default: int = -1) -> int:
        """Position of a value's last use among the first `n` ops; `default` if there is none."""
        return max((at for at in self._positions(v) if at < self._n), default=default)

    def late(self, v: int) -> list[int]:
        """Positions of a value's uses after the first `n` ops, in order."""
        return [at for at in self._positions(v) if at >= self._n]

    def after(self, v: int, at: int) -> bool:
        """Tells whether a value is returned, or used after a position."""
        return v in self.results or max(self._positions(v), default=-1) > at

    def _positions(self, v: int) -> list[int]:
        return [self._position[user.id] for user in self._users[v]]


def _window(
    module: Module, uses: _Uses, begin: int, stop: int
) -> tuple[int, int, list[int]] | None:
    """First and last late use of what a segment need not keep, and the ops that make it."""
    ops = module.body.ops
    maker = {r.id: at for at in range(begin, stop) for r in ops[at].results}
    kept = {v for v in maker if uses.early(v) >= stop}
    wanted = [v for v in maker if uses.late(v) and v not in kept and v not in uses.results]
    if not wanted:
        return None
    again: set[int] = set()
    todo = list(wanted)
    while todo:
        at = maker[todo.pop()]
        if at not in again:
            if ops[at].effect:
                return None
            again.add(at)
            todo += [v.id for _, v in ops[at].inputs() if v.id in maker and v.id not in kept]
    late = [at for v in wanted for at in uses.late(v)]
    first, last = min(late), max(late)
    return first, last, sorted(again)


class _Rewriter(RematRewriter):
    """Turns windows of a module's body into `checkpoint` ops."""

    def __init__(self, module: Module, windows: Windows, uses: _Uses) -> None:
        super().__init__(module)
        self.windows, self.uses = windows, uses

    def ops(self, old: Region) -> list[Op]:
        ops: list[Op] = []
        at = 0
        while at < len(old.ops):
            if at in self.windows:
                last, again = self.windows[at]
                after = self.growing(at, last)
                ops.append(self.checkpoint(at, last, again, after))
                ops += map(self.op, after)
                at = last + 1
            else:
                ops.append(self.op(old.ops[at]))
                at += 1
        return ops

    def growing(self, first: int, last: int) -> list[Op]:
        """Ops of a window that make a value larger on its way out (gradients that are widened for
        the optimizer): what leaves a region is stored, so that they come after it.
        """
        needed: set[int] = set()  # by what stays in the window
        found: list[Op] = []
        for op in reversed(self.module.body.ops[first : last + 1]):
            inputs = [v for _, v in op.inputs()]
            made = sum(r.type.nbytes for r in op.results)
            if (
                len(inputs) == 1
                and inputs[0].type.nbytes < made
                and not (op.regions or op.effect)
                and needed.isdisjoint(r.id for r in op.results)
            ):
                found.append(op)
            else:
                needed.update(v.id for v in inputs)
        return found[::-1]

    def checkpoint(self, first: int, last: int, again: Sequence[int], after: Sequence[Op]) -> Op:
        body = self.module.body.ops
        put_off = {op.id for op in after}
        window = [op for op in body[first : last + 1] if op.id not in put_off]
        inner = [(body[i], AGAIN) for i in again] + [(op, MOVED) for op in window]
        made = {r.id for op, _ in inner for r in op.results}
        entering: dict[int, Value] = {}
        for op, _ in inner:
            for _, v in op.inputs():
                if v.id not in made and v.id not in self.module.constants:
                    entering.setdefault(v.id, v)
        inside = {i: Value(-1, v.type, f"{v.name}{ENTERING}") for i, v in entering.items()}
        args = tuple(inside.values())
        ops = []
        for op, suffix in inner:
            new = self.copy(op, inside, suffix)
            ops.append(dataclasses.replace(new, backward=True))
            inside |= {r.id: v for r, v in zip(op.results, new.results, strict=True)}
        used = {v.id for op in after for _, v in op.inputs()}
        leaving = [
            r for op in window for r in op.results if r.id in used or self.uses.after(r.id, last)
        ]
        return rematerialization(
            [self.value(v) for v in entering.values()],
            [self.value(r) for r in leaving],
            Region(args, tuple(ops), tuple(inside[r.id] for r in leaving)),
            body[first],
        )
