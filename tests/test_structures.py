"""What jax and jax.numpy offer beyond plain ops: each runs tiled as it runs on one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning

import partir_search as ps
from partir_search.ir.reading.platforms import runs_of_branches
from partir_search.simulator.target.device_kinds import platform_of

Fn = Callable[[jax.Array, jax.Array], Any]


@custom_partitioning
def _doubled(x: Any) -> Any:
    return x * 2


_doubled.def_partition(
    infer_sharding_from_operands=lambda *_: None,
    partition=lambda *_: None,
    sharding_rule="i j -> i j",
)


@jax.custom_batching.custom_vmap
def _tripled(x: Any) -> Any:
    return x * 3


@_tripled.def_vmap
def _(size: int, batched: Any, x: Any) -> Any:
    return x * 3, True


def _saved(x: Any, w: Any) -> Any:
    """The gradient under a policy that keeps what is named."""
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    loss = jax.checkpoint(
        lambda x, w: (jnp.sin(checkpoint_name(x @ w, "kept")) ** 2).sum(), policy=policy
    )
    return jax.grad(loss, 1)(x, w)


@jax.custom_vjp
def _wave(x: Any) -> Any:
    return jnp.sin(x)


_wave.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda slope, g: (slope * g,), optimize_remat=True)


def _optimized_remat(x: Any, w: Any) -> Any:
    """Value and gradient through a remat: jax 0.12 leaves the forward pass as a call."""
    return jax.value_and_grad(jax.checkpoint(lambda w: _wave(x @ w).sum()))(w)


def _ref(x: Any, w: Any) -> Any:
    ref = jax.new_ref(x)
    ref[...] = ref[...] + 1
    return ref[...] @ w


def _kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def _pallas(x: Any, w: Any) -> Any:
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return pl.pallas_call(_kernel, out_shape=shape, interpret=True)(x @ w)


def _nested(x: Any, w: Any) -> Any:
    mesh = jax.make_mesh((2, 4), ("batch", "model"))
    return ps.auto_partition(mesh, machine="cpu")(jnp.matmul)(x, w) + 1


def _normal(impl: str) -> Fn:
    return lambda x, w: jax.random.normal(jax.random.key(0, impl=impl), (8, 8)) + x @ w


def _normals(impl: str) -> Fn:
    """One key for each row."""
    return lambda x, w: (
        jax.vmap(lambda k: jax.random.normal(k, (8,)))(
            jax.random.split(jax.random.key(0, impl=impl), 8)
        )
        + x @ w
    )


CASES: dict[str, Fn] = {
    "associative_scan": lambda x, w: lax.associative_scan(jnp.multiply, x + w),
    "barrier": lambda x, w: sum(lax.optimization_barrier((x, w * 2))),
    "beta": lambda x, w: jax.scipy.special.betainc(1.0, 2.0, x) + w,
    "categorical": lambda x, w: jax.random.categorical(jax.random.key(1), w @ x, axis=0),
    "choice": lambda x, w: jax.random.choice(jax.random.key(0), x[0], (8,), replace=False) + w,
    "complex": lambda x, w: jnp.abs((x + 1j * w) @ w),
    "composite": lambda x, w: lax.composite(lambda y: y + 1, name="my.op")(x @ w),
    "conjugate_gradient": lambda x, w: jax.scipy.sparse.linalg.cg(lambda v: 2 * v + x @ v, w[0])[0],
    "convolve": lambda x, w: jax.scipy.signal.convolve2d(x, w[:3, :3]),
    "custom_partitioning": lambda x, w: _doubled(x @ w),
    "custom_vmap": lambda x, w: _tripled(x @ w),
    "einsum": lambda x, w: jnp.einsum("ij,jk,kl->il", x, w, x),
    "empty": lambda x, w: (jnp.zeros((0, 8)) @ w, x),
    "expm": lambda x, w: jax.scipy.linalg.expm(x @ w / 10),
    "histogram": lambda x, w: jnp.histogram(x, bins=4)[0] + w[0, 0],
    "int8": lambda x, w: lax.dot(
        x.astype(jnp.int8), w.astype(jnp.int8), preferred_element_type=jnp.int32
    ),
    "interp": lambda x, w: jnp.interp(x[0], jnp.linspace(0, 1, 8), w[0]),
    "linear_call": lambda x, w: linear_call(lambda r, v: v @ r, lambda r, v: v @ r.T, w, x),
    "lstsq": lambda x, w: jnp.linalg.lstsq(x + jnp.eye(8), w)[0],
    "map_in_batches": lambda x, w: lax.map(lambda row: row @ w, x, batch_size=2),
    "nested": _nested,
    "nonzero": lambda x, w: jnp.nonzero(x > 0.5, size=8)[0] + w[0],
    "old_keys": lambda x, w: jax.random.normal(jax.random.PRNGKey(0), (8, 8)) + x @ w,
    "optimized_remat": _optimized_remat,
    "pallas": _pallas,
    "permutation": lambda x, w: jax.random.permutation(jax.random.key(0), x) + w,
    "platform_dependent": lambda x, w: lax.platform_dependent(
        x @ w, tpu=lambda y: y + 3, cpu=lambda y: y + 1
    ),
    "quantile": lambda x, w: jnp.quantile(x, 0.3, axis=0) + w,
    "rbg": _normal("rbg"),
    "rbg_rows": _normals("unsafe_rbg"),
    "ref": _ref,
    "remat_policy": _saved,
    "resize": lambda x, w: jax.image.resize(x, (16, 16), "bilinear")[::2, ::2] @ w,
    "roll": lambda x, w: jnp.roll(x, 3, 0) @ w,
    "same_twice": lambda x, w: (x @ w, x, x, w),
    "scalars": lambda x, w: (x * np.float32(2)).sum() * w,
    "searchsorted": lambda x, w: jnp.searchsorted(w[0], x),
    "segment_sum": lambda x, w: jax.ops.segment_sum(x, jnp.arange(8) // 2, 4) @ w,
    "switch": lambda x, w: lax.switch(
        (x.sum() > 0).astype(int), [lambda y: y, lambda y: y * 2, lambda y: y @ w], x
    ),
    "threefry_rows": _normals("threefry2x32"),
    "triangular_inverse": lambda x, w: jnp.linalg.inv(x + 3 * jnp.eye(8)) @ w,
    "unused": lambda x, w: x * 2,
    "weak_type": lambda x, w: (jnp.asarray(2) * 3.0, x + w),
}
OPAQUE = {"pallas": "pallas_call"}


def _args() -> tuple[jax.Array, jax.Array]:
    return jnp.arange(64.0).reshape(8, 8) / 64, jnp.cos(jnp.arange(64.0)).reshape(8, 8) / 3


@pytest.mark.devices
@pytest.mark.parametrize("case", sorted(CASES))
def test_equals_plain(case: str, mesh: jax.sharding.Mesh) -> None:
    """Rows of `x` over one axis, columns of `w` over the other; types agree, weak ones too."""
    fn, args = CASES[case], _args()
    want = jax.jit(fn)(*args)
    schedule = [
        ps.ManualPartition({"x": 0}, axis="batch"),
        ps.ManualPartition({"w": 1}, axis="model"),
    ]
    step = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(fn)
    with warnings.catch_warnings():
        if case in OPAQUE:
            warnings.simplefilter("ignore", UserWarning)  # asserted below
        got = jax.block_until_ready(step(*args))
        opaque = step.plan(*args).opaque()
    assert (OPAQUE[case] in opaque) if case in OPAQUE else not opaque
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_barrier_keeps_tilings() -> None:
    """Values that share a barrier are tiled each its own way, without communication."""
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    schedule = [
        ps.ManualPartition({"x": 0}, axis="batch"),
        ps.ManualPartition({"w": 1}, axis="model"),
    ]
    step = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(
        lambda x, w: lax.optimization_barrier((x * 2, w * 2))
    )
    plan = step.plan(*_args())
    assert not plan.collectives
    assert [s.spec for s in plan.out_shardings] == [
        jax.P("batch"),
        jax.P(None, "model"),
    ]


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("loop", ["layers", "counted"])
def test_loops_without_iterations_are_planned(loop: str, machine: str) -> None:
    """A model without layers, zero warm-up rounds: the ops inside cost nothing."""

    def step(x: Any, w: Any) -> Any:
        if loop == "layers":
            y, _ = lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, jnp.zeros((0, *w.shape)))
        else:
            y = lax.fori_loop(0, 0, lambda _, c: jnp.tanh(c @ w), x)
        return y @ w

    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    x, w = (jax.ShapeDtypeStruct((n, 512), jnp.float32) for n in (4096, 512))
    plan, alone = (
        ps.auto_partition(mesh, machine=machine, progress=False)(fn).plan(x, w)
        for fn in (step, jnp.matmul)
    )
    assert plan.cost.flops == alone.cost.flops
    assert plan.cost.seconds < 2 * alone.cost.seconds


def test_one_branch_by_platform_is_priced(mesh: jax.sharding.Mesh) -> None:
    """The branch of the devices' platform counts; of an abstract mesh's, the machine's."""

    def sums(x: Any) -> Any:
        return jnp.sort(jnp.tile(x, (8, 1)), 0)[: len(x)] - x.sum(1, keepdims=True)

    def step(x: Any) -> Any:
        return lax.platform_dependent(x, tpu=sums, cpu=jnp.sin)

    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    split = [ps.ManualPartition({"x": 1}, axis="batch")]
    here, abstract = (
        ps.auto_partition(where, machine="tpu_v5e", schedule=split)(step)
        for where in (mesh, mesh.abstract_mesh)
    )
    assert not here.plan(x).collectives
    assert ps.stablehlo_counts(here.lower(x).as_text()) == here.plan(x).collective_counts
    assert [c.kind for c in abstract.plan(x).collectives] == ["all_reduce"]
    assert abstract.plan(x).cost.seconds > here.plan(x).cost.seconds
    assert abstract.plan(x).cost.peak_bytes > here.plan(x).cost.peak_bytes


@pytest.mark.parametrize(
    ("platform", "runs"),
    [("cpu", (1, 0, 0)), ("cuda", (0, 1, 0)), ("rocm", (0, 0, 1)), ("", (1, 1, 1))],
)
def test_branches_of_platforms(platform: str, runs: tuple[int, ...]) -> None:
    assert runs_of_branches((("cpu",), ("tpu", "cuda"), None), platform) == runs


def test_platforms_of_device_kinds() -> None:
    kinds = {"TPU v5 lite": "tpu", "tpu_v3": "tpu", "NVIDIA H200": "cuda", "a100_40gb": "cuda"}
    kinds |= {"mi300x": "rocm", "AMD Instinct MI250": "rocm", "cpu": "cpu", "NVIDIA GH200": ""}
    assert {kind: platform_of(kind) for kind in kinds} == kinds
