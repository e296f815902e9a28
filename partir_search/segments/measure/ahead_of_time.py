"""Seconds of segments by a TPU or GPU compiler, in processes and without hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from partir_search.aot.compile_all import Running, compile_all
from partir_search.aot.judge import judge
from partir_search.aot.process import Compilation, Free
from partir_search.aot.targets import Target
from partir_search.lowering.local_value import LocalValue
from partir_search.segments.measure.measured import Done, Measured
from partir_search.segments.run import Runnable, runnable
from partir_search.segments.segment import Segment

SECONDS = 900.0  # wall seconds of one compilation, on a busy machine


def ahead_of_time(
    segments: Sequence[Segment],
    target: Target,
    *,
    processes: int | None = None,
    done: Done = lambda text: None,
) -> dict[str, Measured]:
    """Judges segments by key: cycles of kernels, collectives by the machine's figures.

    Args:
      segments: of `plan.segments(target.mesh(shape))`, one of each key.
      processes: compilations at a time; None for the number of usable CPUs.
      done: called after each segment.

    Raises:
      RuntimeError: the compiler gives no figures for a segment; the message has the reason.
    """
    if not segments:
        return {}
    shape = segments[0].program.partition.mesh
    mesh = target.mesh(shape)

    def starter(segment: Segment) -> Callable[[], Running]:
        def start() -> Running:
            part = runnable(segment, mesh)
            free = free_layouts(part, segment)
            return Compilation(part.jitted, part.structs, (), target, mesh, cycles=True, free=free)

        return start

    found = {}
    for at, outcome in compile_all(
        [starter(each) for each in segments],
        seconds=SECONDS,
        limit=math.inf,
        processes=processes,
        enough=lambda outcome: False,
    ):
        each = segments[at]
        if outcome.program is None:
            raise RuntimeError(f"{each.name} was not compiled for {target}: {outcome.note}")
        judged = judge(outcome.program.text, shape, target.machine)
        temp = outcome.program.temp_bytes or 0
        found[each.key] = Measured(judged.total, judged.compute, 0.0, 0, temp)
        done(each.name)
    return found


def free_layouts(part: Runnable, segment: Segment) -> Free:
    """Positions of arguments and results passed between segments.

    Within the whole program the compiler chooses their layouts in memory; arguments and results of
    the program have the default one.
    """
    program = segment.program
    ends = {x.id for x in (*program.body.args, *program.constants.values())}
    ends |= {x.id for x in program.body.results if isinstance(x, LocalValue)}
    inner, outer = (
        tuple(i for i, x in enumerate(values) if x.id not in ends and x.value.type.shape)
        for values in (part.args, part.results)
    )
    return inner, outer
