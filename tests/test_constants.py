"""Arrays that a function closes over: small ones stand in the program, large ones are passed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir import core
from tests.support import floats_of

P = jax.P
TABLE, LOOPED, X, STATE = floats_of((32, 16), (16, 16), (8, 32), (32, 16))


def step(state: Any, x: Any, *, scale: Any) -> Any:
    def turn(carry: Any, _: None) -> tuple[Any, None]:
        return jnp.tanh(carry @ LOOPED), None

    y = jax.lax.scan(turn, x @ TABLE * scale, None, length=3)[0]
    return state + TABLE + y.sum(), y


@pytest.mark.devices
def test_large_constants_are_tiled_and_passed(
    mesh: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As arguments of the compiled program, not in its text; donation and keywords as ever."""
    monkeypatch.setattr(core, "LARGE_CONSTANT", 32 * 16 * 4)
    batch, model = mesh.axis_names
    want = jax.jit(step)(STATE, X, scale=2.0)
    tactics = [ps.ManualPartition({"x": 0}, axis=batch), ps.ManualPartition({"x": 1}, axis=model)]
    for schedule in (tactics, None):
        partitioned = ps.auto_partition(
            mesh, machine="cpu", schedule=schedule, episodes=10, donate_argnums=0
        )(step)
        with pytest.warns(UserWarning, match=r"closes over an array f32\[32,16\].*test_constants"):
            got = partitioned(jnp.array(STATE), X, scale=2.0)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        text = partitioned.lower(STATE, X, scale=2.0).as_text()
        assert "tensor<16x16xf32>" in text  # the small one is a constant
        entry = next(line for line in text.splitlines() if "@main" in line)
        assert entry.count("tensor<32x16xf32>") == 3  # it, the state, and the new state
        if schedule:
            assert "tensor<8x16xf32>" in text  # tiled by what propagates
            donor = entry.split("%arg1")[1].split("%arg2")[0]
            assert "donor" in donor or "aliasing" in donor


@pytest.mark.devices
def test_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "LARGE_CONSTANT", 32 * 16 * 4)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"), axis_types=auto)
    partitioned = ps.auto_partition(mesh, machine="cpu", episodes=5)(step)
    with pytest.warns(UserWarning, match="closes over"):
        lowered = partitioned.lower(STATE, X, scale=2.0)
    assert "tensor<32x16xf32>" in lowered.as_text()
