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


class Layered:
    """Traced calls with layers as scans, each made once for all pipelines of a choice."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[Traced, Traced, int]] = {}

    def __call__(self, traced: Traced, again: int) -> tuple[Traced, int]:
        """`with_layers(traced, again)`."""
        key = id(traced), again
        if key not in self._made:
            self._made[key] = traced, *with_layers(traced, again)
        return self._made[key][1:]


def with_loops(traced: Traced, loop: Rewrites, layered: Layered | None = None) -> Traced:
    """A traced call with the loops of `loop`; the rewrites say how many ops run again, not more.

    Args:
      layered: calls made earlier.

    Raises:
      ValueError: the batch cannot be split, or the program has no layers to run as stages.
    """
    forms: list[PipelineForm] = []
    for form in loop.pipeline:
        traced, again = (layered or Layered())(traced, form.again)
        forms.append(dataclasses.replace(form, again=again))
    loop = dataclasses.replace(loop, pipeline=tuple(forms))
    if loop.microbatches > 1:
        traced = with_microbatches(traced, loop.microbatches)
    for form in loop.pipeline:
        rewrite = functools.partial(_pipelined, form=form, microbatches=loop.microbatches)
        traced = traced.run("pipeline", rewrite)
    return dataclasses.replace(traced, rewrites=loop)


def with_layers(traced: Traced, again: int = 0) -> tuple[Traced, int]:
    """A traced call with layers as scans, and the number of ops of a layer run again.

    Scores of attention are no residuals: backward layers compute them again.

    Args:
      again: number of further ops of a layer that backward layers repeat; layers of a user's scan
        repeat none.
    """
    count = 0

    def rewrite(module: Module) -> Module:
        nonlocal count
        rolled = roll(module, forward_ops(module, RuleTable()), again)
        count = rolled.again
        return rolled.module

    found = traced.run("scan_layers", rewrite)
    return found, count


def _pipelined(module: Module, form: PipelineForm, microbatches: int) -> Module:
    try:
        return pipelined(module, form.timetable(microbatches), (*RULES, *UNRULED))
    except ValueError as error:
        raise ValueError(f"Pipeline({form.axis!r}): {error}") from None
