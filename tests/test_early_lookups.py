"""Look-ups within rows, read before the elementwise functions of the array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from partir_search.ir.core import Module, Op
from partir_search.ir.mesh import MeshShape
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.early_lookups import with_early_lookups
from partir_search.passes.row_lookups import with_row_lookups
from partir_search.rules.registry import role_of
from tests.support import floats_of, module_of, run_evaluator, state_of

ONE = MeshShape(("x",), (1,))
WORDS, WIDTH, ROWS = 24, 8, 6


def scores(x: Any, w: Any) -> Any:
    return (x @ w).astype(jnp.float32)


def labels(x: Any) -> Any:
    return (jnp.abs(x[..., 0]) * 7).astype(jnp.int32) % WORDS


def log_softmax(x: Any, w: Any) -> Any:
    found = jax.nn.log_softmax(scores(x, w))
    return -jnp.take_along_axis(found, labels(x)[..., None], -1).mean()


def scaled(x: Any, w: Any) -> Any:
    """Log-probabilities of scaled and capped scores, at the number of each row."""
    found = jax.nn.log_softmax(jnp.tanh(scores(x, w) * 0.3) * 2.0)
    return -found[jnp.arange(ROWS), labels(x)].mean()


def cross_entropy(x: Any, w: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(scores(x, w), labels(x)).mean()


def mapped(x: Any, w: Any) -> Any:
    def one(row: Any) -> Any:
        return jax.nn.log_softmax(scores(row, w))[labels(row)]

    return -jax.vmap(one)(x).mean()


def out_of_bounds(x: Any, w: Any) -> Any:
    found = jax.nn.log_softmax(scores(x, w))
    return jnp.take_along_axis(found, labels(x)[..., None] * 3, -1)


def lookups(module: Module) -> list[Op]:
    """Look-ups of labels."""
    found = [op for op in module.ops if role_of(op) is Role.GATHER]
    return [op for op in found if WORDS in op.operands[0].type.shape]


def evaluated(module: Module, *args: Any) -> list[Any]:
    verify(module)
    found: list[Any] = run_evaluator(state_of(module, ONE).partition(), list(args))
    return found


@pytest.mark.parametrize(
    "fn", [log_softmax, scaled, cross_entropy, mapped, out_of_bounds], ids=lambda f: f.__name__
)
def test_labels_are_read_from_the_scores(fn: Callable[..., Any]) -> None:
    """Elements are read from the product, in 16 bits, and equal those of all log-probabilities."""
    both = fn if fn is out_of_bounds else jax.value_and_grad(fn, argnums=(0, 1))
    for dtype in (jnp.bfloat16, jnp.float32):
        args = [a.astype(dtype) for a in floats_of((ROWS, WIDTH), (WIDTH, WORDS))]
        plain = with_row_lookups(module_of(lambda *xs: jax.tree.leaves(both(*xs)), *args))
        module = with_early_lookups(plain)
        (lookup,) = lookups(module)
        read = lookup.operands[0]
        assert read.type.dtype == dtype
        assert role_of(next(op for op in module.ops if read in op.results)) is Role.DOT
    for new, old in zip(evaluated(module, *args), evaluated(plain, *args), strict=True):
        np.testing.assert_array_equal(new, old)


def stored(x: Any, w: Any) -> Any:
    """The product's operand is stored, and its argument is not."""
    h = jnp.tanh(x @ w)
    return jnp.take_along_axis(h, labels(x)[..., None], -1).sum() + (h @ w.T).sum()


def narrowed(x: Any, w: Any) -> Any:
    """Numbers in 16 bits of numbers in 32."""
    h = (x @ w).astype(jnp.bfloat16)
    return jnp.take_along_axis(h, labels(x)[..., None], -1)


def masked(x: Any, w: Any) -> Any:
    """Two arrays differ along the row."""
    h = jnp.where(x @ w > 0, x @ w, -1e9)
    return jnp.take_along_axis(h, labels(x)[..., None], -1)


def filled(x: Any, w: Any) -> Any:
    """Elements out of bounds are zeros."""
    h = jnp.exp(x @ w)
    return h.at[jnp.arange(ROWS), labels(x) * 3].get(mode="fill", fill_value=0.0)


@pytest.mark.parametrize("fn", [stored, narrowed, masked, filled], ids=lambda f: f.__name__)
def test_further_look_ups_stay(fn: Callable[..., Any]) -> None:
    module = with_row_lookups(module_of(fn, *floats_of((ROWS, WIDTH), (WIDTH, WORDS))))
    assert with_early_lookups(module) is module
