"""Effects of recomputing the iterations of scans on live bytes and seconds.

A scan whose iterations run again no longer stacks the residuals of all iterations; carries are
stacked instead. The residuals of one iteration live again while the backward scan runs. Seconds of
recomputed ops count, less the seconds of moving residuals: writes of residuals stored for the sake
of the stack alone, writes and reads of main memory instead of memory on the chip, or all writes
where rows of stacks are copies (`XlaTraits.copies_scan_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Value
from partir_search.passes.remat import Range, forward_length
from partir_search.passes.remat_copies import MOVED
from partir_search.passes.remat_scan import ScanRemat, copied_ops, scan_remat
from partir_search.plan.planned import Planned
from partir_search.planning.segment_effects import Effect, Stay, seconds_before
from partir_search.planning.stack_moves import copied_results, kernels_reading, slower_reads
from partir_search.simulator.arrays import Floats
from partir_search.simulator.simulator import Simulation
from partir_search.simulator.time.kernels import Kernels


class ScanEffects:
    """Effects of a program's scans under fixed decisions, each found once."""

    def __init__(
        self, module: Module, segments: Sequence[Range], without: Planned, full: Planned
    ) -> None:
        """Effects under the decisions of two plans.

        Args:
          module: the program without recomputation.
          segments: all scans.
          without: the plan with no iteration recomputed.
          full: the plan with all iterations of all scans recomputed, with ops at the same
            positions.
        """
        self.module, self._uses, self._forward = module, def_use(module), forward_length(module)
        self._known = dict[Range, Effect | None]()
        plain, again = (p.model.simulate(p.sketch) for p in (without, full))
        ranges, self._nbytes = without.model.analysis.buffers.ranges, plain.load.roofline.nbytes
        self._stored = dict[int, list[Stay]]()
        sizes = ranges.weight * self._nbytes[ranges.value]
        columns = (ranges.value, ranges.start, ranges.stop + 1, sizes)
        for value, start, stop, size in zip(*(c.tolist() for c in columns), strict=True):
            self._stored.setdefault(value, []).append((start, stop, size))
        remats = [r for r in map(self._remat, segments) if r is not None]
        self._ends = dict[int, list[Stay]]()  # by position of a scan, residuals of one iteration
        self._seconds = dict[int, dict[int, float]]()  # by position of a scan, and of an inner op
        self._weights = dict[int, float]()  # by value id, bytes to move per byte stacked
        self._rate = 0.0  # seconds per byte to move
        self._saved = dict[int, float]()  # by position of a scan, further seconds of any form
        self._count_seconds(
            remats, full, without, _seconds_before(without, plain), _seconds_before(full, again)
        )
        freed = sum(e.freed_at(len(plain.live)) for e in map(self._effect_of, remats))
        error = again.live - (plain.live - freed)
        for r in remats:
            ends = (r.position, *r.users)
            self._ends[r.position] = [(at, at + 1, float(error[at])) for at in ends]

    def __call__(self, segment: Range) -> Effect | None:
        """Effect of recomputing the iterations of a scan; None if nothing runs again."""
        if segment not in self._known:
            remat = self._remat(segment)
            self._known[segment] = None if remat is None else self._effect_of(remat)
        return self._known[segment]

    def seconds_again(self, segment: Range) -> Mapping[int, float]:
        """Seconds of recomputed ops, in all iterations, by position in the region."""
        remat = self._remat(segment)
        return {} if remat is None else {at: self._seconds[segment[0]][at] for at in remat.ops}

    def form(self, segment: Range, stored: Sequence[int]) -> Range:
        """A scan with results of ops stored, by position in the region."""
        return (segment[0], segment[1], *stored)

    def _remat(self, segment: Range) -> ScanRemat | None:
        return scan_remat(self.module, self._uses, segment[0], self._forward, segment[2:])

    def _count_seconds(
        self,
        remats: Sequence[ScanRemat],
        full: Planned,
        without: Planned,
        plain: Floats,
        again: Floats,
    ) -> None:
        """Attributes the seconds of the full plan to recomputed ops and to stacked bytes.

        Bytes move at the rate by which the plans differ or, on machines with memory on the chip, at
        that of main memory; the rest of the difference then counts for each form.

        Args:
          plain / again: [ops + 1] seconds before each op, of the plans without and full.
        """
        ops, others = self.module.body.ops, full.graph.module.body.ops
        buffers = full.model.analysis.buffers
        inside = dict.fromkeys((u for r in remats for u in r.users), 0)  # first op of each, so far
        saved, readers = 0.0, kernels_reading(full.model.time.kernels)
        copies_rows = full.model.machine.traits.copies_scan_rows
        slower, into_stacks = slower_reads(full.model.machine), copied_results(without)
        for r in reversed(remats):  # the copies of the last scan come first
            spent, read = dict.fromkeys(r.ops, 0.0), dict[int, int]()
            region = ops[r.position].regions[0]
            for user in r.users:
                again_here = copied_ops(self.module, self._uses, r, user)
                copies = others[user].regions[0].ops[inside[user] :]
                for at, copied in zip(again_here, copies, strict=False):
                    spent[at] += _seconds(copied, again)
                    for v, copy in zip(region.ops[at].results, copied.results, strict=True):
                        read[v.id] = read.get(v.id, 0) + readers.get(copy.id, 0)
                inside[user] += len(again_here)
            self._seconds[r.position] = spent
            saved += sum(spent.values())
            made = buffers.inner[r.position][0].materialized.made
            stored = {full.graph.module.values[v].name for v in made}
            for v in (v for op in region.ops for v in op.results):
                written = 1.0 if copies_rows or v.name + MOVED not in stored else slower
                reads = 0.0 if copies_rows else slower * max(read.get(v.id, 0), 1)
                self._weights[v.id] = written + reads + into_stacks.get(v.id, 0.0)
        for at in {r.position for r in remats} | set(inside):
            saved += _seconds(ops[at], plain) - _seconds(others[at], again)
        moved = sum(map(self._unstacked, remats))
        self._rate = saved / moved if moved > 0.0 else 0.0
        if slower and moved > 0.0:
            self._rate = 1.0 / full.model.machine.attained_hbm_bytes_per_s
            each = (saved - self._rate * moved) / moved
            self._saved = {r.position: each * self._unstacked(r) for r in remats}

    def _effect_of(self, remat: ScanRemat) -> Effect:
        stays = [*((*stay, 1.0) for stay in self._freed(remat))]
        stays += [(*stay, -1.0) for stay in self._added(remat)]
        stays += [(*stay, -1.0) for stay in self._ends.get(remat.position, ())]
        first = remat.users[0]
        positions = [at for start, stop, _, _ in stays for at in (start, stop)]
        freed = [x for _, _, size, sign in stays for x in (sign * size, -sign * size)]
        nbytes = sum(sign * size for start, stop, size, sign in stays if start < first < stop)
        seconds = sum(self._seconds[remat.position][at] for at in remat.ops)
        seconds -= self._rate * self._unstacked(remat) + self._saved.get(remat.position, 0.0)
        return Effect(np.array(positions, dtype=np.int64), np.array(freed), nbytes, seconds)

    def _freed(self, remat: ScanRemat) -> Iterator[Stay]:
        """Live ranges of residuals no longer stacked."""
        results = self.module.body.ops[remat.position].results
        for k in remat.dropped:
            yield from self._stored.get(results[k].id, ())

    def _added(self, remat: ScanRemat) -> Iterator[Stay]:
        """Live ranges of newly stacked values."""
        for v in remat.added:
            yield remat.position, remat.users[-1] + 1, self._stack_bytes(remat, v)

    def _unstacked(self, remat: ScanRemat) -> float:
        """Bytes no longer moved to and from stacks."""
        region = self.module.body.ops[remat.position].regions[0]
        dropped = [region.results[k] for k in remat.dropped]
        removed = sum(self._moved(remat, v.id) for v in dropped if isinstance(v, Value))
        return removed - sum(self._moved(remat, v) for v in remat.added)

    def _moved(self, remat: ScanRemat, value: int) -> float:
        return self._weights.get(value, 0.0) * self._stack_bytes(remat, value)

    def _stack_bytes(self, remat: ScanRemat, value: int) -> float:
        length = int(self.module.body.ops[remat.position].params["length"])
        return length * float(self._nbytes[value])


