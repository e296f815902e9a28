"""Debugging tools decide nothing: the plan is that of the step without them."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import partir_search as ps
from partir_search.simulator.target.machine import find_machine
from tests.support import floats_of

Tool = Callable[[Any, Any, Any, Any, Any], None]

ARGS = floats_of((2, 16, 32), (2, 32, 16), (32, 16), (32, 16))
SLOW = dataclasses.replace(  # small shapes are worth tiling
    find_machine("tpu_v5e"),
    name="slow",
    flops_per_s={"default": 1e9},
    hbm_bytes_per_s=1e7,
    vmem_bytes_per_s=1e7,
    kernel_seconds=0.0,
    hop_seconds=0.0,
)


def step_with(tool: Tool, checks: Callable[[Any], Any] = lambda h: h) -> Callable[..., Any]:
    """A train step that calls `tool` on its values: in the loop over layers, in the loss, and on
    the gradients.
    """

    def nothing(*_: Any) -> None: ...

    def step(up: Any, down: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            def layer(h: Any, w: Any) -> Any:
                h = h + jnp.tanh(h @ w[0]) @ w[1]
                tool("layer", h, *(nothing,) * 3)
                return h, None

            h = checks(lax.scan(layer, x, params)[0])
            tool("loss", h, x, y, nothing)
            return ((h - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)((up, down))
        tool("grads", *grads, x, value)
        return up - grads[0], down - grads[1], value

    return step


def quiet(*_: Any) -> None:
    """A callback that says nothing."""


def prints(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    jax.debug.callback(quiet, a)
    if where == "layer":
        jax.debug.callback(quiet, a.sum(0))


def mixes(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    """Joins values that nothing in the step joins."""
    if where == "loss":
        jax.debug.callback(quiet, (b * c).sum(), (b @ c.T)[0])
    if where == "grads":
        jax.debug.callback(quiet, (a * a[::-1]).sum(), a[0] + b[0].T, c.T @ c)


def rarely(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    if where == "grads":
        lax.cond(d > 1e9, lambda: jax.debug.callback(quiet, a), lambda: None)


def inspects(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    jax.debug.inspect_array_sharding(a, callback=quiet)
    if where == "loss":
        jax.debug.visualize_array_sharding(c, color_map=None, use_color=False)


def debug_checks(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    checkify.debug_check(jnp.all(a < 1e9), "too large")


def shards(where: str, a: Any, b: Any, c: Any, d: Any) -> None:
    jax.debug.callback(quiet, a, partitioned=True)


def view(plan: Any) -> Any:
    """How a plan lays out arguments and results, and its collectives."""
    counts = collections.Counter({k: n for k, n in plan.collective_counts.items() if n})
    results = jax.tree.map(lambda s: s.spec, plan.out_shardings)
    return [(path, s) for path, _, s in plan.arguments()], results, counts


def planned(mesh: jax.sharding.Mesh, step: Callable[..., Any], remat: bool | str = False) -> Any:
    auto = ps.auto_partition(mesh, machine=SLOW, episodes=10, progress=False, remat=remat)(step)
    return auto, auto.plan(*ARGS)


@pytest.fixture(scope="module")
def alone(mesh: jax.sharding.Mesh) -> Any:
    """The plan without a tool."""
    plan = planned(mesh, step_with(quiet))[1]
    args, _, counts = view(plan)
    assert counts
    assert any(any(s) for _, s in args)
    return plan


@pytest.mark.devices
@pytest.mark.parametrize("tool", [prints, mixes, rarely, inspects, debug_checks, shards])
def test_plan_is_the_same(mesh: jax.sharding.Mesh, alone: Any, tool: Tool) -> None:
    """Also where values are printed that a search would keep whole for it, and where what is
    printed would tie values to each other.
    """
    step = step_with(tool)
    auto, plan = planned(mesh, step)
    (args, results, counts), (args_alone, results_alone, counts_alone) = view(plan), view(alone)
    assert (args, results) == (args_alone, results_alone)
    assert not counts_alone - counts
    assert set(counts - counts_alone) <= {"all_gather", "all_reduce"}  # of what is printed
    if tool in (inspects, shards):
        assert counts == counts_alone
        assert plan.cost.seconds == pytest.approx(alone.cost.seconds, rel=1e-3)
    for a, b in zip(auto(*ARGS), jax.jit(step)(*ARGS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.effects_barrier()


@pytest.mark.devices
def test_errors_of_equinox(mesh: jax.sharding.Mesh, alone: Any) -> None:
    """Checks on values cost their own reductions; checks on shapes nothing."""
    eqx = pytest.importorskip("equinox")
    on_shape = step_with(quiet, lambda h: eqx.error_if(h, h.shape[0] == 3, "no"))
    assert view(planned(mesh, on_shape)[1]) == view(alone)
    on_value = step_with(quiet, lambda h: eqx.error_if(h, jnp.any(jnp.isnan(h)), "no"))
    args, results, counts = view(planned(mesh, on_value)[1])
    assert (args, results) == view(alone)[:2]
    assert set(counts - view(alone)[2]) <= {"all_reduce"}


@pytest.mark.devices
def test_the_same_residuals_run_again(mesh: jax.sharding.Mesh) -> None:
    """Those of the loop, which take longer to move; a print in the loop shifts positions of ops."""
    step = step_with(prints)
    auto, plan = planned(mesh, step, "auto")
    _, alone = planned(mesh, step_with(quiet), "auto")
    assert alone.remat
    assert view(plan)[:2] == view(alone)[:2]
    assert [len(s) for s in plan.remat] == [len(s) for s in alone.remat]
    for got, want in zip(auto(*ARGS), jax.jit(step)(*ARGS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.devices
def test_functionalized_checks(mesh: jax.sharding.Mesh, alone: Any) -> None:
    """checkify: the error comes out whole next to the results, and says the same. The plan is as
    good, and may be another one of the same cost.
    """

    def checks(h: Any) -> Any:
        checkify.check(jnp.all(h < 1e-3), "{m} is too large", m=h.max())
        return h

    step = checkify.checkify(step_with(quiet, checks), errors=checkify.user_checks)
    auto, plan = planned(mesh, step)
    extra = view(plan)[2] - view(alone)[2]
    assert set(extra) == {"all_reduce"}  # whether all are small, and the largest
    assert not view(alone)[2] - view(plan)[2]
    assert plan.cost.seconds == pytest.approx(alone.cost.seconds, rel=1e-2)
    (error, got), (error_alone, want) = auto(*ARGS), jax.jit(step)(*ARGS)
    largest, text = error.get().split(" ", 1)
    largest_alone, text_alone = error_alone.get().split(" ", 1)
    assert text == text_alone
    assert text.startswith("is too large")
    assert float(largest) == pytest.approx(float(largest_alone))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.devices
def test_inspection_shows_the_plan(mesh: jax.sharding.Mesh) -> None:
    """The sharding that the value has in the partitioned program, once."""
    seen: list[Any] = []

    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        jax.debug.inspect_array_sharding(y, callback=seen.append)
        return y.sum(1)

    rows = [ps.ManualPartition({"x": 0}, axis="batch"), ps.ManualPartition({"w": 1}, axis="model")]
    auto = ps.auto_partition(mesh, schedule=rows, machine="cpu")(fn)
    jax.block_until_ready(auto(*floats_of((8, 4), (4, 8))))
    assert [s.spec for s in seen] == [jax.P("batch", "model")]
    assert seen[0].mesh.shape == mesh.shape


@pytest.mark.devices
@pytest.mark.parametrize("donate", [None, 0])
def test_errors_of_debug_nans_name_the_op_and_the_line(mesh: Any, donate: int | None) -> None:
    """The message says "in sharded computation"; a note says where."""

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jnp.log(x @ w - 100.0) ** 2)

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    rows = [ps.ManualPartition({"x": 0}, axis="batch")]
    partitioned = ps.auto_partition(mesh, schedule=rows, machine="cpu", donate_argnums=donate)(step)
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        partitioned(jnp.ones((8, 8)), jnp.ones((16, 8)))
    assert re.match(r"in log at .*test_debugging_tools.py:\d+ \(", caught.value.__notes__[0])
