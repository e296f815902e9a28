"""Loops over microbatches of a traced call: one part after the other, or as a pipeline."""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Module
from partir_search.passes.pipeline.loop_parts import NoPipeline
from partir_search.passes.pipeline.module import pipelined
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.microbatch import with_microbatches
from partir_search.planning.trace import Traced
from partir_search.rules import RULES
from partir_search.rules.unruled import UNRULED


def with_loops(traced: Traced, loop: Rewrites) -> Traced:
    """A traced call with the loops of `loop`.

    Raises:
      ValueError: the batch cannot be split, or the program has no layers to run as stages.
    """
    if loop.microbatches > 1:
        traced = with_microbatches(traced, loop.microbatches)
    for form in loop.pipeline:
        schedule = form.timetable(loop.microbatches)

        def rewrite(module: Module) -> Module:
            try:
                return pipelined(module, schedule, (*RULES, *UNRULED))
            except NoPipeline as error:
                raise ValueError(f"Pipeline({form.axis!r}): {error}") from None

        traced = traced.run("pipeline", rewrite)
    return dataclasses.replace(traced, rewrites=loop)
