"""Trip counts of `while` loops: read off the program, said by the user, or assumed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from rich.console import Console

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.ir.trip_counts import Trips, data_loops
from partir_search.plan.report.tables import loops_table
from tests.support import floats_of, module_of

MESH = AbstractMesh((2, 4), ("batch", "model"))


def _trips(module: Module) -> list[Trips]:
    return [op.params["trips"] for op in module.ops if op.prim == "while"]


def _counting(start: Any, more: Callable[[Any], Any], step: Callable[[Any], Any]) -> Any:
    """A loop of a counter beside a value."""
    return lambda x: lax.while_loop(
        lambda c: more(c[0]), lambda c: (step(c[0]), jnp.sin(c[1])), (start, x)
    )


@pytest.mark.parametrize(
    ("start", "more", "step", "count"),
    [
        (0, lambda i: i < 7, lambda i: i + 1, 7),
        (2, lambda i: i <= 7, lambda i: i + 2, 3),
        (9, lambda i: i > 2, lambda i: i - 3, 3),
        (9, lambda i: i >= 2, lambda i: i - 1, 8),
        (9, lambda i: i < 500, lambda i: 1 + i, 491),
        (0.0, lambda t: t < 1.0, lambda t: t + 0.25, 4),
        (5, lambda i: i < 3, lambda i: i + 1, 0),
    ],
)
def test_counters(start: Any, more: Any, step: Any, count: int) -> None:
    """Also of a batch of loops that count alike; the count is exact if nothing else stops them."""
    (x,) = floats_of((4,))
    fn = _counting(start, more, step)
    assert _trips(module_of(fn, x)) == [Trips(max(1, count), count, "program")]

    def either(x: Any) -> Any:
        return lax.while_loop(
            lambda c: more(c[0]) & (c[1] > 0), lambda c: (step(c[0]), c[1] / 2), (start, x)
        )

    said = Trips(max(1, min(count, 100)), count, "assumed")
    assert _trips(module_of(jax.vmap(either), x)) == [said]


@pytest.mark.parametrize(
    ("more", "step"),
    [
        (lambda i: i < 7, lambda i: i - 1),  # away from the end
        (lambda i: i < 7, lambda i: i * 2),
        (lambda i: (i < 7) | (i > 9), lambda i: i + 1),
    ],
)
def test_no_counters(more: Any, step: Any) -> None:
    (x,) = floats_of((4,))
    assert _trips(module_of(_counting(1, more, step), x)) == [Trips(100, None, "assumed")]


def test_bounds_from_outside() -> None:
    """An end that the loop closes over is a number, or is not known; a flag runs it once."""
    (x,) = floats_of((4,))

    def fn(x: Any, n: Any) -> Any:
        end = jnp.int32(12)
        a = lax.while_loop(lambda c: c[0] < end, lambda c: (c[0] + 1, c[1] * 2), (0, x))
        b = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))
        c = lax.while_loop(lambda c: c[0] & (c[1].sum() > 0), lambda c: (False, c[1]), (True, x))
        return a, b, c

    assert _trips(module_of(fn, x, jnp.int32(3))) == [
        Trips(12, 12, "program"),
        Trips(100, None, "assumed"),
        Trips(1, 1, "assumed"),
    ]


def _until(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.while_loop(lambda y: jnp.abs(y).max() > 0.1, f, x)


def test_nests_share_one_assumption() -> None:
    """Loops in each other: the innermost body runs about a hundred times in all."""
    (x,) = floats_of((4,))
    half = _until(lambda y: y / 2)

    def runs(fn: Any) -> list[tuple[int, int]]:
        return [(loop.trips.count, loop.runs) for loop in data_loops(module_of(fn, x))]

    assert runs(half) == [(100, 100)]
    assert runs(_until(lambda y: half(y) / 2)) == [(10, 10), (10, 100)]
    deep = _until(lambda y: _until(lambda z: half(z) / 2)(y) / 2)
    assert runs(deep) == [(5, 5), (4, 20), (5, 100)]
    beside = _until(lambda y: half(_until(lambda z: half(z) / 2)(y)))
    assert runs(beside) == [(5, 5), (4, 20), (5, 100), (20, 100)]
    few = _counting(0, lambda i: i < 5, lambda i: i + 1)
    known = _until(lambda y: half(few(y)[1]))
    assert runs(known) == [(10, 10), (10, 100)]

    def limited(x: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 4) & (c[1].sum() > 0), lambda c: (c[0] + 1, half(c[1])), (0, x)
        )[1]

    assert runs(limited) == [(4, 4), (25, 100)]
    assert runs(_until(limited)) == [(5, 5), (4, 20), (5, 100)]
    inside = _until(
        lambda y: lax.while_loop(
            lambda c: (c[0] < 4) & (c[1].sum() > 0), lambda c: (c[0] + 1, c[1] / 2), (0, y)
        )[1]
    )
    assert runs(inside) == [(25, 25), (4, 100)]
    scanned = lambda x: lax.scan(lambda c, _: (half(c), None), x, None, length=3)[0]  # noqa: E731
    assert runs(scanned) == [(100, 300)]


def _bounded(x: Any, depth: int) -> Any:
    """At most 8 to the power of `depth` iterations, which can be differentiated."""
    if depth == 0:
        return jnp.sin(x) / 2
    step = jax.checkpoint(
        lambda x, _: (
            lax.cond(jnp.abs(x).max() > 0.1, lambda x: _bounded(x, depth - 1), lambda x: x, x),
            None,
        )
    )
    return lax.scan(step, x, None, length=8)[0]


def test_scans_that_are_left_early() -> None:
    """A nest of them, forward and backward, shares one assumption; a single one runs whole."""
    (x,) = floats_of((4,))

    def runs(depth: int, **options: Any) -> list[tuple[int, int]]:
        fn = jax.grad(lambda x: _bounded(x, depth).sum())
        plan = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], **options)(fn).plan(x)
        return [(loop.trips.count, loop.runs) for loop in data_loops(plan.module)]

    assert runs(1) == []
    twice = runs(2)
    assert len(twice) > 3
    assert set(twice) == {(8, 8), (8, 64)}  # as many as there are
    assert set(runs(3)) == {(5, 5), (4, 20), (5, 100)}
    assert set(runs(3, trip_counts={"*": 8})) == {(2, 2), (2, 4), (2, 8)}


def _solve(x: Any) -> Any:
    with jax.named_scope("outer"):
        return lax.while_loop(
            lambda c: jnp.abs(c).max() > 0.1,
            lambda c: lax.while_loop(lambda y: y.sum() > 1, lambda y: jnp.sin(y) / 2, c) / 2,
            x,
        )


def test_said_by_the_user() -> None:
    """By name stack, source line or name; costs follow, and so do the loops inside."""
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)

    def plan(**options: Any) -> ps.Plan:
        return ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], **options)(_solve).plan(x)

    assumed = plan()
    outer, inner = data_loops(assumed.module)
    assert (outer.trips.count, inner.trips.count) == (10, 10)
    by_scope = plan(trip_counts={"*outer*": 1})
    assert [loop.trips.count for loop in data_loops(by_scope.module)] == [1, 100]
    line = inner.source.split("/")[-1].split(" ")[0]
    for glob in (f"*{line} *", inner.name):
        said = plan(trip_counts={glob: 40, "*": 2})
        assert [loop.trips.count for loop in data_loops(said.module)] == [2, 40]
        assert [loop.trips.said for loop in data_loops(said.module)] == ["user", "user"]
        assert said.cost.seconds / assumed.cost.seconds == pytest.approx(0.8, rel=0.1)
    assert said.fingerprint == assumed.fingerprint  # a saved plan goes on


def test_report() -> None:
    """Loops, where they are, what was assumed and how to say better."""
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    plan = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], trip_counts={"*outer*": 1200})(
        _solve
    ).plan(x)
    out = io.StringIO()
    Console(file=out, width=200).print(loops_table(plan))
    text = out.getvalue()
    for part in (
        "test_trip_counts.py:",
        "1,200",
        "120,000",
        "trip_counts",
        "assumed",
        "trip_counts={",
    ):
        assert part in text
    exact = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[])(
        _counting(0, lambda i: i < 7, lambda i: i + 1)
    ).plan(x)
    assert not loops_table(exact).row_count


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"*nowhere*": 3}, r"'\*nowhere\*' matches no loop .* they are: .*test_trip_counts.py:\d+"),
        ({"*": 0}, "whole numbers of at least 1"),
        ({"*": 2.5}, "whole numbers of at least 1"),
    ],
)
def test_bad_counts(counts: Any, message: str) -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.raises(ValueError, match=message):
        ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], trip_counts=counts)(_solve).plan(x)


def test_exact_counts_are_not_said() -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    fn = _counting(0, lambda i: i < 7, lambda i: i + 1)
    auto = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], trip_counts={"*": 3})(fn)
    with pytest.raises(ValueError, match="the program itself runs 7 times"):
        auto.plan(x)
