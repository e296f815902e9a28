"""Gradient accumulation: the same step, in less memory."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from tests.support import assert_same

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
    assert bool(plan.module.donated) == jitted
    got = step(*jax.tree.map(jnp.copy, args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-4)


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


def regression(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * grad, loss


X = np.ones((8, 4), np.float32)
Y = np.ones((8, 2), np.float32)
W = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    "fun,args,message",
    [
        (regression, (W, X[:7], Y[:7]), "divide by 2"),
        (
            lambda w, x, z: (regression(w, x, Y[:1])[0], z.mean()),
            (W, X, np.ones((6, 3), np.float32)),
            "must be the batch's",
        ),
        (lambda w, x: w + x.mean(), (W, X), "takes no gradient"),
        (lambda w: jax.grad(lambda w: (w**2).sum())(w), (W,), "but the train state"),
        (lambda w, x: (regression(w, x, Y[:1])[0], x @ w), (W, X), "one row per example"),
        (
            lambda w, x: (regression(w, x, Y[:1])[0], jnp.argmax(x.sum(0) @ w)),
            (W, X),
            "cannot be averaged",
        ),
    ],
)
def test_what_cannot_be_accumulated_is_refused(fun: Any, args: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(ps.microbatched(fun, 2), *args)


def test_former_name_of_the_number() -> None:
    with pytest.warns(DeprecationWarning, match="parts= is now microbatches=") as warned:
        former = ps.microbatched(regression, parts=2)
    assert warned[0].filename == __file__
    plain, old, new = (
        str(jax.make_jaxpr(f)(W, X, Y))
        for f in (regression, former, ps.microbatched(regression, 2))
    )
    assert old == new != plain


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ps.auto_partition(ABSTRACT, microbatches=0)
