"""Branches that return a number in the program's text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.passes.constants_of_regions import values_outside
from partir_search.rules import RuleTable
from tests.support import module_of


def test_values_outside_of_branches_with_literal_results() -> None:
    def fn(x: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.cond(
            count > 3, lambda: (x * 2, jnp.asarray(0, jnp.int32)), lambda: (x, count + 1)
        )

    module = module_of(fn, jnp.ones(8), jnp.int32(1))
    cond = next(op for op in module.ops if op.prim == "cond")
    assert not {r.id for r in cond.results} & set(values_outside(module, RuleTable()))
