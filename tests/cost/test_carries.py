"""Carries of loops: one buffer in all iterations, unless something still reads the old value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from partir_search.rules.control_flow import ACCUMULATES
from tests.support import ROUND, cost_of, module_of, ones, state_of

SIZE = 64
BYTES = 4 * SIZE * SIZE


def peak(fn: Callable[..., Any], *args: Any) -> float:
    """Bytes beside the arguments."""
    cost = cost_of(state_of(module_of(fn, *args)))
    return cost.peak_bytes - cost.argument_bytes


def looped(body: Callable[[Any, Any], Any], loop: str, kept: bool = False) -> Callable[..., Any]:
    """From a product on, eight times the body; `kept`: what it begins with is returned, too."""

    def fn(x: Any) -> Any:
        start = x @ x
        if loop == "scan":
            end = lax.scan(lambda c, _: (body(c, x), None), start, None, length=8)[0]
        else:
            end = lax.fori_loop(0, jnp.int32(x.sum()), lambda _, c: body(c, x), start)
        return (start, end) if kept else end

    return fn


@pytest.mark.parametrize("loop", ["scan", "while"])
@pytest.mark.parametrize(
    ("body", "buffers"),
    [
        (lambda c, x: c + x, 1),  # written over
        (lambda c, x: lax.dynamic_update_slice(c, x[:1] * 2, (3, 0)), 1),
        (lambda c, x: c @ x, 2),  # a product does not write over what it reads
        (lambda c, x: jnp.sort(c + 1, 0) @ x, 2),  # sorted rows; the carry is free for the product
        (lambda c, x: c + (c @ x) @ x, 3),  # both products beside the carry
    ],
    ids=["sum", "update", "product", "read before", "read late"],
)
def test_a_carry_stays_in_one_place(body: Callable[..., Any], buffers: int, loop: str) -> None:
    slack = 16  # counters
    assert peak(looped(body, loop), ones(SIZE, SIZE)) == pytest.approx(buffers * BYTES, abs=slack)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_what_is_needed_later_is_copied(loop: str) -> None:
    """The loop may not work in the place of what it begins with."""
    found = peak(looped(lambda c, x: c + x, loop, kept=True), ones(SIZE, SIZE))
    assert found == pytest.approx(2 * BYTES, abs=16)


def test_carries_that_change_places_are_apart() -> None:
    """What is the next value of the one is read by the other: neither is written over."""

    def fn(x: Any) -> Any:
        start = x @ x, x @ (x @ x)
        return lax.scan(lambda c, _: ((c[1], c[0] + 1), None), start, None, length=8)[0]

    assert peak(fn, ones(SIZE, SIZE)) >= 3 * BYTES


@pytest.mark.parametrize("kept", [False, True])
def test_updates_move_what_they_write(kept: bool) -> None:
    """A row for each of 8 iterations: read and written; or all, where the old value is kept."""

    def fn(x: Any, rows: Any) -> Any:
        def body(c: Any, row: Any) -> Any:
            new = lax.dynamic_update_slice(c, row[None], (3, 0))
            return new, (c if kept else None)

        return lax.scan(body, x @ x, rows)

    args = ones(SIZE, SIZE), ones(8, SIZE)
    module = module_of(fn, *args)
    cost = cost_of(state_of(module))
    product = cost_of(state_of(module_of(lambda x: x @ x, args[0]))).compute_seconds
    moved = (cost.compute_seconds - product) * ROUND.attained_hbm_bytes_per_s
    row = 4 * SIZE
    least = 8 * 2 * row
    assert moved == pytest.approx(least) if not kept else moved >= least + 8 * BYTES


@pytest.mark.parametrize("adds", [False, True])
def test_slots_are_made_at_their_loop(adds: bool) -> None:
    """Beside a product before the loop stand totals of sums, but no slots that are still empty."""

    def fn(x: Any) -> Any:
        def body(held: Any, _: Any) -> tuple[Any, None]:
            return (held + x if adds else lax.dynamic_update_slice(held, x[:1], (3, 0))), None

        start = jnp.zeros((SIZE, SIZE))
        early = (x @ x) @ x
        return lax.scan(body, start, None, length=8)[0].sum() + early.sum()

    module = module_of(fn, ones(SIZE, SIZE))
    (loop,) = (op for op in module.body.ops if op.regions)
    loop.params = {**loop.params, ACCUMULATES: True}
    found = []
    for late in (False, True):
        cost = cost_of(state_of(module), ROUND.with_traits(makes_slots_at_loops=late))
        found.append(round((cost.peak_bytes - cost.argument_bytes) / BYTES))
    assert found == [3, 3 if adds else 2]
