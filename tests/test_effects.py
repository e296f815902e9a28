"""Callbacks run once in all, on whole values, and ordered ones in order."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import partir_search as ps

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
SCHEDULE = [
    ps.ManualPartition({"x": 0}, axis="batch"),
    ps.ManualPartition({"w": 1}, axis="model"),
]


@pytest.mark.devices
def test_ordered_callbacks(mesh: jax.sharding.Mesh) -> None:
    """Before, inside of and after a scan; results reach every device."""
    seen: list[tuple[str, float]] = []

    def note(tag: str, x: Any) -> Any:
        seen.append((tag, float(np.sum(x))))
        return np.float32(len(seen))

    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        first = io_callback(lambda v: note("first", v), SCALAR, y, ordered=True)

        def body(carry: Any, z: Any) -> Any:
            io_callback(lambda v: (note("loop", v),)[1:], (), carry, ordered=True)
            return carry * 2, z

        total, _ = lax.scan(body, y.mean(), jnp.arange(3.0))
        last = io_callback(lambda v: note("last", v), SCALAR, y * 0, ordered=True)
        return y + 10 * first + 100 * last + total

    x, w = jnp.arange(64.0).reshape(8, 8) / 64, jnp.ones((8, 8))
    want = jax.jit(fn)(x, w)
    jax.effects_barrier()
    plain = list(seen)
    assert [tag for tag, _ in plain] == ["first", "loop", "loop", "loop", "last"]
    seen.clear()
    got = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(fn)(x, w)
    jax.block_until_ready(got)
    jax.effects_barrier()
    assert seen == plain
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.devices
def test_prints_once(mesh: jax.sharding.Mesh, capfd: pytest.CaptureFixture[str]) -> None:
    """`jax.debug.print`, ordered or not, shows the whole value once."""

    def fn(x: Any, w: Any) -> Any:
        jax.debug.print("loose {} {name}", (x @ w).sum(), name="text")
        jax.debug.print("first {:.1f}", x.sum(), ordered=True)
        jax.debug.print("second {y}", y=w.sum(), ordered=True)
        return x @ w

    x, w = jnp.ones((8, 8)), jnp.ones((8, 8))
    jax.block_until_ready(ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(fn)(x, w))
    jax.effects_barrier()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["first 64.0", "loose 512.0 text", "second 64.0"]
    assert lines.index("first 64.0") < lines.index("second 64.0")


@pytest.mark.devices
def test_loose_callback_gives_its_result_to_all(mesh: jax.sharding.Mesh) -> None:
    calls: list[int] = []

    def host(v: Any) -> Any:
        calls.append(1)
        return np.asarray(v) + 1, np.asarray(v) > 0

    def fn(x: Any, w: Any) -> Any:
        shapes = (jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.bool_))
        y, positive = io_callback(host, shapes, x[0])
        return y @ w, positive

    x, w = jnp.arange(64.0).reshape(8, 8), jnp.ones((8, 8))
    got = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(fn)(x, w)
    jax.block_until_ready(got)
    assert calls == [1]
    np.testing.assert_allclose(got[0], (x[0] + 1) @ w)
    assert got[1].tolist() == (x[0] > 0).tolist()


@pytest.mark.devices
def test_pure_callback_runs_once(mesh: jax.sharding.Mesh) -> None:
    """Alone, under `vmap` of each method, and in a loop."""
    calls: list[tuple[int, ...]] = []

    def host(v: Any) -> Any:
        calls.append(np.shape(v))
        return np.asarray(v) * 2

    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        out = [jax.pure_callback(host, y, y)]
        for method in ("sequential", "expand_dims", "broadcast_all"):
            one = lambda r, m=method: jax.pure_callback(host, r, r, vmap_method=m)  # noqa: E731
            out.append(jax.vmap(one)(y))
        looped = lax.scan(lambda c, r: (c + jax.pure_callback(host, r, r), None), y[0], y)[0]
        return *out, looped

    x, w = jnp.arange(64.0).reshape(8, 8) / 64, jnp.ones((8, 8))
    want = jax.block_until_ready(jax.jit(fn)(x, w))
    plain = sorted(calls)
    calls.clear()
    auto = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(fn)
    got = jax.block_until_ready(auto(x, w))
    assert sorted(calls) == plain
    assert not auto.plan(x, w).opaque()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


RAISING = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
import partir_search as ps

def host(v):
    raise ValueError("no such number")

def after(v):
    print("after")
    return np.asarray(v)

def fn(x, w, kind):
    y = x @ w
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    if kind == "pure":
        y += jax.pure_callback(host, scalar, y.sum())
    elif kind == "debug":
        jax.debug.callback(host, y.sum())
    else:
        y += io_callback(host, scalar, y.sum(), ordered=kind == "ordered")
    if kind != "debug":
        y = jax.pure_callback(after, y, y)
    return (y @ w).sum()

kinds = (jax.sharding.AxisType.Auto,) * 2
mesh = jax.make_mesh((2, 4), ("batch", "model"), kinds, devices=jax.devices()[:8])
rows = [ps.ManualPartition({"x": 0}, axis="batch"), ps.ManualPartition({"w": 1}, axis="model")]
step = ps.auto_partition(mesh, schedule=rows, machine="cpu", static_argnames="kind")(fn)
for kind in ("pure", "loose", "ordered", "debug"):
    try:
        jax.block_until_ready(step(jnp.ones((8, 8)), jnp.ones((8, 8)), kind=kind))
        jax.effects_barrier()
        print(kind, "went on")
    except Exception as error:
        print(kind, "no such number" in str(error))
"""


@pytest.mark.devices
def test_callback_that_raises_stops_all() -> None:
    """At once, and with its own words: no device waits for the one that the callback ran on. In a
    process of its own: jax keeps failed effects until the end.
    """
    done = subprocess.run(
        [sys.executable, "-c", RAISING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:-1] == ["pure True", "loose True", "ordered True", "debug True"]
