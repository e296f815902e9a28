"""Segments run one after another compute the whole step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search.segments.run import runnable
from tests.segments.programs import (
    DP,
    SMALL,
    ZERO3,
    known,
    mesh,
    perceptron,
    run_both,
    transformer,
)
from tests.support import assert_same


@pytest.mark.parametrize("plan", [DP, ZERO3])
def test_the_whole_step(plan: str) -> None:
    segments = perceptron(3)[plan].segments(mesh())
    assert max(each.instances for each in segments.unique) == 3
    assert_same(*zip(*run_both(segments), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("plan", [DP, ZERO3, "BP(data)+MP(model)+SP"])
def test_the_whole_step_of_a_transformer(plan: str) -> None:
    assert_same(*zip(*run_both(transformer(2, plan).segments(mesh())), strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        *("gpt-scan-tiny", "nnx-scan-tiny", "moe-tiny", "llama-tiny", "opt-tiny", "lstm-tiny"),
        *("graph-net-tiny", "unet-tiny", "resnet-tiny"),
    ],
)
@pytest.mark.parametrize("plan", [DP, "MP(model)"])
def test_the_whole_step_of_other_models(model: str, plan: str) -> None:
    """Scans, rematerialisation, halos and partial sums."""
    pairs = run_both(known(model)[plan].segments(mesh()))
    assert_same(*zip(*pairs, strict=True), tolerance=1e-4)


@pytest.mark.long
def test_rematerialised_layers() -> None:
    entry = MODELS["transformer-tiny"].resized(layers=3, **SMALL)
    step = ps.auto_partition(
        mesh(), schedule=known(layers=3, **SMALL)[DP], machine="cpu", remat=True, progress=False
    )(entry.step)
    found = step.plan(*entry.abstract_args(8)).segments(mesh())
    assert_same(*zip(*run_both(found), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("model", sorted(n for n in MODELS if n.endswith("-tiny")))
def test_every_segment_runs(model: str) -> None:
    """The middle copy of each unique segment, of a plan with both axes, lowers for its mesh."""
    plans = known(model)
    for name in list(plans)[-1:]:
        for each in plans[name].segments(mesh()).unique:
            part = runnable(each, mesh())
            part.jitted.lower(*part.structs)


def test_other_devices() -> None:
    """A segment scheduled for TPUs is not run on CPUs."""
    step = ps.auto_partition(mesh(), schedule=[], machine="tpu_v5e", progress=False)(jnp.sin)
    plan = step.plan(jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(ValueError, match=r"plan\.segments\(mesh\)"):
        runnable(plan.segments().unique[0], mesh())
    assert runnable(plan.segments(mesh()).unique[0], mesh()).structs
