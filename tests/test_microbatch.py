"""Microbatches: the same step as a loop over parts of the batch, in less memory."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.printer import print_partition
from partir_search.ir.verify import verify
from partir_search.planning.microbatch import in_time
from partir_search.planning.stage import print_module
from tests.support import assert_same, floats_of, module_of

ENTRY = MODELS["llama-tiny"]
ABSTRACT = AbstractMesh((2, 4), ("batch", "model"))


@pytest.mark.devices
@pytest.mark.parametrize("jitted", [pytest.param(False, marks=pytest.mark.long), True])
def test_accumulated_step_equals_plain(jitted: bool, mesh: jax.sharding.Mesh) -> None:
    args = jax.jit(lambda: ENTRY.args(8))()
    want = jax.jit(ENTRY.step)(*args)
    fun: Any = jax.jit(ENTRY.step, donate_argnums=0) if jitted else ENTRY.step
    step = ps.auto_partition(mesh, machine="tpu_v5e", microbatches=4, episodes=60)(fun)
    plan = step.plan(*args)
    assert plan.microbatches == 4
    assert any(op.prim == "scan" and op.params["length"] == 4 for op in plan.module.ops)
    assert "time<mb:4>" in plan.passes["microbatches"].text()
    assert bool(plan.module.donated) == jitted
    got = step(*jax.tree.map(jnp.copy, args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-4)


X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(8, 4)
Y = np.linspace(2.0, -1.0, 16, dtype=np.float32).reshape(8, 2)
W = np.linspace(-0.5, 1.0, 8, dtype=np.float32).reshape(4, 2)
SQUARE = np.linspace(-0.5, 0.5, 48, dtype=np.float32).reshape(3, 4, 4)
TOKENS = np.arange(40, dtype=np.int32).reshape(8, 5) % 8
KEY = jax.random.key(3)


def regression(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * grad, loss


def dropped(w: Any, x: Any, key: Any) -> Any:
    """The mask is returned, to be compared bit for bit."""
    mask = jax.random.bernoulli(key, 0.8, x.shape)

    def loss(w: Any) -> Any:
        return jnp.mean((jnp.where(mask, x, 0.0) @ w) ** 2)

    return *jax.value_and_grad(loss)(w), mask


def masked_mean(w: Any, x: Any, y: Any) -> Any:
    weight = (y[:, 0] > 0.2).astype(jnp.float32)

    def loss(w: Any) -> Any:
        return jnp.sum(weight * jnp.sum((x @ w - y) ** 2, 1)) / weight.sum()

    return jax.value_and_grad(loss)(w)


def tied_embedding(w: Any, tokens: Any) -> Any:
    def loss(table: Any) -> Any:
        logits = jnp.take(table, tokens[:, :-1], axis=0).sum(1) @ table.T
        found = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, -1:], axis=1)
        return -jnp.mean(found)

    return jax.value_and_grad(loss)(w)


def numbered_rows(w: Any, x: Any, y: Any) -> Any:
    """Rows read by number, as in a loss of integer labels or of the values of actions."""
    labels, n = (y[:, 0] > 0.2).astype(jnp.int32), x.shape[0]

    def loss(w: Any) -> Any:
        pairs = jnp.tanh(x[:, None, :] @ w)
        return jnp.mean((x @ w)[jnp.arange(n), labels] ** 2 + pairs[jnp.arange(n), 0, labels])

    return jax.value_and_grad(loss)(w)


def several_losses(w: Any, x: Any, y: Any) -> Any:
    """A sum, a maximum, counts, flags, and a row per example."""

    def loss(w: Any) -> Any:
        out = x @ w
        hits = (out > y).sum(), (out > 9.0).any(), (jnp.abs(out) < 9.0).all()
        return jnp.mean(out**2) + 0.1 * jnp.mean(jnp.abs(out - y)), (out.max(), *hits, out)

    return jax.value_and_grad(loss, has_aux=True)(w)


def layers(ws: Any, x: Any, key: Any) -> Any:
    """Scanned and rematerialized layers with dropout; gradients leave the scan as sums."""

    @jax.checkpoint
    def layer(h: Any, given: Any) -> Any:
        w, key = given
        h = jnp.tanh(h @ w)
        return jnp.where(jax.random.bernoulli(key, 0.7, h.shape), h, 0.0), None

    def loss(ws: Any) -> Any:
        out, _ = jax.lax.scan(layer, x, (ws, jax.random.split(key, 3)))
        return jnp.mean(out**2)

    return jax.value_and_grad(loss)(ws)


def shared_layer(w: Any, x: Any) -> Any:
    """The gradient of a weight used by every iteration is summed in the scan's carry."""

    def loss(w: Any) -> Any:
        out, _ = jax.lax.scan(lambda h, _: (jnp.sin(h @ w[0]), None), x, length=3)
        return jnp.mean(out)

    return jax.value_and_grad(loss)(w)


def loops_and_branches(w: Any, x: Any, n: Any) -> Any:
    y = jax.lax.cond(n > 2, lambda x: x @ w, lambda x: -x @ w, x)
    y = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (0, y))[1]
    return y, y.sum()


