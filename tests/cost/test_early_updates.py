"""Updates that run early, and values gathered for donated arguments."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps

LAYERS, WIDTH, BATCH = 6, 2048, 64
WEIGHT = 4.0 * WIDTH * WIDTH
MESH = AbstractMesh((2, 4), ("data", "model"))


def peak_of(name: str, clipped: bool = False, **traits: object) -> float:
    """Peak bytes, without arguments, of a known plan of an MLP's step with momentum, on v5e."""

    def step(state, x, y):
        weights, momenta = state

        def loss(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return ((h - y) ** 2).mean()

        grads = jax.grad(loss)(weights)
        if clipped:
            norm = jnp.sqrt(sum((g * g).sum() for g in grads))
            grads = [g / norm for g in grads]
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)], momenta

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    data = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    machine = ps.Target.parse("tpu_v5e:2x4").machine.with_traits(
        **{"reorders_kernels": False} | traits
    )
    partitioned = ps.auto_partition(MESH, machine=machine, donate_argnums=0, progress=False)(step)
    cost = partitioned.known_plans((weights, weights), data, data)[name].cost
    return float(cost.peak_bytes - cost.argument_bytes)


def test_gradients_wait_for_the_end_of_the_step_where_updates_do() -> None:
    none = {"vmem_value_fraction": 0.0}  # on the chip
    late = peak_of("BP(data+model)", updates_early=False, **none)
    early = peak_of("BP(data+model)", combined_reduction_bytes=0, **none)
    assert late - early == pytest.approx((LAYERS - 1) * WEIGHT, rel=0.02)


def test_gradients_wait_for_combined_all_reduces() -> None:
    alone, pairs = (
        peak_of("BP(data+model)", combined_reduction_bytes=int(n * WEIGHT)) for n in (1, 2)
    )
    assert pairs - alone == pytest.approx(WEIGHT, rel=0.1)


def test_gradients_scaled_by_a_norm_wait_for_all() -> None:
    late, early = (peak_of("BP(data+model)", True, updates_early=e) for e in (False, True))
    assert late == early


def test_values_gathered_for_donated_arguments_wait_together() -> None:
    without, with_ = (peak_of("BP(data+model)+Z2", gathers_donated_last=g) for g in (False, True))
    assert with_ > (LAYERS - 1) * WEIGHT > without
