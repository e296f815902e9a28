"""Independent iterations of scans, in parts that devices share."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.parallel_iterations import with_parallel_iterations
from partir_search.plan.report.data import report_data
from partir_search.plan.report.summary import summary
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.iteration_forms import iteration_forms
from partir_search.planning.stage import Stage
from partir_search.rules.registry import role_of
from tests.support import (
    assert_same,
    check_partition,
    floats_of,
    module_of,
    run_evaluator,
    state_of,
    tile_arg,
)

EIGHT = MeshShape(("data",), (8,))
TWO = MeshShape(("data", "model"), (2, 2))
ARGS = floats_of((16, 4, 6), (6, 12), (12, 6))


def block(row: Any, w: Any, v: Any) -> Any:
    """A small network, with weights read twice."""
    y = jnp.tanh(jnp.tanh(row @ w) @ v)
    return jnp.tanh(y @ w) @ v


def mapped(x: Any, w: Any, v: Any) -> Any:
    return (lax.map(lambda row: block(row, w, v), x) ** 2).mean()


def in_batches(x: Any, w: Any, v: Any) -> Any:
    """Four rows at a time, recomputed in the backward pass."""
    one = jax.checkpoint(lambda row: (block(row, w, v) ** 2).mean())
    return lax.map(one, x, batch_size=4).mean()


def chunked(x: Any, w: Any, v: Any) -> Any:
    """A loss summed over chunks, as a carry that a recomputed region passes on."""

    @jax.checkpoint
    def add(total: Any, row: Any) -> Any:
        return total + jax.nn.logsumexp(block(row, w, v)), None

    return lax.scan(add, jnp.float32(1), x, reverse=True)[0]


def accumulated(x: Any, w: Any, v: Any) -> Any:
    """Gradients of microbatches, added to a tree, with a count."""
    parts = x.reshape(4, 4, *x.shape[1:])

    def add(carry: Any, part: Any) -> Any:
        grads, n = carry
        new = jax.grad(lambda w, v: (block(part, w, v) ** 2).mean(), (0, 1))(w, v)
        return (jax.tree.map(lambda a, b: a + b / 4, grads, new), n + 1), n

    (grads, n), numbers = lax.scan(add, ((jnp.zeros_like(w), jnp.ones_like(v)), 3), parts)
    return *grads, n, numbers


def clipped(x: Any, w: Any, v: Any) -> Any:
    """Gradients of single examples, each clipped to a norm."""

    def add(total: Any, row: Any) -> Any:
        found = jax.grad(lambda w: (block(row, w, v) ** 2).mean())(w)
        return total + found / jnp.maximum(1.0, jnp.linalg.norm(found)), None

    return lax.scan(add, jnp.zeros_like(w), x)[0]


def counted(x: Any, w: Any, v: Any) -> Any:
    """A loop with a number, random numbers of it, and a carry handed on."""

    def add(carry: Any, row: Any) -> Any:
        n, scale = carry
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), n), row.shape)
        return (n + jnp.uint8(50), scale), block(row + noise * scale, w, v)

    (n, _), rows = lax.scan(add, (jnp.uint8(5), x.mean()), x, reverse=True)
    return rows, n  # 5 + 16 * 50 wraps


def in_layers(x: Any, w: Any, v: Any) -> Any:
    """A map inside of a scan whose iterations depend on each other."""

    def layer(carry: Any, _: None) -> Any:
        return lax.map(lambda row: row + block(row, w, v), carry), None

    return lax.scan(layer, x, None, length=3)[0]


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(fn, argnums=(0, 1, 2))


FUNCTIONS = {
    "mapped": gradients(mapped),
    "in_batches": gradients(in_batches),
    "chunked": gradients(chunked),
    "accumulated": accumulated,
    "clipped": clipped,
    "counted": counted,
    "in_layers": in_layers,
}


def scans(module: Module) -> list[int]:
    """Lengths of scans."""
    return [op.params["length"] for op in module.ops if role_of(op) is Role.SCAN]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_to_the_scan(name: str) -> None:
    """Scans over two parts are shorter, and results are equal; one part each needs no scan."""
    fn = FUNCTIONS[name]
    plain = module_of(fn, *ARGS)
    want = jax.tree.leaves(jax.jit(fn)(*ARGS))
    for parts in (2, 16):
        module = with_parallel_iterations(plain, parts)
        verify(module)
        inner = [n for n in scans(plain) if n == 3]
        left = [] if parts == 16 else [n // parts for n in scans(plain) if n > 3]
        assert sorted(scans(module)) == sorted(inner + left)
        got = run_evaluator(state_of(module, MeshShape(("x",), (1,))).partition(), ARGS)
        assert_same(got, want)


def recurrent(x: Any, w: Any, v: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c + block(row, w, v)), c), x[0], x)


def running(x: Any, w: Any, v: Any) -> Any:
    """Sums so far are results of their iterations."""
    return lax.scan(lambda c, row: (c + row, c + row), x[0], x)


def shown(x: Any, w: Any, v: Any) -> Any:
    def one(row: Any) -> Any:
        jax.debug.print("{}", row[0, 0])
        return block(row, w, v)

    return lax.map(one, x)


def product(x: Any, w: Any, v: Any) -> Any:
    return lax.scan(lambda c, row: (c * block(row, w, v), None), x[0], x)[0]


def drawn(x: Any, w: Any, v: Any) -> Any:
    """Random numbers of a generator that draws for an array of keys from the first key."""
    keys = jax.random.split(jax.random.key(0, impl="rbg"), len(x))
    return lax.map(lambda a: jax.random.normal(a[1], a[0].shape) * a[0], (x, keys))


def halved(x: Any, w: Any, v: Any) -> Any:
    """A loop that ends on the rows of one branch alone."""

    def loop(row: Any) -> Any:
        return lax.while_loop(lambda y: y.sum() > 1.0, lambda y: y * 0.5, row)

    return lax.map(lambda row: lax.cond(row.sum() < 10.0, loop, jnp.sin, row), x)


@pytest.mark.parametrize(
    "fn", [recurrent, running, shown, product, drawn, halved], ids=lambda fn: fn.__name__
)
def test_iterations_that_depend_on_earlier_ones_stay(fn: Callable[..., Any]) -> None:
    module = module_of(fn, *ARGS)
    assert with_parallel_iterations(module, 8) is module


def test_print(golden: Callable[[str], None]) -> None:
    """Each device maps its own rows; weights' gradients are summed once, after the loop."""

    def loss(x: Any, w: Any, v: Any) -> Any:
        return (lax.map(lambda row: jnp.sin(row @ w) @ v, x) ** 2).mean()

    module = with_parallel_iterations(module_of(gradients(loss), *ARGS), 8)
    state = state_of(module, EIGHT)
    tile_arg(state, 0, 0, "data")
    golden(print_partition(state.partition()))


