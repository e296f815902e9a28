"""Steps on meshes with axes of one device: a laptop, one GPU, `model:1` in a script's flags."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import partir_search as ps
from models.catalog import MODELS


@pytest.mark.parametrize(
    ("model", "shape"), [("moe-tiny", (1,)), ("dlrm-tiny", (1, 1)), ("dlrm-tiny", (2, 1))]
)
def test_axes_of_one_device(model: str, shape: tuple[int, ...]) -> None:
    """Planned by a search, whatever dims of one element known strategies tile; run as plain jax."""
    names, entry = ("data", "model")[: len(shape)], MODELS[model]
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, names, (AxisType.Auto,) * len(shape), devices=devices)
    args = jax.jit(lambda: entry.args(8))()
    step = ps.auto_partition(mesh, machine="h100", episodes=20, progress=False)(entry.step)
    plan = step.plan(*args)
    if mesh.size == 1:
        assert not plan.collectives
    found, expected = step(*args), jax.jit(entry.step)(*args)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
