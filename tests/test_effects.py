"""Callbacks run once in all, on whole values, and ordered ones in order."""

from __future__ import annotations

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
