"""Rematerialization as a rewrite: segments of the forward pass are computed again.

Values of a segment read by the backward pass are not stored. Their makers are copied before the
first late use, and copy and late uses become one `checkpoint` op with a region, as `jax.checkpoint`
would write. Values read by the forward pass after the segment (the residual stream) are stored: the
copy starts from them. Results of some ops of a segment may be stored as well, as by a policy of
`jax.checkpoint`; the ops behind them do not run again. Chen et al. 2016 (arXiv 1604.06174).
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Container, Sequence

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.passes.remat_copies import AGAIN, ENTERING, MOVED, RematRewriter
from partir_search.passes.remat_scan import ScanRemat, find_scan_remats, remat_scans, scan_remat
from partir_search.rules.construct import rematerialization

Range = tuple[int, int, *tuple[int, ...]]
"""Segment: positions of the first op, of the op after the last, and of ops with stored results.

Of a scan as a segment, ops with stored results have positions in the scan's region.
"""

# At a cut, fewer bytes cross than anywhere within a window to either side.
WINDOW_SHARE = 40  # forward pass over the window's length
MIN_WINDOW = 40  # ops, at least, in a window
CUT_TOLERANCE = 1.1  # bytes crossing a cut over the fewest in its window
MIN_CROSSING = 0.1  # of the median bytes crossing; fewer cross only outside the network's layers
MAX_LIFETIME = 1 / 3  # of the forward pass; values living longer cross all cuts and are stored
MIN_GAIN = 2.0  # bytes freed by recomputing a segment over bytes crossing its cut, at least

# A value that enters several regions has numbered arguments, as actions find values by name.
_SUFFIX = re.compile(rf"(?:{AGAIN}|{ENTERING}\d*|{MOVED})$")


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Part of the backward pass that computes a segment again.

    Attributes:
      segment: the segment.
      first / last: positions of the first and the last late use of the segment's values.
      again: positions of the segment's ops to recompute.
    """

    segment: Range
    first: int
    last: int
    again: tuple[int, ...]


def forward_length(module: Module) -> int:
    """Returns the number of ops of the body before the backward pass; 0 without a backward pass."""
    return next((i for i, op in enumerate(module.body.ops) if op.backward), 0)


