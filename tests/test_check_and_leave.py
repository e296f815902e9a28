"""Checks of a plan against the plain function, and ways to leave the package."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import partir_search as ps
from models.catalog import MODELS
from partir_search.calling.executables import Executables
from partir_search.plan.check import compared

pytestmark = pytest.mark.devices


def mixed(state: Any, batch: Any, key: Any) -> Any:
    """Results of several types."""
    noise = jax.random.normal(key, batch.shape)
    new = state - 0.1 * (batch + noise).T @ batch
    return new, jax.random.split(key)[0], jnp.argmax(new), new.astype(jnp.bfloat16)


def test_check_agrees(mesh: jax.sharding.Mesh) -> None:
    """With donated state, keys, whole numbers; with abstract arguments, and smaller ones."""
    schedule = [
        ps.ManualPartition({"batch": 0}, axis="batch"),
        ps.ManualPartition({"state": 1}, axis="model"),
    ]
    options: dict[str, Any] = {"machine": "tpu_v5e", "donate_argnums": 0, "schedule": schedule}
    step = ps.auto_partition(mesh, **options)(mixed)
    shapes = jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32)
    key = jax.random.key(3)
    plan = step.plan(*shapes, key)
    found = plan.check(step, *shapes, key)
    assert found.ok
    assert len(found.leaves) == 4
    assert "they agree" in str(found)
    small = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.warns(UserWarning, match="what still holds of it is applied"):
        assert plan.check(step, small, small, key).ok


def test_check_has_the_state_of_the_plan(
    mesh: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay with other pairs of argument and result propagates otherwise, and may fail."""
    replayed: list[Any] = []

    class Watched(Executables):
        def entry(self, *call: Any) -> Any:
            replayed.append(super().entry(*call))
            return replayed[-1]

    x = jnp.ones((8, 16))
    options: dict[str, Any] = {"machine": "tpu_v5e", "episodes": 20, "progress": False}
    donating = ps.auto_partition(mesh, **options, donate_argnums=0)(lambda w, x: w - x.T @ x)
    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))

    @ps.auto_partition(mesh, **options)
    def moved(model: Any, x: Any) -> Any:
        model.kernel[...] = model.kernel[...] - x.T @ x
        return model(x)

    steps: list[Any] = [donating, moved]
    for step, state in zip(steps, (jnp.ones((16, 16)), model), strict=True):
        plan = step.plan(state, x)
        with monkeypatch.context() as patch:
            patch.setattr("partir_search.calling.partitioned.Executables", Watched)
            assert step.check(state, x).ok
        assert replayed[-1].plan.module.ties == plan.module.ties != ()


def test_check_has_the_types_of_the_arguments(mesh: jax.sharding.Mesh) -> None:
    """Weak types and Python's numbers are no changed program, which would warn."""
    step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=20, progress=False)(
        lambda x, weak, rate: (x.astype(jnp.bfloat16) * weak, x.astype(jnp.bfloat16) * rate)
    )
    weak = jnp.full((8, 16), 0.5)
    assert weak.weak_type
    for args in ((jnp.ones((8, 16)), weak, 0.25), (np.ones((8, 16), np.float32), 0.5, weak)):
        assert step.check(*args).ok
        shapes = [getattr(jax.typeof(x), "weak_type", False) for x in args]
        assert shapes.count(True) == 2
    struct = jax.ShapeDtypeStruct((8, 16), jnp.float32, weak_type=True)
    assert step.check(struct, struct, 2.0).ok


@ps.with_rule("a b -> a b")
def running_sum(x: Any) -> Any:
    """With a rule that is wrong: not elementwise along the first dim."""
    return jnp.cumsum(x, 0)


def test_check_finds_a_difference(mesh: jax.sharding.Mesh) -> None:
    schedule = [ps.ManualPartition({"x": 0}, axis="batch")]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(running_sum)
    found = step.check(np.ones((8, 4), np.float32))
    assert not found.ok
    assert found.worst.difference == 4.0
    assert "they differ" in str(found)


