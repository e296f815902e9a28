"""Mutable refs: the plan of a program with refs is that of the same program with a carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.reading.refs.discharge import READ
from partir_search.simulator.target.machine import MACHINES, Machine
from tests.reported.ref_programs import PAIRS
from tests.support import (
    assert_same,
    device_mesh,
    floats_of,
    module_of,
    run_emitted,
    state_of,
    tile_arg,
)

V5E = MACHINES["tpu_v5e"]
# So slow that small shapes are worth tiling.
SLOW = Machine(
    **{
        **{f.name: getattr(V5E, f.name) for f in dataclasses.fields(V5E)},
        "name": "slow",
        "flops_per_s": {k: v / 1e5 for k, v in V5E.flops_per_s.items()},
        "hbm_bytes_per_s": V5E.hbm_bytes_per_s / 1e5,
        "vmem_bytes_per_s": V5E.vmem_bytes_per_s / 1e5,
        "kernel_seconds": 0.0,
        "hop_seconds": 0.0,
    }
)
FOUR_TWO = MeshShape(("data", "model"), (4, 2))


def planned(fn: Callable[..., Any], **options: Any) -> Any:
    mesh = device_mesh(FOUR_TWO)
    return ps.auto_partition(mesh, machine=SLOW, episodes=8, progress=False, **options)(fn)


@pytest.mark.devices
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_plan_of_a_carry(name: str) -> None:
    """Tilings, collectives and cost are equal, and the results those of the plain function."""
    with_ref, with_carry, args = PAIRS[name]
    auto = planned(with_ref)
    plan, other = auto.plan(*args), planned(with_carry).plan(*args)
    assert not plan.opaque()
    assert plan.partition_specs == other.partition_specs
    moved = [
        sorted((c.kind, c.axes, c.bytes, c.times) for c in p.collectives) for p in (plan, other)
    ]
    assert moved[0] == moved[1]
    assert plan.cost.seconds == pytest.approx(other.cost.seconds, rel=1e-3)
    assert plan.cost.peak_bytes == pytest.approx(other.cost.peak_bytes, rel=1e-2)
    assert any(any(s) for s in jax.tree.leaves(plan.partition_specs))
    want, got = jax.jit(with_carry)(*args), auto(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), 1e-4)


# Forms of reads and writes, each run with its first argument tiled.

X = floats_of((4, 4, 8))[0]


def indexing(x: jax.Array) -> Any:
    ref = jax.new_ref(jnp.zeros((4, 8)))

    def body(i: jax.Array, c: jax.Array) -> jax.Array:
        ref[i] += x[0, i] * i
        ref[1:3, i] = x[0, :2, 0]
        ref[::2, 1::3] += 1.0
        ref[jnp.array([0, 2]), i] = x[0, :2, 0]
        ref[1:3, jnp.array([0, 2])] += 2.0
        ref[i, jnp.array([0, 2])] += 2.0
        jax.ref.addupdate(ref, (slice(None), i), x[0, :, 2])
        jax.ref.addupdate(ref, ..., x[1])
        return c + ref[i, i]

    last = lax.fori_loop(0, 4, body, 0.0)
    start = jnp.argmax(x[0, 0, :2])
    ref[pl.ds(start, 2)] = ref[pl.ds(start, 2)] * 3
    ref[pl.ds(start, 2), jnp.array([1, 2, 3])] += 4.0
    ref[pl.ds(start, 2, 2)] = ref[pl.ds(start, 2, 2)] * 3
    ref.at[1].at[2:4][...] = x[2, 0, :2]
    old = jax.ref.swap(ref, (slice(0, 2),), x[3, :2])
    return last, old, ref.at[start].at[1][...], jax.freeze(ref)


def mapped_example(x: jax.Array, i: jax.Array) -> Any:
    ref = jax.new_ref(x)
    ref[i] = x[1] * 2
    ref[1:3, 2] = x[:2, 0]
    jax.ref.addupdate(ref, (slice(None), i), x[:, 2])
    return ref[...], ref[0], ref[:, i], ref[i, i + 1], ref[i, 1:3]


def mapped(x: jax.Array) -> Any:
    """Examples along each dim of the ref."""
    at = jnp.arange(4)
    first = jax.vmap(mapped_example)(x, at)
    return first, jax.vmap(mapped_example, in_axes=(1, 0))(x, at)


def mapped_twice(x: jax.Array) -> Any:
    at = jnp.arange(8).reshape(2, 4) % 4
    one = jax.vmap(mapped_example, in_axes=(1, 0))
    return jax.vmap(one)(jnp.stack([x, x[::-1]]), at)


def mapped_places(x: jax.Array) -> Any:
    """Many places of one ref are read."""
    ref = jax.new_ref(x[0])
    at = jnp.arange(4)
    return jax.vmap(lambda i: (ref[i], ref[:, i], ref[i, i]))(at)


def scanned(x: jax.Array) -> Any:
    """A ref is scanned over: each iteration has a row of it."""
    ref, total = jax.new_ref(x), jax.new_ref(0.0)

    def body(c: Any, row: Any) -> Any:
        row[...] = row[...] * 2 + c
        total[...] += row[0, 0]
        return c + 1, row[1]

    return lax.scan(body, 0.0, ref), ref[...], total[...]


def counted_tests(x: jax.Array) -> Any:
    """The condition of a loop counts how often it held."""
    ref, count = jax.new_ref(x), jax.new_ref(0)

    def small(i: jax.Array) -> jax.Array:
        count[...] += 1
        return (i < 4) & (ref[0, 0, 0] < 10)

    def body(i: jax.Array) -> jax.Array:
        ref[...] = ref[...] * 2 + x
        return i + 1

    return lax.while_loop(small, body, 0), ref[...], count[...]


def branches(x: jax.Array) -> Any:
    ref = jax.new_ref(x)

    def write() -> jax.Array:
        ref[0] = ref[1]
        return ref[0, 0, 0]

    def run(i: jax.Array) -> jax.Array:
        return lax.switch(i, [write, lambda: ref[1, 1, 1], lambda: jnp.float32(0)])

    return run(jnp.argmax(x[0, 0, :3])), run(jnp.int32(0)), ref[...]


def calls(x: jax.Array) -> Any:
    """Refs given to jitted functions, to checkpoints and through a custom gradient."""
    ref = jax.new_ref(x)

    @jax.jit
    def add(ref: Any, y: jax.Array) -> jax.Array:
        ref[...] += y
        return y * ref[0]

    @jax.checkpoint
    def again(y: jax.Array) -> jax.Array:
        ref[...] *= y
        return y.sum()

    @jax.custom_vjp
    def noted(ref: Any, y: jax.Array) -> jax.Array:
        return y * 1

    def forward(ref: Any, y: jax.Array) -> Any:
        return y * 1, ref

    def backward(ref: Any, g: jax.Array) -> Any:
        ref[...] = g
        return None, g

    noted.defvjp(forward, backward)
    cotangent = jax.new_ref(jnp.zeros_like(x))
    g = jax.grad(lambda x: jnp.sin(noted(cotangent, x)).sum())(x)
    return add(ref, x), add(ref, 2 * x), again(x), ref[...], g, cotangent[...], noted(ref, x)


def random_keys(x: jax.Array) -> Any:
    keys = jax.new_ref(jax.random.split(jax.random.key(0), 4))

    def body(i: jax.Array, c: jax.Array) -> jax.Array:
        keys[i], own = jax.random.split(keys[i])
        return c + jax.random.normal(own, c.shape)

    return lax.fori_loop(0, 4, body, x), jax.random.key_data(jax.freeze(keys))


def differentiated_twice(x: jax.Array) -> Any:
    def loss(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(jnp.zeros(8))

        def body(c: jax.Array, row: jax.Array) -> Any:
            ref[...] += jnp.sin(row) * c
            return c + ref[0], None

        lax.scan(body, 1.0, x)
        ref[2:4] = ref[2:4] * x[1, :2]
        return (ref[...] ** 2).sum()

    return jax.vmap(jax.value_and_grad(loss))(x)


def own_memory(x: jax.Array) -> Any:
    """Memory that begins empty, and a function of refs of its own."""
    ref = jax.empty_ref(jax.typeof(x))
    ref[...] = x

    def body(ref: Any) -> None:
        ref[...] = ref[...] * 2

    out = pl.run_state(body)(ref[...])
    jax.free_ref(ref)
    return out


FORMS = (
    *(indexing, mapped, mapped_twice, mapped_places, scanned, counted_tests, branches, calls),
    *(random_keys, differentiated_twice, own_memory),
)


@pytest.mark.devices
@pytest.mark.parametrize("fn", FORMS, ids=lambda f: f.__name__)
def test_forms(fn: Callable[..., Any]) -> None:
    module = module_of(fn, X)
    assert not {op.prim for op in module.ops} & set(READ)
    state = state_of(module, MeshShape(("x",), (2,)))
    tile_arg(state, 0, 0, "x")
    want = jax.tree.leaves(jax.jit(fn)(X))
    assert_same(run_emitted(state.partition(), [X]), want)


def test_batch_of_refs_stays_tiled() -> None:
    """Where vmap counts along a ref's dim with an iota, its examples stay apart."""
    module = module_of(jax.vmap(mapped_example), X, jnp.arange(4))
    state = state_of(module, MeshShape(("x",), (2,)))
    tile_arg(state, 0, 0, "x")
    tiles = state.partition().tiles[0]
    assert [tiles[v.id] for v in module.body.results] == [0] * 5  # type: ignore[union-attr]


def test_read_only_refs_are_no_carries() -> None:
    def fn(x: jax.Array) -> Any:
        ref, total = jax.new_ref(x), jax.new_ref(jnp.float32(0))

        def body(c: None, i: jax.Array) -> Any:
            total[...] += ref[i, 0, 0]
            return None, None

        lax.scan(body, None, jnp.arange(4))
        return total[...]

    (scan,) = [op for op in module_of(fn, X).ops if op.prim == "scan"]
    assert (scan.params["num_consts"], scan.params["num_carry"]) == (1, 1)
