"""What collectives cost beside their seconds on the links: what hides them, and what they copy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

from tests.support import ROUND, cost_of, module_of, ones, state_of, tile_arg


def test_gathers_of_arguments_hide_where_the_machine_prefetches() -> None:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        return (x @ w1) @ w2

    state = state_of(module_of(f, ones(64, 64), ones(64, 64), ones(64, 64)))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 2, 0, "batch")
    exposed = cost_of(state).collective_seconds
    assert exposed == pytest.approx(4 * 64 * 64 / 2 / 1e6)
    hidden = cost_of(state, ROUND.with_traits(async_all_gather="since_source")).collective_seconds
    assert hidden == pytest.approx(exposed - 2 * 32 * 64 * 64 / 1e9)


@pytest.mark.parametrize("late", [True, False])
def test_gathers_hide_behind_what_ran_since_their_source_was_made(late: bool) -> None:
    """Rows of sines are sorted by columns, as soon as they are made or after a product."""

    def f(x: Any, b: Any) -> Any:
        if late:
            tiles = jnp.sin(x)
            return b @ b, jnp.sort(tiles, 0)
        product = b @ b
        return product, jnp.sort(jnp.sin(x), 0)

    state = state_of(module_of(f, ones(64, 64), ones(64, 64)))
    tile_arg(state, 0, 0, "batch")
    prefetching = ROUND.with_traits(async_all_gather="since_source")
    exposed, left = (cost_of(state, m).collective_seconds for m in (ROUND, prefetching))
    assert exposed == pytest.approx(4 * 64 * 64 / 2 / 1e6)
    assert exposed - left == pytest.approx(2 * 64**3 / 1e9 if late else 0.0)


@pytest.mark.parametrize("donated", [True, False])
def test_what_is_gathered_for_a_donated_buffer_is_copied_there(donated: bool) -> None:
    """ZeRO's new parameter of 4 KB, read and written at 1 GB/s."""
    module = module_of(lambda w, m: w - m, ones(32, 32), ones(32, 32), ties=((0, 0),))
    state = state_of(dataclasses.replace(module, donated=frozenset({0} if donated else ())))
    state.replicate(state.graph.class_of[0], state.mesh.axes("batch"))
    tile_arg(state, 1, 0, "batch")
    copying = ROUND.with_traits(copies_gather_into_donated=True)
    plain, copied = cost_of(state), cost_of(state, copying)
    assert plain.bytes_by_kind.keys() == {"all_gather"}
    spent = copied.compute_seconds - plain.compute_seconds
    assert spent == pytest.approx(2 * 4096 / 1e9 if donated else 0.0, abs=1e-12)
    on_chip = dataclasses.replace(copying, vmem_bytes=2 * 4096 + 2)  # lands there and leaves later
    assert cost_of(state, on_chip).compute_seconds == pytest.approx(plain.compute_seconds)


def test_tiles_of_an_all_to_all_are_packed() -> None:
    state = state_of(module_of(lambda x: jnp.cumsum(jnp.sin(x), 0), ones(32, 32)))
    tile_arg(state, 0, 0, "batch")
    (at,) = (op for op in state.graph.module.ops if op.prim == "cumsum")
    state.tile(state.graph.class_of[at.results[0].id], 1, state.mesh.axes("batch"))
    packing = ROUND.with_traits(collective_copy_factors={"all_to_all": 8.0})
    plain, packed = cost_of(state), cost_of(state, packing)
    assert plain.bytes_by_kind.keys() == {"all_to_all"}
    spent = packed.compute_seconds - plain.compute_seconds
    assert spent == pytest.approx(8 * 4 * 32 * 32 / 2 / 1e9)
