"""`shard_map` inside of a partitioned function: tiled as its specs say, run as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from partir_search.aot.hlo import hlo_collectives
from partir_search.aot.verify import compare
from tests.support import check_partition, module_of, state_of

P = jax.P


def auto_mesh() -> jax.sharding.Mesh:
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((2, 4), ("batch", "model"), axis_types=auto)


def region(check_vma: bool) -> Callable[..., Any]:
    """A product whose sums the user takes, a shift along the other axis, and a loop around."""

    def body(x: Any, w: Any) -> Any:
        y = jax.jit(jnp.matmul)(x, w)
        shifted = lax.ppermute(y, "batch", [(0, 1), (1, 0)])

        def step(carry: Any, _: None) -> tuple[Any, None]:
            return lax.psum(carry, "model") / 4 + lax.axis_index("model"), None

        if not check_vma:
            return lax.psum(y + shifted, "model")
        return lax.scan(step, y + shifted, None, length=2)[0]

    specs = (P("batch", "model"), P("model", None))
    out = P("batch", "model") if check_vma else P("batch", None)
    return jax.shard_map(body, mesh=auto_mesh(), in_specs=specs, out_specs=out, check_vma=check_vma)


@pytest.mark.devices
@pytest.mark.parametrize("check_vma", [True, False])
def test_equals_plain(check_vma: bool) -> None:
    """Forward and backward, with a schedule and by search; tiles meet without communication."""
    inner = region(check_vma)

    def step(x: Any, w: Any) -> Any:
        grads = jax.grad(lambda w: (inner(jnp.sin(x), w) ** 2).sum())(w)
        return w - grads, inner(x, w)

    args = jnp.arange(32.0).reshape(4, 8) / 32, jnp.cos(jnp.arange(64.0)).reshape(8, 8)
    want = jax.jit(step)(*args)
    for schedule in ([ps.ManualPartition({"x": 0}, axis="batch")], None):
        partitioned = ps.auto_partition(
            auto_mesh(), machine="tpu_v5e", schedule=schedule, episodes=30
        )(step)
        plan = partitioned.plan(*args)
        assert not plan.opaque()
        assert plan.collective_counts["all_gather"] == 0
        assert plan.collective_counts["collective_permute"] > 0  # the user's
        assert ps.stablehlo_counts(partitioned.lower(*args).as_text()) == plan.collective_counts
        assert plan.cost.bytes_by_kind["collective_permute"] > 0
        sources = {c.source for c in plan.collectives if c.kind == "collective_permute"}
        assert all("test_manual_regions.py" in s for s in sources)
        compiled = partitioned.lower(*args).compile().as_text()
        assert not compare(plan.program, hlo_collectives(compiled))[2]
        for a, b in zip(partitioned(*args), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.devices
def test_by_the_oracle() -> None:
    inner = region(check_vma=True)

    def fn(x: Any, w: Any) -> Any:
        return inner(x * 2, w)

    args = jnp.arange(32.0).reshape(4, 8) / 32, jnp.ones((8, 8))
    state = state_of(module_of(fn, *args))
    check_partition(state.partition(), fn, args)


def test_other_devices_are_refused() -> None:
    mesh = jax.sharding.AbstractMesh((2, 2), ("batch", "model"))
    inner = region(check_vma=True)
    step = ps.auto_partition(mesh, machine="cpu")(lambda x, w: inner(x, w))
    with pytest.raises(
        ValueError, match=r"test_manual_regions\.py.* another number of devices.*batch:2, model:2"
    ):
        step.plan(jnp.ones((4, 8)), jnp.ones((8, 8)))


def test_meshes_that_a_region_refuses_are_no_remedies() -> None:
    inner = region(check_vma=True)
    goals = [ps.Fit(100), ps.Fastest()]
    step = ps.auto_partition(auto_mesh(), machine="cpu", goals=goals, episodes=1)(inner)
    with pytest.raises(ps.DoesNotFit, match="no mesh of up to 64 times the devices fits either"):
        step(jnp.ones((4, 8)), jnp.ones((8, 8)))
