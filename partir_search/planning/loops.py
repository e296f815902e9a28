"""Loops over microbatches of a traced call: one part after the other, or as a pipeline."""

from __future__ import annotations

import dataclasses
import functools

from partir_search.ir.core import Module
from partir_search.passes.attention import forward_ops
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.pipeline.module import pipelined
from partir_search.passes.roll import roll
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.microbatch import with_microbatches
from partir_search.planning.trace import Traced
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED


def with_loops(traced: Traced, loop: Rewrites) -> Traced:
    """A traced call with the loops of `loop`.

    Raises:
      ValueError: the batch cannot be split, or the program has no layers to run as stages.
    """
    if loop.pipeline and all(record.name != "scan_layers" for record in traced.passes):
        traced = with_layers(traced)
    if loop.microbatches > 1:
        traced = with_microbatches(traced, loop.microbatches)
    for form in loop.pipeline:
        rewrite = functools.partial(_pipelined, form=form, microbatches=loop.microbatches)
        traced = traced.run("pipeline", rewrite)
    return dataclasses.replace(traced, rewrites=loop)


def with_layers(traced: Traced) -> Traced:
    """A traced call with layers as scans.

    Scores of attention are no residuals: backward layers compute them again.
    """
    return traced.run(
        "scan_layers", lambda module: roll(module, forward_ops(module, RuleTable())).module
    )


def _pipelined(module: Module, form: PipelineForm, microbatches: int) -> Module:
    try:
        return pipelined(module, form.timetable(microbatches), (*RULES, *UNRULED))
    except ValueError as error:
        raise ValueError(f"Pipeline({form.axis!r}): {error}") from None