@pytest.mark.devices
@pytest.mark.parametrize("name", ["mapped", "accumulated", "counted"])
def test_on_devices(name: str) -> None:
    """Rows over one axis, columns of weights over another."""
    fn = FUNCTIONS[name]
    module = with_parallel_iterations(module_of(fn, *ARGS), 4)
    state = state_of(module, TWO)
    tile_arg(state, 0, 0, "data")
    tile_arg(state, 1, 1, "model")
    check_partition(state.partition(), fn, ARGS)


def step(params: Any, x: Any) -> Any:
    """Gradient descent on a mapped loss."""
    loss, grads = jax.value_and_grad(lambda p: mapped(x, *p))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def decorated(mesh: Any, **options: Any) -> Any:
    return ps.auto_partition(mesh, machine="tpu_v5e", progress=False, **options)(step)


def test_the_form_is_chosen_recorded_and_replayed(tmp_path: pathlib.Path) -> None:
    """Data parallelism over the rows computes each row once; the plain form computes all on all."""
    mesh = AbstractMesh((8,), ("data",))
    args = jax.eval_shape(lambda: (tuple(jnp.zeros(a.shape) for a in ARGS[1:]), ARGS[0]))
    schedule = [ps.ManualPartition({"x": 0}, axis="data")]
    plan = decorated(mesh, schedule=schedule).plan(*args)
    assert plan.parallel_iterations == 8
    assert {c.kind for c in plan.collectives} == {"all_reduce"}
    assert "iterations of scans in up to 8 parts" in dict(summary(plan))["why this plan"]
    assert report_data(plan)["parallel_iterations"] == 8
    assert plan.to_json()["parallel_iterations"] == 8
    plan.save(tmp_path / "plan.json")
    again = decorated(mesh, schedule=ps.load_plan(tmp_path / "plan.json")).plan(*args)
    assert (again.parallel_iterations, again.cost) == (8, plan.cost)
    replicated = decorated(mesh, schedule=()).plan(*args)
    assert replicated.cost.flops > 7 * plan.cost.flops


@pytest.mark.parametrize(("is_short", "parts"), [(False, [1, 8]), (True, [1, 8, 4, 2])])
def test_fewer_parts_are_formed_if_memory_is_short(is_short: bool, parts: list[int]) -> None:
    stage = Stage(module_of(mapped, *ARGS), Rewrites(), ())
    mesh = MeshShape(("data", "model"), (2, 4))
    forms = [*iteration_forms(stage, mesh, None, lambda: is_short)]
    assert [form.rewrites.parallel_iterations for form in forms] == parts
    (again,) = iteration_forms(stage, mesh, 4, lambda: is_short)
    assert again.rewrites.parallel_iterations == 4
    alone = Stage(module_of(recurrent, *ARGS), Rewrites(), ())
    assert [*iteration_forms(alone, mesh, None, lambda: is_short)] == [alone]


@pytest.mark.devices
def test_a_plan_on_devices(mesh: jax.sharding.Mesh) -> None:
    """Rows over both axes."""
    args = tuple(ARGS[1:]), ARGS[0]
    schedule = [ps.ManualPartition({"x": 0}, axis=name) for name in mesh.axis_names]
    found = decorated(mesh, schedule=schedule)
    got = found(*args)
    assert found.plan(*args).parallel_iterations == 8
    assert_same(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(*args)))
