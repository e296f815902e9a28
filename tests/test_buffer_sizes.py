"""Bytes of buffers from XLA's buffer assignment, against hand-made ones and the compiler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.aot import process
from partir_search.aot.buffers import buffer_sizes


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """Protobuf's wire format of numbers and bytes."""
    return b"".join(
        varint(k << 3) + varint(v)
        if isinstance(v, int)
        else varint(k << 3 | 2) + varint(len(v)) + v
        for k, v in fields
    )


def allocation(index: int, size: int, *marks: int) -> tuple[int, bytes]:
    return 3, message((1, index), (2, size), *((mark, 1) for mark in marks))


def event(kind: str, buffer: int, shared: int = 0) -> tuple[int, bytes]:
    number = ("new", "freed", "shares").index(kind)
    return 1, message((1, number), (2, buffer), (4, b"an instruction"), (5, shared))


SIZES = (30_000, 500, 70_000, 30_000, 90_000)
ON_CHIP = {4}
BUFFERS = [(1, message((1, i), (2, size), (4, int(i in ON_CHIP)))) for i, size in enumerate(SIZES)]
# 3 shares 0's bytes, and keeps them when 0 is freed: 100,500 bytes beside 1 and 2, not 130,500.
EVENTS = [
    *(event("new", 0), event("shares", 3, 0), event("new", 1), event("freed", 0)),
    *(event("new", 2), event("freed", 3), event("freed", 2), event("freed", 1)),
]
TRACES = [(4, message(*EVENTS, (3, 7))), (4, message(event("new", 2), event("freed", 2), (3, 8)))]
PROGRAM = [
    allocation(0, 1000, 5),  # an argument
    allocation(1, 64, 12),  # a constant
    allocation(2, 200, 7),  # a result
    allocation(3, 2000, 5, 7),  # a donated argument
    allocation(4, 4096, 3),  # local to a thread
    allocation(7, 120_000),  # temporaries
    allocation(8, 70_000),  # in another memory
]


def test_a_peak_by_hand() -> None:
    found = buffer_sizes(message((1, b"a module"), (3, message(*BUFFERS, *PROGRAM, *TRACES))))
    assert found.arguments == 3000
    assert found.peak == found.main == 3264 + 100_500


def test_memory_on_the_chip_is_told_from_main_memory() -> None:
    small = [(4, message(event("new", 0), event("freed", 0)))]
    chip = [(4, message(event("new", 4), event("freed", 4)))]
    found = buffer_sizes(message((3, message(*BUFFERS, *PROGRAM, *chip, *small, (4, b"")))))
    assert (found.peak, found.main) == (3264 + 90_000, 3264 + 30_000)


@pytest.mark.parametrize(
    "data",
    [b"", message((1, b"a module")), message((3, 7)), message((3, b"\xff")), message((3, b"\x0b"))],
)
def test_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|ends early|wire|message"):
        buffer_sizes(data)


@pytest.fixture(scope="module")
def scanned() -> ps.Plan:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0].sum()

        return w - 0.1 * jax.grad(loss)(w)

    tactics = [ps.ManualPartition({"x": 0}, "batch"), ps.ManualPartition({"w": 1}, "batch")]
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((7, 1024, 1024), (8192, 1024))]
    mesh = AbstractMesh((8,), ("batch",))
    wrapped = ps.auto_partition(mesh, schedule=tactics, machine="tpu_v5e", donate_argnums=0)
    return wrapped(step).plan(*shapes)


@pytest.mark.compilers
def test_an_early_stop_has_the_sizes_of_the_end(scanned: ps.Plan) -> None:
    """And the same program, whose loops run as often as predicted."""
    early, full = (scanned.verify("tpu_v5e:2x4", cycles=c) for c in (False, True))
    assert (early.complete, full.complete) == (False, True)
    assert early.peak_bytes == full.peak_bytes
    assert early.argument_bytes == full.argument_bytes
    assert early.rows == full.rows
    assert early.confirmed, str(early)
    assert {c.times for c in scanned.collectives} >= {7}
    assert all(row.compiled_bytes == row.predicted_bytes for row in early.rows), str(early)
    assert "estimated_cycles" in full.hlo
    assert "estimated_cycles" not in early.hlo


@pytest.mark.compilers
def test_without_dumps_the_compilation_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions of the compiler may write other files, or none before they end."""
    mesh = AbstractMesh((8,), ("batch",))
    tactics = [ps.ManualPartition({"x": 0}, "batch")]
    step = ps.auto_partition(mesh, schedule=tactics, machine="tpu_v5e")(lambda x: jnp.tanh(x))
    plan = step.plan(jax.ShapeDtypeStruct((64, 128), jnp.float32))
    for name in ("WORKER", "TEXT"):
        with monkeypatch.context() as patched:
            patched.setattr(process, name, "/no/such/file")
            assert plan.verify("tpu_v5e:2x4").complete
