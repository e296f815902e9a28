"""`with_rule`: a function with shapes inside, called again on tiles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.kind import Kind
from partir_search.rules.user import Equation


def _product(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
    out_ref[...] = jnp.einsum("bsd,df->bsf", x_ref[...], w_ref[...])


@ps.with_rule("b s d, d f -> b s f", flops_per_point=2.0)
def product(x: Any, w: Any) -> Any:
    """A Pallas kernel whose grid runs over the batch."""
    (b, s, d), f = x.shape, w.shape[1]
    return pl.pallas_call(
        _product,
        out_shape=jax.ShapeDtypeStruct((b, s, f), x.dtype),
        grid=(b,),
        in_specs=[
            pl.BlockSpec((1, s, d), lambda i: (i, 0, 0)),
            pl.BlockSpec((d, f), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((1, s, f), lambda i: (i, 0, 0)),
        interpret=True,
    )(x, w)


@jax.custom_vjp
def layer(x: Any, w: Any) -> Any:
    return product(x, w)


def _backward(kept: Any, g: Any) -> Any:
    x, w = kept
    return product(g, w.T), jnp.einsum("bsd,bsf->df", x, g)


layer.defvjp(lambda x, w: (product(x, w), (x, w)), _backward)


def _step(x: Any, w: Any) -> Any:
    return jax.value_and_grad(lambda w: (layer(x, w) ** 2).sum())(w)


def _args() -> tuple[jax.Array, jax.Array]:
    return jnp.arange(256.0).reshape(8, 4, 8) / 100, jnp.arange(64.0).reshape(8, 8) / 64


@pytest.mark.devices
@pytest.mark.parametrize(
    "tiles,reductions",
    [({"x": (0, "batch"), "w": (1, "model")}, 2), ({"x": (2, "model")}, 1)],
)
def test_kernel_runs_on_tiles(
    tiles: dict[str, tuple[int, str]], reductions: int, mesh: jax.sharding.Mesh
) -> None:
    """Tiled along its batch and columns, and along the dim that it sums."""
    schedule = [ps.ManualPartition({arg: dim}, axis=axis) for arg, (dim, axis) in tiles.items()]
    step = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(_step)
    args = _args()
    plan = step.plan(*args)
    assert not plan.opaque()
    assert plan.collective_counts["all_reduce"] == reductions
    assert plan.collective_counts["all_gather"] == 0
    for a, b in zip(step(*args), jax.jit(_step)(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_outside_of_a_plan_it_is_the_function() -> None:
    x, w = _args()
    want = jnp.einsum("bsd,df->bsf", x, w)
    np.testing.assert_allclose(product(x, w), want, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(product, (0, None))(x[:, None], w)[:, 0], want, rtol=1e-5)
    slope = jax.grad(lambda v: ps.with_rule("i -> i")(jnp.sin)(v).sum())(w[0])
    np.testing.assert_allclose(slope, jnp.cos(w[0]), rtol=1e-6)


def test_bad_equations() -> None:
    with pytest.raises(ValueError, match="write the rule of 'sin' as"):
        ps.with_rule("i")(jnp.sin)
    wrong = ps.with_rule("i j -> i j")(jnp.sin)
    mesh = jax.sharding.AbstractMesh((2,), ("batch",))
    with pytest.raises(ValueError, match="does not fit a value of type"):
        ps.auto_partition(mesh, machine="cpu")(lambda x: wrong(x)).plan(jnp.ones(4))


def test_a_kernel_that_contracts_is_priced_as_a_product() -> None:
    """The same seconds and known strategies as of jax's own product, without a word on flops."""

    def matmul(x: Any, w: Any) -> Any:
        return x @ w

    def planned(product: Any) -> dict[str, ps.Plan]:
        def step(w: dict[str, Any], x: Any) -> Any:
            return product(jnp.tanh(product(x, w["up"])), w["down"])

        bf16 = jnp.bfloat16
        w = {
            "up": jax.ShapeDtypeStruct((4096, 16384), bf16),
            "down": jax.ShapeDtypeStruct((16384, 4096), bf16),
        }
        mesh = AbstractMesh((4, 2), ("batch", "model"))
        partitioned = ps.auto_partition(mesh, machine="tpu_v5p", progress=False)(step)
        return partitioned.known_plans(w, jax.ShapeDtypeStruct((8192, 4096), bf16))

    ours = planned(ps.with_rule("m k, k n -> m n")(matmul))
    jaxs = planned(matmul)
    assert ours.keys() == jaxs.keys()
    for name, plan in ours.items():
        assert plan.cost.flops == jaxs[name].cost.flops
        assert plan.cost.seconds == pytest.approx(jaxs[name].cost.seconds, rel=0.02), name


@pytest.mark.parametrize(
    "equation,kind",
    [
        ("m k, k n -> m n", Kind.CONTRACTION),
        ("m k, k -> m k", Kind.ELEMENTWISE),
        ("m k -> m", Kind.REDUCTION),
        ("m ., . n -> m n", Kind.ELEMENTWISE),
    ],
)
def test_an_equation_says_the_kind(equation: str, kind: Kind) -> None:
    assert Equation.parse("f", equation).kind is kind
