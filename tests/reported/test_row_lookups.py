"""Arrays read and updated at the number of each row: ``q[jnp.arange(n), actions]``.

Values of actions, trees of a search and last tokens of sequences are read so; each row is
independent of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.lowering.localize import localize
from partir_search.passes.row_lookups import with_row_lookups
from tests.support import check_partition, floats_of, module_of, state_of, tile_arg

MESH = MeshShape(("data", "model"), (4, 2))


def places(x: Any) -> Any:
    return (jnp.abs(x[:, 0, 0]) * 7).astype(jnp.int32) % x.shape[1]


def values(x: Any) -> Any:
    """Gradient of the values read, twice: with negative and several columns."""

    def loss(x: Any) -> Any:
        rows, at = jnp.arange(x.shape[0]), places(x)
        several = x[rows[:, None], jnp.stack([at, at - x.shape[1]], 1)]
        return (x[rows, at, 0] ** 2).sum() + (several**3).sum()

    return jax.grad(loss)(x)


def tree_search(x: Any) -> Any:
    """Nodes of a tree per row, read and written in a loop that closes over the row numbers."""
    rows = jnp.arange(x.shape[0])

    def simulation(tree: Any, i: Any) -> tuple[Any, Any]:
        best = jnp.argmax(tree.sum(-1), 1)
        parent = tree[rows, best]
        tree = tree.at[rows, i].set(parent * 0.5)
        return tree.at[rows, best, 0].add(-1.0), parent

    return lax.scan(simulation, x, jnp.arange(x.shape[1]))


def mapped(x: Any) -> Any:
    """An index of each example of a batch, with row numbers in each example."""

    def one(x: Any, at: Any) -> Any:
        return x[at], x[jnp.arange(x.shape[0]), at % x.shape[1]]

    return jax.vmap(one)(x, places(x))


FORMS = (values, tree_search, mapped)


@pytest.mark.devices
@pytest.mark.parametrize("dim, axis", [(0, "data"), (1, "model")])
@pytest.mark.parametrize("fn", FORMS, ids=[f.__name__ for f in FORMS])
def test_rows_are_tiled_without_collectives(fn: Callable[..., Any], dim: int, axis: str) -> None:
    """Tiles of rows need no collectives, and tiles of columns equal the plain function."""
    (x,) = floats_of((8, 6, 4))
    module = with_row_lookups(module_of(fn, x))
    verify(module)
    state = state_of(module, MESH, contract=True)
    tile_arg(state, 0, dim, axis)
    partition = state.partition()
    if dim == 0:
        assert not list(localize(partition).reshards())
        assert all(any(partition.layout(v)) for v in module.body.results)
    check_partition(partition, fn, (x,))


def test_found_at_every_depth() -> None:
    """Look-ups in a loop's body get batching dims; positions known at planning time do not."""
    (x,) = floats_of((8, 6, 4))
    module = with_row_lookups(module_of(tree_search, x))
    found = [op for op in module.ops if "dimension_numbers" in op.params]
    assert len(found) == 3
    assert all(op.params["dimension_numbers"].operand_batching_dims == (0,) for op in found)

    def diagonal(x: Any) -> Any:
        return x[jnp.arange(6), jnp.arange(6)]

    known = module_of(diagonal, x)
    assert with_row_lookups(known) is known


def test_numbers_of_many_rows_are_not_computed() -> None:
    """A column of 2^31 row numbers is a broadcast of few."""
    rows = jax.ShapeDtypeStruct((2**16, 2**15, 8), np.float32)
    at = jax.ShapeDtypeStruct((2**16, 2**15), np.int32)
    module = module_of(lambda x, at: x[jnp.arange(2**16)[:, None], at], rows, at)
    assert with_row_lookups(module) is not module