def norm_of_data(w: Any, x: Any) -> Any:
    """What data alone determine is known before the loop, gathers too."""
    x = (x - x.mean(0)) / jnp.sort(x, 0)[-1]
    return jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)


def after_the_loop(w: Any, x: Any, y: Any) -> Any:
    """Clipping and metrics of the whole batch need no part."""
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    scores = (x @ w).sum(1)
    return w - grad / jnp.maximum(1.0, jnp.linalg.norm(grad)), loss, jax.lax.top_k(scores, 3)


def whole_arguments(w: Any, x: Any, z: Any) -> Any:
    """An array with another leading dim is no data of the batch."""
    return jax.value_and_grad(lambda w: jnp.mean((x @ w).sum(1) * z.mean()))(w)


EXACT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "plain": (regression, (W, X, Y)),
    "dropout": (dropped, (W, X, KEY)),
    "dropout of a raw key": (dropped, (W, X, jax.random.PRNGKey(5))),
    "dropout of another generator": (dropped, (W, X, jax.random.key(5, impl="rbg"))),
    "masked mean": (masked_mean, (W, X, Y)),
    "tied embedding": (tied_embedding, (X, TOKENS)),
    "numbered rows": (numbered_rows, (W, X, Y)),
    "several losses": (several_losses, (W, X, Y)),
    "layers": (layers, (SQUARE, X, KEY)),
    "shared layer": (shared_layer, (SQUARE, X)),
    "loops and branches": (loops_and_branches, (W, X, np.int32(3))),
    "norm of data": (norm_of_data, (W, X)),
    "after the loop": (after_the_loop, (W, X, Y)),
    "whole arguments": (whole_arguments, (W, X, np.ones((6, 3), np.float32))),
    "no gradient": (lambda w, x: (w * 2.0 + x.mean(), x @ w), (W, X)),
    "gradient of one example": (
        lambda w, x: jax.grad(lambda w: (x @ w)[:1].sum())(w),
        (W, X),
    ),
    "narrow": (regression, (W.astype(jnp.bfloat16), X.astype(jnp.bfloat16), Y)),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_step_in_parts_equals_the_step(name: str) -> None:
    fun, args = EXACT[name]
    want = jax.jit(fun)(*args)
    got = jax.jit(ps.microbatched(fun, 4))(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating):
            tolerance = 1e-2 if name == "narrow" else 1e-6
            np.testing.assert_allclose(
                np.asarray(x, np.float32), np.asarray(y, np.float32), tolerance, tolerance
            )
        else:
            np.testing.assert_array_equal(x, y)


def step_of_all(state: Any, x: Any, y: Any, key: Any) -> Any:
    """Dropout, a masked mean and a tied matrix, in one step."""
    keep = jax.random.bernoulli(key, 0.8, (x.shape[0], 16))
    weight = (y[:, 0] > 0.2).astype(jnp.float32)

    def loss(w: Any) -> Any:
        h = jnp.where(keep, jnp.tanh(x @ w["in"]), 0.0)
        out = jnp.tanh(h @ w["tied"]) @ w["tied"].T
        return jnp.sum(weight * (out**2).sum(1)) / weight.sum()

    value, grad = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grad), value


STATE = {
    "in": np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16),
    "tied": np.linspace(1, -1, 256, dtype=np.float32).reshape(16, 16),
}
ALL = STATE, X, Y, KEY


BY_DATA_AND_MODEL = [
    ps.ManualPartition({"x": 0, "y": 0}, axis="batch"),
    ps.ManualPartition({"state/in": 1}, axis="model"),
]
TILED_SUMS = [
    ps.ManualPartition({"x": 0, "y": 0}, axis="batch"),
    ps.ManualPartition({"state/tied": 0}, axis="batch"),
]


def reductions(plan: ps.Plan) -> dict[str, tuple[int, int]]:
    """Reductions along the batch axis by kind: in the loop over parts, and outside of it."""
    found: dict[str, list[int]] = {}
    for line in plan.local_ir().splitlines():
        for kind in ("all_reduce", "reduce_scatter"):
            if f"= {kind}(" in line and '"batch"' in line:
                found.setdefault(kind, [0, 0])[line.startswith("  %")] += 1
    return {kind: (inside, outside) for kind, (inside, outside) in found.items()}


@pytest.mark.devices
@pytest.mark.parametrize("narrow", [False, True])
def test_gradients_are_reduced_once_after_the_loop(narrow: bool, mesh: jax.sharding.Mesh) -> None:
    """On data and model axes; partial sums of devices stay in the accumulators."""
    kind = jnp.bfloat16 if narrow else jnp.float32
    args = (jax.tree.map(lambda w: w.astype(kind), STATE), *ALL[1:])
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=BY_DATA_AND_MODEL, microbatches=4)(
        step_of_all
    )
    want = jax.jit(step_of_all)(*args)
    assert_same(
        jax.tree.leaves(step(*args)), jax.tree.leaves(want), tolerance=5e-2 if narrow else 1e-6
    )
    plan = step.plan(*args)
    assert plan.partition_specs[0][0]["in"] == jax.sharding.PartitionSpec(None, "model")
    assert reductions(plan) == {"all_reduce": (0, 3)}  # loss, two matrices


