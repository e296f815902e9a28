"""`jax.vmap` of loops that each example leaves by itself, tiled as on one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import bicgstab, cg, gmres
from jax.sharding import PartitionSpec

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Reduction
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad
from partir_search.rules import RuleTable
from tests.support import (
    assert_same,
    check_partition,
    floats_of,
    module_of,
    run_emitted,
    state_of,
    tile_arg,
)

MESH = MeshShape(("batch", "model"), (4, 2))
BATCH = (0, 0, "batch")  # argument, dim, axis


def _shrink(x: Any, least: Any) -> Any:
    return lax.while_loop(lambda c: jnp.abs(c).max() > least, lambda c: jnp.sin(c) * 0.8, x)


def _alone(x: Any, least: Any, w: Any) -> Any:
    return jax.vmap(_shrink)(x, least)


def _product(x: Any, least: Any, w: Any) -> Any:
    def one(x: Any, least: Any) -> Any:
        return lax.while_loop(
            lambda c: (jnp.abs(c[1]).max() > least) & (c[0] < 20),
            lambda c: (c[0] + 1, jnp.tanh(c[1] @ w) * 0.5),
            (0, x),
        )

    return jax.vmap(one)(x, least)


def _own_counts(x: Any, least: Any, w: Any) -> Any:
    return jax.vmap(lambda n, x: lax.fori_loop(0, n, lambda i, y: jnp.sin(y) + 0.1 * i, x))(
        jnp.arange(8) % 5, x
    )


def _nested(x: Any, least: Any, w: Any) -> Any:
    def one(x: Any, least: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 6) & (jnp.abs(c[1]).max() > least),
            lambda c: (c[0] + 1, _shrink(c[1] + 0.3, 0.4) - 0.2),
            (0, x),
        )

    return jax.vmap(one)(x, least)


def _twice(x: Any, least: Any, w: Any) -> Any:
    """A predicate of two dims, one of whose vmaps is over the second dim of x."""
    pairs = x.reshape(8, 2, 2)
    return jax.vmap(lambda p, least: jax.vmap(_shrink, in_axes=(0, None), out_axes=1)(p, least))(
        pairs, least
    )


def _in_scan(x: Any, least: Any, w: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        carry = jax.vmap(_shrink)(carry, least)
        return carry + x, carry.sum(1)

    return lax.scan(step, x, None, length=3)


def _scan_around(x: Any, least: Any, w: Any) -> Any:
    def one(x: Any, least: Any) -> Any:
        return lax.scan(lambda c, _: (_shrink(c, least) + x, c), x, None, length=3)

    return jax.vmap(one)(x, least)


def _asks_all(x: Any, least: Any, w: Any) -> Any:
    """The condition reads what is tiled otherwise than the examples."""
    return jax.vmap(
        lambda x: lax.while_loop(
            lambda c: (jnp.abs(c[1] * w.sum(0)).max() > 0.1) & (c[0] < 9),
            lambda c: (c[0] + 1, c[1] * 0.7 + 0.01 * w[c[0] % 4]),
            (0, x),
        )
    )(x)


def _keys(x: Any, least: Any, w: Any) -> Any:
    """Random keys among the carries."""

    def one(key: Any, least: Any) -> Any:
        def body(carry: Any) -> Any:
            key, _ = carry
            key, sub = jax.random.split(key)
            return key, jax.random.uniform(sub)

        return lax.while_loop(lambda c: c[1] > least, body, (key, jnp.float32(1)))[1]

    return jax.vmap(one)(jax.random.split(jax.random.key(0), 8), least)


def _tangents(x: Any, least: Any, w: Any) -> Any:
    return jax.jvp(lambda x: _alone(x, least, w), (x,), (jnp.cos(x),))


def _ref(x: Any, least: Any, w: Any) -> Any:
    """Examples that have finished write nothing more."""

    def one(x: Any, n: Any) -> Any:
        ref = jax.new_ref(x)

        def body(i: Any) -> Any:
            ref[...] = ref[...] * 0.5
            return i + 1

        lax.while_loop(lambda i: i < n, body, 0)
        return ref[...]

    return jax.vmap(one)(x, jnp.arange(8) % 4)


def _branch(x: Any, least: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda: _alone(x, least, w), lambda: x)


def _root(x: Any, least: Any, w: Any) -> Any:
    """Roots by Newton's method, and their gradients by the implicit function theorem."""

    def solve(f: Any, start: Any) -> Any:
        return lax.while_loop(
            lambda y: jnp.abs(f(y)) > 1e-4, lambda y: y - f(y) / jax.grad(f)(y), start
        )

    def one(a: Any) -> Any:
        return lax.custom_root(lambda y: y * y - a, a + 1.0, solve, lambda g, y: y / g(1.0))

    return jax.value_and_grad(lambda a: jax.vmap(one)(a).sum())(least + 1)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, int, str]], set[str]]] = {
    # the function, tiles, and the collectives in its loops
    "alone": (_alone, [BATCH], set()),
    "over_both_axes": (_alone, [BATCH, (1, 0, "model")], set()),
    "features": (_alone, [BATCH, (0, 1, "model")], {"or", "max"}),
    "product": (_product, [BATCH], set()),
    "product_of_columns": (_product, [BATCH, (2, 1, "model")], {"or", "max", ""}),
    "own_counts": (_own_counts, [BATCH], set()),
    "nested": (_nested, [BATCH], set()),
    "nested_features": (_nested, [BATCH, (0, 1, "model")], {"or", "max"}),
    "twice": (_twice, [BATCH], set()),
    "in_scan": (_in_scan, [BATCH], set()),
    "scan_around": (_scan_around, [BATCH], set()),
    "asks_all": (_asks_all, [BATCH, (2, 0, "model")], {"or", "sum"}),
    "keys": (_keys, [(1, 0, "batch")], set()),
    "tangents": (_tangents, [BATCH], set()),
    "ref": (_ref, [BATCH], set()),
    "branch": (_branch, [BATCH], set()),
    "root": (_root, [(1, 0, "batch")], set()),
}


