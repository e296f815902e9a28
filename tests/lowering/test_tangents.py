"""Tangents of attention: both factors of a product come from sums, and each is read twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.lowering.verify_local import verify_local
from tests.support import check_partition, floats_of

B, S, D, H = 8, 8, 16, 2
SHAPES = {
    **dict.fromkeys(["q", "k", "v", "o"], (D, D)),
    "in": (4, D),
    "up": (D, 4 * D),
    "down": (4 * D, D),
    "out": (D, 4),
}


def layer(x: Any, *weights: Any) -> Any:
    """A layer with its tangent, as losses of flow matching have."""
    w = dict(zip(SHAPES, weights, strict=True))

    def of(x: Any) -> Any:
        x = x @ w["in"]
        h = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        q, k, v = ((h @ w[name]).reshape(B, S, H, D // H) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ w["o"]
        return (x + jnp.tanh(x @ w["up"]) @ w["down"]) @ w["out"]

    return jax.jvp(of, (x,), (jnp.cos(x),))


@pytest.mark.devices
def test_sums_of_both_factors_are_finished_before_their_product() -> None:
    """Megatron's tensor parallelism with tiled sequences, a known strategy."""
    args = [x / 4 for x in floats_of((B, S, 4), *SHAPES.values())]
    mesh = AbstractMesh((2, 2), ("data", "model"))
    known = ps.auto_partition(mesh, machine="tpu_v5e")(layer).known_plans(*args)
    schedule = known["BP(data)+MP(model)+SP"]
    plan = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(layer).plan(*args)
    verify_local(plan.program)
    check_partition(plan.partition, layer, args)
