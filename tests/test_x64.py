"""With 64-bit types on: indices are 64 bits wide, floats stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest

import partir_search as ps
from tests.propagation.cases import CASES
from tests.propagation.test_rules import looped_states, op_of
from tests.support import assert_same, check_partition, module_of
from tests.test_properties import check, check_padded

WIDE = {"float32": np.float64, "int32": np.int64}
CHOSEN = (
    *("argmax", "concatenate_uneven", "conv", "cumsum", "dot", "iota", "pad_halves", "top_k"),
    *("dynamic_slice_across", "dynamic_update_slice_long", "gather_clip", "gather_fill"),
    *("pool_max_overlapping_gradient", "reduce_max", "scatter_add_bounds", "scatter_set", "sort"),
)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def widened(x: Any) -> Any:
    return jax.numpy.asarray(np.asarray(x).astype(WIDE.get(str(x.dtype), x.dtype)))


@pytest.mark.devices
@pytest.mark.parametrize("case", CHOSEN)
def test_rules(case: str) -> None:
    prim, fn, args = CASES[case]
    args = tuple(map(widened, args))
    module = module_of(fn, *args)
    for _, state in looped_states(module, op_of(module, prim)):
        check_partition(state.partition(), fn, args)


@pytest.mark.devices
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int) -> None:
    check(seed)
    check_padded(seed)


@pytest.mark.devices
def test_a_train_step(mesh: jax.sharding.Mesh) -> None:
    """Python scalars, weak types and step counts as in plain jax."""
    tx = optax.adamw(1e-3)
    rng = np.random.default_rng(0)
    params = {"a": jax.numpy.asarray(rng.normal(size=(8, 16))), "b": jax.numpy.ones((16, 8), "f")}
    state = params, tx.init(params), 0
    x = jax.numpy.asarray(rng.normal(size=(8, 8)))

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        params, moments, count = state

        def loss(p: Any) -> Any:
            return ((jax.numpy.tanh(x @ p["a"]) @ p["b"]) ** 2).mean() * 0.5

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = tx.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments, count + 1), value

    want = jax.tree.leaves(jax.jit(step)(state, x))
    got = jax.tree.leaves(ps.auto_partition(mesh, machine="cpu", episodes=20)(step)(state, x))
    assert {str(w.dtype) for w in want} >= {"float64", "float32", "int64"}
    assert [a.weak_type for a in got] == [b.weak_type for b in want]
    assert_same(got, want)