@pytest.mark.devices
def test_tiled_gradients_are_scattered_in_the_loop(mesh: jax.sharding.Mesh) -> None:
    """ZeRO-2: the accumulator is a tile, at a reduce_scatter for every part."""
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=TILED_SUMS, microbatches=4)(
        step_of_all
    )
    want = jax.jit(step_of_all)(*ALL)
    assert_same(jax.tree.leaves(step(*ALL)), jax.tree.leaves(want), tolerance=1e-6)
    found = reductions(step.plan(*ALL))
    assert found["reduce_scatter"][0] > 0
    by_kind = step.plan(*ALL).cost.bytes_by_kind
    assert by_kind["reduce_scatter"] > by_kind["all_reduce"]


def test_print_in_time(golden: Callable[[str], None]) -> None:
    """Tiles and sums on the time axis, and the loop that they become."""
    module = module_of(masked_mean, W, X, Y)
    found = in_time(module, 4)
    verify(found.module)
    golden(print_partition(found.partition) + "\n\n" + print_module(found.module))


@pytest.mark.devices
def test_static_arguments_stay_as_they_are(mesh: jax.sharding.Mesh) -> None:
    def step(w: Any, how: str, x: Any, *, times: int) -> Any:
        def loss(w: Any) -> Any:
            return (times * (jnp.tanh if how == "tanh" else jnp.sin)(x @ w)).mean()

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    marks: dict[str, Any] = {"static_argnums": 1, "static_argnames": "times"}
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", microbatches=2, episodes=5, **marks)
    want = jax.jit(step, **marks)(W, "tanh", X, times=3)
    got = partitioned(step)(W, "tanh", X, times=3)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-5)


def limited(machine_bytes: float, **options: Any) -> ps.Plan:
    machine = dataclasses.replace(ps.MACHINES["tpu_v5e"], hbm_bytes=int(machine_bytes))
    step = ps.auto_partition(ABSTRACT, machine=machine, episodes=60, remat=False, **options)
    return step(jax.jit(ENTRY.step, donate_argnums=0)).plan(*ENTRY.abstract_args(512))


def test_first_number_that_fits_is_taken() -> None:
    whole = limited(1e12, microbatches=(1, 2, 4))
    assert whole.microbatches == 1
    tight = limited(0.25 * whole.cost.peak_bytes, microbatches=(1, 2, 4, 8))
    assert tight.microbatches in (4, 8)
    assert tight.fits
    assert tight.cost.peak_bytes < 0.25 * whole.cost.peak_bytes


def test_plans_keep_the_number(tmp_path: pathlib.Path) -> None:
    step = ps.auto_partition(ABSTRACT, machine="tpu_v5e", microbatches=2, episodes=30)(ENTRY.step)
    plan = step.plan(*ENTRY.abstract_args(8))
    plan.save(tmp_path / "plan.json")
    saved = ps.load_plan(tmp_path / "plan.json")
    assert saved.microbatches == 2
    again = ps.auto_partition(ABSTRACT, machine="tpu_v5e", schedule=saved)(ENTRY.step)
    assert again.plan(*ENTRY.abstract_args(8)).cost == plan.cost
    known = step.known_plans(*ENTRY.abstract_args(8))["BP(batch)"]
    assert known.microbatches == 2
    again = ps.auto_partition(ABSTRACT, machine="tpu_v5e", schedule=known)(ENTRY.step)
    assert again.plan(*ENTRY.abstract_args(8)).cost == known.cost


def test_former_name_of_the_number() -> None:
    with pytest.warns(DeprecationWarning, match="parts= is now microbatches=") as warned:
        former = ps.microbatched(regression, parts=2)
    assert warned[0].filename == __file__
    plain, old, new = (
        str(jax.make_jaxpr(f)(W, X, Y))
        for f in (regression, former, ps.microbatched(regression, 2))
    )
    assert old == new != plain


def test_keys_made_by_a_loop_are_returned() -> None:
    """A key carried beside the data by a scan."""

    def step(ws: Any, x: Any, key: Any) -> Any:
        def layer(carry: Any, w: Any) -> Any:
            h, k = carry
            return (jnp.tanh(h @ w + jax.random.normal(k, (4,))), jax.random.fold_in(k, 1)), None

        def loss(ws: Any) -> Any:
            (h, k), _ = jax.lax.scan(layer, (x, key), ws)
            return (h**2).mean(), k

        return jax.value_and_grad(loss, has_aux=True)(ws)

    x, ws = floats_of((8, 4), (3, 4, 4))
    args = ws, x, jax.random.key(1)
    got, want = (jax.tree.leaves(jax.jit(f)(*args)) for f in (ps.microbatched(step, 2), step))
    assert_same(got, want)
