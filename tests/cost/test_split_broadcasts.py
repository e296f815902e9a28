"""Statistics of groups of the last dim, which XLA:TPU stores repeated along the group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.analysis.def_use import def_use
from partir_search.simulator.memory.split_broadcasts import split_broadcasts
from tests.support import ROUND, cost_of, module_of, state_of

X = jax.ShapeDtypeStruct((64, 128, 256), jnp.float32)


def centred(x: Any, groups: int) -> Any:
    parts = x.reshape(*x.shape[:-1], groups, -1)
    return parts - parts.mean(-1, keepdims=True)


def grouped(x: Any) -> Any:
    return centred(x, 8).reshape(x.shape)


def found_in(fn: Any) -> list[int]:
    """Repetitions of the statistics of a function."""
    state = state_of(module_of(fn, X))
    module = state.partition().module
    return sorted(split_broadcasts(module, state.partition().rules, def_use(module)).values())


def test_each_mean_is_repeated_along_its_group() -> None:
    assert found_in(grouped) == [32]


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x - x.mean(-1, keepdims=True),
        lambda x: jnp.einsum("bsgk,btgk->bgst", centred(x, 8), centred(x, 8)),
        lambda x: (lambda y: y - y.mean(0, keepdims=True))(x.reshape(64, 128, 8, 32)).reshape(
            x.shape
        ),
    ],
    ids=["a whole dim", "heads, not merged again", "another dim"],
)
def test_other_statistics_are_not(form: Any) -> None:
    assert found_in(form) == []


def test_bytes_until_the_backward_pass() -> None:
    def loss(x: Any) -> Any:
        return (jnp.tanh(grouped(x)) ** 2).sum()

    peaks = [
        cost_of(state_of(module_of(jax.grad(loss), X)), machine).peak_bytes
        for machine in (ROUND, ROUND.with_traits(stores_split_broadcasts=True))
    ]
    few, full = 64 * 128 * 8 * 4, 64 * 128 * 256 * 4
    assert peaks[1] - peaks[0] == pytest.approx(full - few, rel=0.01)
