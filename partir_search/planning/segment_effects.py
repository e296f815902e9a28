"""Effects of recomputing segments on live bytes and seconds, from a plan without recomputation.

Values of a recomputed segment are freed from their last use in the forward pass to the window of
the backward pass that computes the segment again; values that the recomputation reads are stored
until then; kernels and collectives of the recomputed ops run twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.passes.remat import Range, Uses, Window, forward_length, window_of
from partir_search.plan.planned import Planned
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.simulator import Simulation

Stay = tuple[int, int, float]  # live range: first and last position, and bytes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Effect:
    """Effect of recomputing one segment.

    Attributes:
      positions / freed: [changes] positions of the module's body, and changes of the freed bytes.
      nbytes: freed at the end of the forward pass.
      seconds: of the ops that run again.
    """

    positions: Ints
    freed: Floats
    nbytes: float
    seconds: float

    def freed_at(self, count: int) -> Floats:
        """[count] freed bytes at each position."""
        found = np.zeros(count + 1)
        np.add.at(found, self.positions, self.freed)
        return np.cumsum(found)[:-1]


class SegmentEffects:
    """Effects of a program's segments under fixed decisions, each found once.

    Attributes:
      seconds: [positions] seconds of each op of the body, with the collectives of its operands.
    """

    def __init__(self, module: Module, without: Planned, simulation: Simulation) -> None:
        """Effects under the decisions of a plan.

        Args:
          module: the program without recomputation.
          without: the plan.
          simulation: of the plan.
        """
        self.module, self._uses = module, Uses(module, forward_length(module))
        firsts = [*(op.id for op in module.body.ops), len(module.ops)]  # inner ops come after
        before = seconds_before(without, simulation, simulation.load.roofline.seconds)
        self.seconds = np.diff(before[firsts])
        buffers = without.model.analysis.buffers
        ranges, nbytes = buffers.ranges, simulation.load.roofline.nbytes
        self._last_forward, self._nbytes = buffers.materialized.last_forward, nbytes
        self._stored = dict[int, list[Stay]]()
        columns = (ranges.value, ranges.start, ranges.stop, ranges.weight * nbytes[ranges.value])
        for value, start, stop, size in zip(*(c.tolist() for c in columns), strict=True):
            self._stored.setdefault(value, []).append((start, stop, size))
        self._live = simulation.live
        self._corrections = dict[Range, list[Stay]]()
        self._known = dict[Range, Effect | None]()

    def correct(self, windows: Sequence[Window], repeated: Sequence[int], live: Floats) -> None:
        """Corrects effects by a plan with all segments recomputed.

        The difference of live bytes before the windows of two adjacent segments is the number of
        bytes freed by the recomputation of one. A value that the recomputation reads, say, may take
        the place of the values of which the value is computed. A window with a recomputation needs
        temporaries.

        Args:
          windows: of all segments, in the order of the backward pass.
          repeated: per window, the position in the other program of the op that recomputes.
          live: [positions] live bytes of the other program.
        """
        over = [
            float(self._live[w.first - 1] - live[max(at - 1, 0)])
            for w, at in zip(windows, repeated, strict=True)
        ]
        for window, freed, after in zip(windows, over, [*over[1:], 0.0], strict=True):
            error = freed - after - self.effect_of(window).nbytes
            self._corrections[window.segment[:2]] = [(window.segment[1], window.first, error)]
        freed_by_all = sum(self.effect_of(w).freed_at(len(self._live)) for w in windows)
        for window, at in zip(windows, repeated, strict=True):
            first = window.first
            more = float(live[at] - (self._live - freed_by_all)[first])
            self._corrections[window.segment[:2]].append((first, first + 1, -max(more, 0.0)))
        self._known.clear()

    def window(self, segment: Range) -> Window | None:
        """Window of the backward pass that computes a segment again."""
        return window_of(self.module, self._uses, segment)

    def __call__(self, segment: Range) -> Effect | None:
        """Effect of recomputing a segment; None if nothing runs again."""
        if segment not in self._known:
            window = self.window(segment)
            self._known[segment] = self.effect_of(window) if window else None
        return self._known[segment]

    def seconds_again(self, segment: Range) -> Mapping[int, float]:
        """Seconds of recomputed ops, by position after the segment's first op."""
        window = self.window(segment)
        assert window is not None
        return {at - segment[0]: float(self.seconds[at]) for at in window.again}

    def form(self, segment: Range, stored: Sequence[int]) -> Range:
        """A segment with results of ops stored, by position after the segment's first op."""
        return (segment[0], segment[1], *(segment[0] + at for at in stored))

    def effect_of(self, window: Window) -> Effect:
        """Effect of recomputing the segment of a window."""
        ops, n = self.module.body.ops, self._uses.forward
        made = {r.id: at for at in window.again for r in ops[at].results}
        read = {v.id for at in window.again for _, v in ops[at].inputs()} - made.keys()
        positions, freed, nbytes = list[int](), list[float](), 0.0
        stays = [(*stay, 1.0) for v, at in made.items() for stay in self._idle(v, at, window.first)]
        stays += [(*stay, -1.0) for v in read for stay in self._longer(v, window.first)]
        kept = [r.id for at in window.segment[2:] for r in ops[at].results]
        stays += [(*stay, -1.0) for v in kept for stay in self._wider(v, window.first)]
        stays += [(*stay, 1.0) for stay in self._corrections.get(window.segment[:2], ())]
        for start, stop, size, sign in stays:
            positions += start, stop
            freed += sign * size, -sign * size
            nbytes += sign * size if start <= n <= stop else 0.0
        again = np.array(window.again, dtype=np.int64)
        spent = float(self.seconds[again].sum())
        return Effect(np.array(positions, dtype=np.int64), np.array(freed), nbytes, spent)

    def _idle(self, value: int, made: int, until: int) -> Iterator[Stay]:
        """Parts of a value's live ranges freed by recomputation: last use to window."""
        for start, stop, size in self._stored.get(value, ()):
            if start < until <= stop:
                last = self._last_forward.get(value, self._uses.before(value, until, made))
                yield max(last, start) + 1, until, size

    def _longer(self, value: int, until: int) -> Iterator[Stay]:
        """Further live ranges of a value that a window reads: from the last use to the window."""
        stays = self._stored.get(value)
        made = self._uses.made(value)
        if made is None:
            return  # arguments and constants
        last = made if stays is None else max(stop for _, stop, _ in stays)
        if last < until:
            yield last + 1, until, float(self._nbytes[value])

    def _wider(self, value: int, until: int) -> Iterator[Stay]:
        """Live ranges with the bytes by which a value's type is wider than its stored form.

        Without recomputation a value may be stored in a narrower type; operands of regions keep
        their type.
        """
        for start, stop, size in self._stored.get(value, ()):
            if stop >= until:
                yield start, until, max(float(self._nbytes[value]) - size, 0.0)


def seconds_before(planned: Planned, found: Simulation, kernel_seconds: Floats) -> Floats:
    """[ops + 1] seconds of kernels and reshards before each op of a module, and in total.

    Args:
      found: simulation of the plan.
      kernel_seconds: [K] seconds attributed to each kernel.
    """
    module, kernels = planned.graph.module, planned.model.time.kernels
    seconds = np.bincount(kernels.op, kernel_seconds, len(module.ops))

    def add(scheduled: ScheduledRegion, times: float) -> None:
        for number, (item, _, cost, _) in enumerate(scheduled.steps):
            if cost is not None and item.op is not None:
                seconds[item.op.id] += times * cost.seconds
            for part, trips in scheduled.inner.get(number, ()):
                if part is not None:
                    add(part, times * trips)

    add(found.scheduled, 1.0)
    return np.concatenate(([0.0], np.cumsum(seconds)))
