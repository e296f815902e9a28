"""Loops over microbatches of a traced call: one part after the other, or as a pipeline."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from partir_search.ir.core import Module, walk_regions
from partir_search.passes.attention import forward_phases
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.pipeline.loop_parts import NoLayers, named
from partir_search.passes.pipeline.module import pipelined
from partir_search.passes.roll import Again, roll
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.microbatch import with_microbatches
from partir_search.planning.trace import Traced
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED
from partir_search.simulator.op_kinds import total_flops


class Layered:
    """Traced calls with layers as scans, loops and pipelines, each made once for a choice.

    Pipelines along axes of one size are one program.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[int, int, float], tuple[Traced, Traced, int]] = {}
        self._loops: dict[tuple[int, int, Any], tuple[Traced, Traced]] = {}

    def __call__(self, traced: Traced, again: int, spared: float = 0.0) -> tuple[Traced, int]:
        """`with_layers(traced, again, spared)`."""
        key = id(traced), again, spared
        if key not in self._layers:
            self._layers[key] = traced, *with_layers(traced, again, spared)
        return self._layers[key][1:]

    def in_parts(self, traced: Traced, microbatches: int) -> Traced:
        """`with_microbatches(traced, microbatches)`."""
        key = id(traced), microbatches, None
        if key not in self._loops:
            self._loops[key] = traced, with_microbatches(traced, microbatches)
        return self._loops[key][1]

    def pipelined(self, traced: Traced, form: PipelineForm, microbatches: int) -> Traced:
        """A call with the loop over microbatches run as a pipeline."""
        key = id(traced), microbatches, (form.timetable(microbatches), form.staged_state)
        if key not in self._loops:
            rewrite = functools.partial(_pipelined, form=form, microbatches=microbatches)
            self._loops[key] = traced, traced.run("pipeline", rewrite)
        return self._loops[key][1]


def with_loops(traced: Traced, loop: Rewrites, layered: Layered | None = None) -> Traced:
    """A traced call with the loops of `loop`; the rewrites say how many ops run again, not more.

    Args:
      layered: calls made earlier.

    Raises:
      ValueError: the batch cannot be split, or the program has no layers to run as stages.
    """
    layered = layered or Layered()
    forms: list[PipelineForm] = []
    for form in loop.pipeline:
        rolled, again = layered(traced, form.again, form.spared)
        spared = 0.0 if rolled.module is traced.module else form.spared
        forms.append(dataclasses.replace(form, again=again, spared=spared))
        traced = rolled
    loop = dataclasses.replace(loop, pipeline=tuple(forms))
    if loop.microbatches > 1:
        traced = layered.in_parts(traced, loop.microbatches)
    for form in loop.pipeline:
        traced = layered.pipelined(traced, form, loop.microbatches)
    return dataclasses.replace(traced, rewrites=loop)


def with_layers(traced: Traced, again: int = 0, spared: float = 0.0) -> tuple[Traced, int]:
    """A traced call with layers as scans, and the number of ops of a layer run again.

    Scores of attention are no residuals: backward layers compute them again. Maxima, sums and
    results are, unless further ops are repeated.

    Args:
      again: number of further ops of a layer that backward layers repeat; layers of a user's scan
        repeat none.
      spared: share of a layer's residuals, in bytes, that ops run again spare, of the fewest
        operations; 0 for the makers of the largest residuals.
    """
    count, rules = 0, RuleTable()

    def rewrite(module: Module) -> Module:
        nonlocal count
        attentions = forward_phases(module, rules)
        rolled = roll(module, Again(again, spared, lambda op: total_flops([op], rules), attentions))
        count = rolled.again
        return rolled.module

    found = traced.run("scan_layers", rewrite)
    return found, count


def _pipelined(module: Module, form: PipelineForm, microbatches: int) -> Module:
    try:
        timetable = form.timetable(microbatches)
        return pipelined(module, timetable, (*RULES, *UNRULED), staged=form.staged_state)
    except NoLayers as error:
        why = f"{error}; {_unlike(module)}"
        remedy = "a jax.lax.scan over stacked parameters has layers of any ops"
        raise ValueError(f"Pipeline({form.axis!r}): {why}; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"Pipeline({form.axis!r}): {error}") from None


def _unlike(module: Module) -> str:
    """Reasons against rolling repeated ops; without any, the largest forward product or op."""
    reasons = roll(module).reasons
    if reasons:
        return "; ".join(reasons[:2])
    rules = RuleTable()
    ops = [op for region in walk_regions(module.body) for op in region.ops]
    forward = [op for op in ops if not op.backward and not op.regions]
    largest = max(forward, key=lambda op: (rules(op).contracts, total_flops([op], rules)))
    return f"{named(largest)} repeats nowhere with values of its own"