def find_segments(module: Module) -> list[Range]:
    """Returns segments of the forward pass whose recomputation frees much memory, in program order.

    Cuts lie between ops crossed by the fewest bytes: between the layers of a network. A scan over
    layers is a segment of its own; in a program with one, values around the scan are stored.
    """
    n = forward_length(module)
    if n < 2:
        return []
    if scans := find_scan_remats(module, n):
        return [(r.position, r.position + 1) for r in scans]
    ops = module.body.ops
    uses = Uses(module, n)
    crossing, freed = np.zeros(n + 1), np.zeros(n + 1)
    for at, op in enumerate(ops[:n]):
        for r in op.results:
            last = uses.early(r.id, at)
            if 0 < last - at <= n * MAX_LIFETIME:
                crossing[at + 1] += r.type.nbytes
                crossing[last + 1] -= r.type.nbytes
            elif last <= at and uses.late(r.id):
                freed[at + 1] += r.type.nbytes
    crossing = np.cumsum(crossing)[: n + 1]
    around = 2 * max(n // WINDOW_SHARE, MIN_WINDOW) + 1
    floor = MIN_CROSSING * float(np.median(crossing))  # no cuts at inputs and losses
    nearby = np.where(crossing < floor, np.inf, crossing)
    wide = np.pad(nearby, around // 2, mode="edge")
    narrow = CUT_TOLERANCE * np.lib.stride_tricks.sliding_window_view(wide, around).min(axis=1)
    freed = np.cumsum(freed)
    segments: list[Range] = []
    begin = 0
    for at in range(1, n + 1):
        if (
            floor < crossing[at] <= narrow[at]
            and freed[at] - freed[begin] > MIN_GAIN * crossing[at]
        ):
            segments.append((begin, at))
            begin = at
    return segments


def namesake(name: str, known: Container[str]) -> str:
    """Returns the name of a value in a program with different segments recomputed.

    Args:
      known: names of values in the program. Without a match, `name` is returned.
    """
    first = _SUFFIX.sub("", name)
    alike = name, first, first + MOVED, first + AGAIN
    return next((n for n in alike if n in known), name)


def rematerialize(module: Module, segments: Sequence[Range]) -> Module:
    """Returns the module with segments of its forward pass computed again in the backward pass.

    Args:
      segments: disjoint, in program order. A segment is left unchanged if its late uses overlap the
        late uses of a later segment. For a scan as a segment, each iteration is computed again.
    """
    n = forward_length(module)
    scans = find_scans(module, segments)
    if scans:
        module = remat_scans(module, [r for r in scans.values() if r is not None])
        segments = [s for s in segments if s not in scans]
        if not segments:
            return module
    uses = Uses(module, n)
    return _Rewriter(module, _windows(module, uses, n, segments), uses).run()


def find_scans(module: Module, segments: Sequence[Range]) -> dict[Range, ScanRemat | None]:
    """Returns the rewrites of scans among segments, in order; None if nothing runs again."""
    n = forward_length(module)
    alone = {r.position for r in find_scan_remats(module, n)}
    scans = [s for s in segments if s[0] in alone and s[1] == s[0] + 1]
    uses = def_use(module)
    return {s: scan_remat(module, uses, s[0], n, s[2:]) for s in scans}


def find_windows(module: Module, segments: Sequence[Range]) -> list[Window]:
    """Returns the windows of the segments that `rematerialize` recomputes, in program order.

    Args:
      segments: disjoint, in program order. Scans have no window.
    """
    n = forward_length(module)
    return _windows(module, Uses(module, n), n, segments)


def _windows(module: Module, uses: Uses, n: int, segments: Sequence[Range]) -> list[Window]:
    windows: list[Window] = []
    free = n  # first position of the window after
    for segment in reversed(segments):
        found = window_of(module, uses, segment)
        if found is not None and found.first >= free:
            windows.append(found)
            free = found.last + 1
    return windows


class Uses:
    """Uses of values made in a module's body, as positions in the body.

    Attributes:
      forward: position of the first op of the backward pass.
      results: ids of the values returned by the module.
    """

    def __init__(self, module: Module, n: int) -> None:
        """Splits uses at position `n`, the first op of the backward pass."""
        uses = def_use(module)
        self._users, self._position, self.forward = uses.users, uses.position.tolist(), n
        self._makers = uses.makers
        self.results = {x.id for x in module.body.results if isinstance(x, Value)}

    def early(self, v: int, default: int = -1) -> int:
        """Returns the position of a value's last use among the first `n` ops, or `default`."""
        return max((at for at in self._positions(v) if at < self.forward), default=default)

    def late(self, v: int) -> list[int]:
        """Returns the positions of a value's uses from op `n` on, in order."""
        return [at for at in self._positions(v) if at >= self.forward]

    def made(self, v: int) -> int | None:
        """Returns the position of a value's op; None for an argument."""
        maker = self._makers[v]
        return None if maker is None else self._position[maker.id]

    def before(self, v: int, at: int, default: int = -1) -> int:
        """Returns the position of a value's last use before a position, or `default`."""
        return max((use for use in self._positions(v) if use < at), default=default)

    def after(self, v: int, at: int) -> bool:
        """True if a value is returned by the module, or used after a position."""
        return v in self.results or max(self._positions(v), default=-1) > at

    def _positions(self, v: int) -> list[int]:
        return [self._position[user.id] for user in self._users[v]]


def window_of(module: Module, uses: Uses, segment: Range) -> Window | None:
    """Returns a segment's window; None if no value is used late or a recomputed op has effects."""
    begin, stop, *stored = segment
    ops = module.body.ops
    maker = {r.id: at for at in range(begin, stop) for r in ops[at].results}
    kept = {v for v in maker if uses.early(v) >= stop}
    kept.update(r.id for at in stored for r in ops[at].results)
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
    return Window(segment, min(late), max(late), tuple(sorted(again)))


class _Rewriter(RematRewriter):
    """Rewrites windows of a module's body as `checkpoint` ops."""

    def __init__(self, module: Module, windows: Sequence[Window], uses: Uses) -> None:
        super().__init__(module)
        self.windows, self.uses = {w.first: w for w in windows}, uses
        self._entered = collections.Counter[int]()  # by value id, regions with an argument for it

    def ops(self, old: Region) -> list[Op]:
        ops: list[Op] = []
        at = 0
        while at < len(old.ops):
            if at in self.windows:
                window = self.windows[at]
                after = self.widening_ops(at, window.last)
                ops.append(self.checkpoint(at, window.last, window.again, after))
                ops += map(self.op, after)
                at = window.last + 1
            else:
                ops.append(self.op(old.ops[at]))
                at += 1
        return ops

    def widening_ops(self, first: int, last: int) -> list[Op]:
        """Returns ops at the end of a window enlarging a result (casts of gradients to float32).

        Results of a region are stored: the larger form is computed after the region.
        """
        needed: set[int] = set()  # ids of values read by ops that stay in the window
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

    def entering(self, value: Value) -> Value:
        """Returns the argument of a further region for a value of the body."""
        self._entered[value.id] += 1
        count = self._entered[value.id]
        number = str(count) if count > 1 else ""
        return Value(-1, value.type, f"{value.name}{ENTERING}{number}")

    def checkpoint(self, first: int, last: int, again: Sequence[int], after: Sequence[Op]) -> Op:
        """Returns the `checkpoint` op for a window of the body.

        Args:
          first: position of the window's first op.
          last: position of the window's last op.
          again: positions of the forward ops to recompute.
          after: ops of the window to leave outside of the region.
        """
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
        inside = {i: self.entering(v) for i, v in entering.items()}
        args = tuple(inside.values())
        ops = []
        for op, suffix in inner:
            new = self.copy(op, inside, suffix)
            new.backward = True  # a new op, in no module yet
            ops.append(new)
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