def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("batch", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def _args() -> list[Any]:
    x, w = floats_of((8, 4), (4, 4))
    return [x, jnp.linspace(0.02, 0.5, 8), w]


@pytest.mark.devices
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """The oracle, eight devices and jax agree; devices meet only where an iteration makes them."""
    fn, tiles, monoids = PROGRAMS[name]
    args = _args()
    state = state_of(module_of(fn, *args), MESH)
    for arg, dim, axis in tiles:
        tile_arg(state, arg, dim, axis)
    partition = state.partition()
    whole, sparse = localize(partition), localize(partition, LocalCache(), sparse=True)
    assert [m.step for m, _ in sparse.reshards()] == [m.step for m, _ in whole.reshards()]
    looped = [m.step for m, n in whole.reshards() if n > 3]
    collectives = [s for s in looped if s.communicates]
    assert {s.monoid if isinstance(s, Reduction) else "" for s in collectives} == monoids
    check_partition(partition, fn, args)


@pytest.mark.devices
def test_compiled_decisions() -> None:
    """What the compiler makes of a loop that devices leave alone, and of one that they cannot."""
    args = _args()
    for tiles, wanted in ([BATCH], 0), ([BATCH, (0, 1, "model")], 3):
        plan = ps.auto_partition(
            _mesh(),
            schedule=[ps.ManualPartition({"x": dim}, axis=axis) for _, dim, axis in tiles],
            machine="cpu",
        )(_alone)
        text = plan.lower(*args).compile().as_text()
        assert text.count(" all-reduce(") == wanted
        assert_same(jax.tree.leaves(plan(*args)), jax.tree.leaves(jax.jit(_alone)(*args)))


@pytest.mark.devices
def test_padded_examples_do_not_keep_a_loop_running() -> None:
    """Zeros beyond the end of the batch would never finish."""

    def fn(x: Any) -> Any:
        return jax.vmap(lambda x: lax.while_loop(lambda y: y < 10, lambda y: y + x, x))(x)

    args = [jnp.arange(1.0, 7.0)]
    module = module_of(fn, *args)
    padded = pad_module(module, list(map(RuleTable(), module.ops)), [Pad("a0", 0, 8)])
    verify(padded)
    state = state_of(padded, MESH)
    loop = next(op for op in padded.ops if op.prim == "while")
    state.tile(state.graph.class_of[loop.results[0].id], 0, state.mesh.axes("batch"))
    partition = state.partition()
    assert partition.layout(loop.results[0]) == ((0,),)
    check_partition(partition, fn, args)


@pytest.mark.devices
def test_callbacks_bring_devices_together(capfd: pytest.CaptureFixture[str]) -> None:
    """A callback runs once for all devices, so that none may have left."""

    def fn(x: Any) -> Any:
        def body(y: Any) -> Any:
            jax.debug.print("at {}", y)
            return y * 0.5

        return jax.vmap(lambda x: lax.while_loop(lambda y: y > 1, body, x))(x)

    args = [jnp.array([0.5, 4.0, 16.0, 1.5])]
    state = state_of(module_of(fn, *args), MESH)
    tile_arg(state, 0, 0, "batch")
    program = localize(state.partition())
    steps = [m.step for m, _ in program.reshards()]
    assert [s.monoid for s in steps if isinstance(s, Reduction)] == ["or"]
    (out,) = run_emitted(state.partition(), args)
    jax.effects_barrier()
    np.testing.assert_allclose(out, [0.5, 1.0, 1.0, 0.75])
    assert "at 16.0" in capfd.readouterr().out


def _solves(solver: Any) -> Callable[..., Any]:
    def fn(a: Any, b: Any) -> Any:
        return jax.vmap(lambda a, b: solver(lambda v: a @ v, b, maxiter=6)[0])(a, b)

    return fn


def _solve_gradient(a: Any, b: Any) -> Any:
    def loss(a: Any, b: Any) -> Any:
        return jnp.sum(_solves(cg)(a, b) ** 2)

    return jax.grad(loss, (0, 1))(a, b)


def _trajectory_gradient(a: Any, b: Any) -> Any:
    def loss(b: Any) -> Any:
        def one(a: Any, y: Any) -> Any:
            return odeint(lambda y, t, a: -a @ y, y, jnp.array([0.0, 0.5]), a)[-1]

        return jnp.sum(jax.vmap(one)(a, b) ** 2)

    return jax.value_and_grad(loss)(b)


def _counts(a: Any, b: Any) -> Any:
    keys = jax.random.split(jax.random.key(1), 8)
    return jax.vmap(jax.random.poisson)(keys, 20 * jnp.abs(b[:, 0])), b


def _in_region(a: Any, b: Any) -> Any:
    """In a `shard_map` of the user's own."""
    rows = PartitionSpec("batch")
    mesh = _mesh()
    least = jnp.linspace(0.02, 0.5, 8)
    run = jax.shard_map(jax.vmap(_shrink), mesh=mesh, in_specs=(rows, rows), out_specs=rows)
    return run(b, least)


LIBRARY = {
    "bicgstab": _solves(bicgstab),
    "gmres": _solves(gmres),
    "cg_gradient": _solve_gradient,
    "odeint_gradient": _trajectory_gradient,
    "poisson": _counts,
    "in_region": _in_region,
}


@pytest.mark.devices
@pytest.mark.parametrize("name", LIBRARY)
def test_library_loops(name: str) -> None:
    """No warning, no collective in a loop, right numbers."""
    fn = LIBRARY[name]
    a, b = floats_of((8, 4, 4), (8, 4))
    a = a @ a.transpose(0, 2, 1) + 2 * jnp.eye(4)
    schedule = [ps.ManualPartition({"b": 0}, axis="batch")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        auto = ps.auto_partition(_mesh(), schedule=schedule, machine="cpu")(fn)
        plan = auto.plan(a, b)
        assert sum(plan.collective_counts.values()) <= 1  # the sum of a loss
        got = auto(a, b)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(jax.jit(fn)(a, b)), 1e-4)