def _seconds(op: Op, before: Floats) -> float:
    """Seconds of an op, with all ops inside."""
    return float(before[_last(op) + 1] - before[op.id])


def _last(op: Op) -> int:
    """Id of the last op inside of an op, or of the op itself."""
    inner = [o for region in op.regions for o in region.ops[-1:]]
    return max(map(_last, inner), default=op.id)


def _seconds_before(planned: Planned, found: Simulation) -> Floats:
    """[ops + 1] seconds before each op; of a fused kernel, each op's share."""
    return seconds_before(planned, found, _unfused_seconds(found, planned.model.time.kernels))


def _unfused_seconds(found: Simulation, kernels: Kernels) -> Floats:
    """[K] seconds of each kernel: of a fused kernel, by each one's share of operations and traffic.

    Recomputation pays the seconds of a fused kernel again in part.
    """
    roofline = found.load.roofline
    parts, leader, n = roofline.components, kernels.leader, len(kernels.op)

    def shares(of: Floats) -> Floats:
        total = np.bincount(leader, of, n)[leader]
        return np.divide(of, total, out=np.zeros(n), where=total > 0.0)

    traffic = shares(parts.own)
    work = shares(roofline.flops) * parts.dots[leader]
    work += traffic * (parts.vectors + parts.moves)[leader]
    split: Floats = shares(work) * roofline.seconds[leader]
    alone = np.bincount(leader, work, n)[leader] <= 0.0
    return np.where(alone, roofline.seconds, split)
