"""Forms of scans: results of an iteration that are stored, and those that run again."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.passes.views import with_views
from partir_search.plan.planned import Planned
from partir_search.planning.known_strategies import known_actions
from partir_search.planning.memory_fit import kinds_of
from partir_search.planning.planner import Planner
from partir_search.planning.segment_peaks import predict_segments
from partir_search.planning.trace import read_call, split_call, trace_call
from partir_search.simulator.target.machine import find_machine


def scanned_attention(inside: bool) -> Module:
    """A scan over layers of attention, without a checkpoint of its own.

    Args:
      inside: the mask is broadcast inside of the scans; else before, as jax traces it.
    """
    entry = MODELS["gpt-scan-tiny"].resized(remat="", layers=4, seq=256, d_model=128, heads=4)
    step, args = jax.jit(entry.step), entry.abstract_args(16)
    call = split_call(step, args, {}, (), ())
    if inside:
        return trace_call(step, call, args, {}, "step").module
    return read_call(step, call, args, {}, "step").run("views", with_views).module


@pytest.mark.parametrize("inside", [False, True])
def test_predicted_peaks_and_seconds_of_scans(inside: bool) -> None:
    """Predictions for scans with stored results agree with plans of rewritten programs.

    With masks inside of the scans one form peaks above the form before, by 0.3 % of the plain peak.
    """
    module, mesh, v5e = (
        scanned_attention(inside),
        MeshShape(("data",), (2,)),
        find_machine("tpu_v5e"),
    )
    segments = find_segments(module)
    assert [module.body.ops[begin].prim for begin, _ in segments] == ["scan"]

    def at(some: Sequence[Range]) -> Planned:
        form = rematerialize(module, some) if some else module
        return Planner(form, mesh, v5e).replay_compatible(actions)[0]

    actions = dict(known_actions(Planner(module, mesh, v5e)))["BP(data)"]
    plain, full = at(()), at(segments)
    peaks = predict_segments(module, segments, kinds_of(module, segments), plain, full)
    assert peaks is not None
    (forms,) = peaks.forms.values()
    assert forms[-1] == segments[0]
    assert len(forms) >= 4
    seconds, nbytes, predicted, costed = [], [], [], []
    for form in forms:
        cost = at([form]).cost
        spent = peaks.spent([form])
        assert abs(peaks.peak([form]) - cost.peak_bytes) < 0.06 * plain.cost.peak_bytes
        assert plain.cost.seconds + spent == pytest.approx(cost.seconds, rel=0.04)
        seconds.append(spent)
        costed.append(cost.seconds)
        nbytes.append(cost.peak_bytes)
        predicted.append(peaks.peak([form]))
    fastest = seconds.index(min(seconds))
    assert seconds[:fastest] == sorted(seconds[:fastest], reverse=True)
    assert seconds[fastest:] == sorted(seconds[fastest:])
    assert costed[fastest] < 1.015 * min(costed)
    assert predicted == sorted(predicted, reverse=True)
    if not inside:
        assert nbytes == sorted(nbytes, reverse=True)
    assert np.diff(nbytes).max() < 0.004 * plain.cost.peak_bytes
    assert plain.cost.seconds + seconds[-1] == pytest.approx(full.cost.seconds)