@pytest.mark.parametrize(
    ("dtype", "agreeing", "differing"),
    [("complex64", 1e-6, 1e-3), ("complex128", 1e-11, 1e-6), ("float32", 1e-6, 1e-3)],
)
def test_tolerance_of_complex_numbers(dtype: str, agreeing: float, differing: float) -> None:
    """Parts of complex numbers have the tolerance of real numbers."""
    with jax.enable_x64(True):
        x = jnp.linspace(1, 2, 8, dtype=dtype)
        for error, ok in ((agreeing, True), (differing, False)):
            found = compared(lambda x, e=error: x * (1 + e), lambda x: x, (x,), {})
            assert found.ok is ok


@pytest.mark.parametrize(
    "name", ["gpt-scan-tiny", pytest.param("llama-tiny", marks=pytest.mark.long)]
)
def test_plain_jit_with_constraints(name: str, mesh: jax.sharding.Mesh) -> None:
    """What is left without this package: the same results, collectives by XLA's partitioner."""
    entry = MODELS[name]
    kinds = (jax.sharding.AxisType.Auto,) * 2  # what with_sharding_constraint is for
    auto = jax.make_mesh(mesh.axis_sizes, mesh.axis_names, kinds, devices=jax.devices()[:8])
    args = jax.jit(lambda: entry.args(8))()
    plan = ps.known_strategies(entry.step, auto, *args, machine="tpu_v5e")["BP(batch)+MP(model)"]
    left = jax.jit(plan.constrained(), in_shardings=plan.in_shardings[0]).lower(*args).compile()
    assert sum(ps.hlo_counts(left.as_text()).values()) > 0
    got, want = left(*jax.device_put(args, plan.in_shardings[0])), jax.jit(entry.step)(*args)
    first = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))[-1]
    np.testing.assert_allclose(*first, rtol=1e-4)  # the loss
    moments = zip(
        jax.tree.leaves(got[0].opt_state), jax.tree.leaves(want[0].opt_state), strict=True
    )
    for a, b in moments:
        np.testing.assert_allclose(a, b, atol=2e-4 * max(float(jnp.abs(b).max()), 1e-3))


def test_logical_axis_rules(mesh: jax.sharding.Mesh) -> None:
    """Names of a flax module's own; one that stands for two tilings is an error."""

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            init = nn.initializers.lecun_normal()
            h = nn.Dense(16, kernel_init=nn.with_logical_partitioning(init, ("embed", "mlp")))(x)
            return nn.Dense(8, kernel_init=nn.with_logical_partitioning(init, ("mlp", "embed")))(h)

    model, x = Mlp(), jnp.ones((8, 8))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), x))
    names = nn.get_partition_spec(shapes)["params"]
    params = nn.unbox(shapes)["params"]

    def step(params: Any, x: Any) -> Any:
        return model.apply({"params": params}, x)

    def plan_of(*more: ps.ManualPartition) -> ps.Plan:
        schedule = [ps.ManualPartition({"params/Dense_0/kernel": 1}, axis="model"), *more]
        return ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step).plan(params, x)

    kernels = {k: {"kernel": v["kernel"]} for k, v in names.items()}
    assert plan_of().logical_axis_rules(kernels, "params") == [("embed", None), ("mlp", "model")]
    other = ps.ManualPartition({"params/Dense_1/kernel": 1}, axis="batch")
    with pytest.raises(ValueError, match=r"'embed' is tiled on None in .* and on batch in"):
        plan_of(other).logical_axis_rules(kernels, "params")
    with pytest.raises(ValueError, match="no argument 'params/Dense_7/kernel' to give"):
        plan_of().logical_axis_rules({"Dense_7": {"kernel": P("embed", "mlp")}}, "params")


def test_what_cannot_be_checked_or_left_says_so(mesh: jax.sharding.Mesh) -> None:
    def step(x: Any) -> Any:
        return x @ x

    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[])(step)
    x = np.ones((8, 8), np.float32)
    plan = partitioned.plan(x)
    with pytest.raises(TypeError, match="check takes what auto_partition returned"):
        plan.check(step, x)
    explicit = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[], explicit_results=True)
    with pytest.raises(ValueError, match=r"plan on jax.sharding.Mesh\(mesh.devices"):
        explicit(step).plan(x).constrained()
