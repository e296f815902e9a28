"""argmax, argmin and top_k along a tiled dim: devices exchange candidates, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.passes.block_selections import with_block_selections
from tests.support import module_of, state_of, tile_arg

Step = Callable[[Any], Any]
ROWS, COLS, BLOCKS = 8, 16_384, 8
GRID = MeshShape(("data", "model"), (2, 4))


def rows() -> np.ndarray:
    """Rows with equal elements, infinities and NaN."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLS)).astype(np.float32)
    x[1] = 0
    x[2] = -np.inf
    x[3, [17, 3000]] = np.nan
    x[4], x[4, 3333] = -np.inf, -5
    x[5] = np.round(x[5])
    x[6, 2000] = np.nan
    return x


X = rows()


def finite(x: Any) -> Any:
    return jnp.nan_to_num(x, nan=0.0, posinf=9.0, neginf=-9.0)


def gradient_of_largest(x: Any) -> Any:
    return jax.grad(lambda y: (lax.top_k(jnp.tanh(finite(y)), 6)[0] ** 2).sum())(x)


def one_after_the_other(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        at = jnp.argmax(c, -1)
        return c.at[jnp.arange(ROWS), at].set(-jnp.inf), at

    return lax.scan(step, finite(x), None, length=3)[1]


def half(x: Any) -> Any:
    y = x.astype(jnp.bfloat16)
    return jnp.argmax(y, -1), lax.top_k(y, 3)


STEPS: dict[str, tuple[Step, int]] = {  # with bytes of the candidates of a row and block
    "argmax": (lambda x: jnp.argmax(x, -1), 8),
    "argmin": (lambda x: jnp.argmin(x, -1), 8),
    "argmax of columns": (lambda x: jnp.argmax(x.T, 0), 8),
    "top 5": (lambda x: lax.top_k(x, 5), 40),
    "top 16 of equal elements": (lambda x: lax.top_k(jnp.round(x * 4), 16), 128),
    "argmin of integers": (lambda x: jnp.argmin((finite(x) * 3).astype(jnp.int32), -1), 8),
    "top 7 of bytes": (lambda x: lax.top_k(jnp.where(x > 0, 5, -3).astype(jnp.int8), 7), 35),
    "first true": (lambda x: jnp.argmax(x > 1.5, -1), 5),
    "bf16": (half, 24),
    "gradient": (gradient_of_largest, 48),
    "sample": (lambda x: jax.random.categorical(jax.random.key(0), finite(x)), 8),
    "in a loop": (one_after_the_other, 24),
}


@pytest.mark.devices
@pytest.mark.parametrize("axes", [("model",), ("model", "data")], ids="+".join)
@pytest.mark.parametrize("name", STEPS)
def test_equals_plain(name: str, axes: tuple[str, ...]) -> None:
    """Bit for bit, with nothing but the candidates of 8 blocks in collectives."""
    step, nbytes = STEPS[name]
    mesh = jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto,) * 2)
    schedule = [ps.ManualPartition({"x": 1}, axis=axis) for axis in axes]
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)
    plan = partitioned.plan(X)
    assert plan.collective_counts["all_gather"] >= 2
    assert sum(plan.collective_counts.values()) == plan.collective_counts["all_gather"]
    assert plan.cost.bytes_by_kind["all_gather"] <= ROWS * BLOCKS * nbytes
    assert ps.stablehlo_counts(partitioned.lower(X).as_text()) == plan.collective_counts
    for a, b in zip(
        jax.tree.leaves(partitioned(X)), jax.tree.leaves(jax.jit(step)(X)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize("step", [jnp.argmax, lax.top_k], ids=["argmax", "top_k"])
def test_printed(step: Callable[..., Any], golden: Callable[[str], None]) -> None:
    module = with_block_selections(module_of(functools.partial(_of_rows, step), X), GRID)
    state = state_of(module, GRID)
    tile_arg(state, 0, 1, "model")
    golden(print_partition(state.partition()))


def _of_rows(step: Callable[..., Any], x: Any) -> Any:
    return lax.top_k(x, 5) if step is lax.top_k else step(x, -1)


@pytest.mark.parametrize("cols", [4095, 1000, 64])
def test_dims_that_are_not_selected_in_blocks(cols: int) -> None:
    """Candidates of short dims are no fewer than elements."""
    module = module_of(lambda x: jnp.argmax(x, -1), jnp.ones((4, cols)))
    assert with_block_selections(module, GRID) is module


def test_accuracy_leaves_logits_where_they_are() -> None:
    """The accuracy of a model whose vocabulary is sharded gathers candidates, no logits."""

    def step(w: Any, x: Any, labels: Any) -> Any:
        def loss(w: Any) -> Any:
            logits = (x @ w).astype(jnp.float32)
            picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
            entropy = jax.nn.logsumexp(logits, -1) - picked
            return entropy.mean(), (jnp.argmax(logits, -1) == labels).mean()

        (value, accuracy), g = jax.value_and_grad(loss, has_aux=True)(w)
        return w - 0.1 * g, value, accuracy

    kinds = (((64, 8192), jnp.float32), ((512, 64), jnp.float32), ((512,), jnp.int32))
    args = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    schedule = [ps.ManualPartition({"x": 0}, "data"), ps.ManualPartition({"w": 1}, "model")]
    plan = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step).plan(*args)
    assert max(c.bytes for c in plan.collectives) <= 64 * 8192 // 4 * 4
    assert plan.cost.bytes_by_kind["all_gather"] <= 256 * BLOCKS * 8
