"""Where partial results are finished: once, where they meet or shrink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from partir_search.ir.partition import Partition
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Reduction
from tests.support import MESH, check_partition, floats_of, module_of, state_of

X = (8, 16)


def widest(x: Any, y: Any) -> Any:
    """Two maxima that meet."""
    return jnp.maximum(jnp.exp(x.max(1)) + 1.0, 2.0 * y.max(1))


def narrowest(x: Any, y: Any) -> Any:
    """A minimum that shrinks."""
    z = lax.reduce_min(x, (1,))
    return z.reshape(2, 4).min(1), y.sum()


def falls(x: Any, y: Any) -> Any:
    """A maximum turned round is a minimum of other numbers: finished before."""
    return jnp.maximum(-x.max(1), y.max(1))


def least_of_most(x: Any, y: Any) -> Any:
    """The least of maxima is no maximum of least ones."""
    return lax.reduce_min(x.max(1), (0,)), y.sum()


def twice(x: Any, y: Any) -> Any:
    """Two sums of maxima: neither may wait for the other."""
    return x.max(1) + y.max(1)


CASES: dict[str, tuple[Callable[..., Any], int, int]] = {
    "widest": (widest, 1, 8),
    "narrowest": (narrowest, 1, 2),
    "falls": (falls, 2, 8),
    "least_of_most": (least_of_most, 1, 8),
    "twice": (twice, 2, 8),
}


def tiled(fn: Callable[..., Any], args: list[jax.Array]) -> Partition:
    module = module_of(fn, *args)
    state = state_of(module)
    for arg in module.body.args:
        state.tile(state.graph.class_of[arg.id], 1, (1,))
    return state.partition()


@pytest.mark.devices
@pytest.mark.parametrize("case", CASES)
def test_maxima_and_minima(case: str) -> None:
    fn, reductions, elements = CASES[case]
    args = floats_of(X, X)
    partition = tiled(fn, args)
    check_partition(partition, fn, args)
    moves = [
        m
        for m, _ in localize(partition).reshards()
        if isinstance(m.step, Reduction) and m.step.monoid in ("max", "min")
    ]
    assert len(moves) == reductions
    assert moves[0].payload_bytes == 4 * elements
    assert MESH.sizes[1] == 4
