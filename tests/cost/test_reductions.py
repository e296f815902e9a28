"""Fusion of reductions: by any function, of tuples, of windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE
from partir_search.rules.registry import RuleTable
from partir_search.simulator.op_kinds import is_reduction
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.support import floats_of, module_of, state_of

Fn = Callable[[Any], Any]
POINTS = (64, 512)


def halves(y: Any) -> Any:
    """A reduction by a function of the user's."""
    return lax.reduce(y, np.float32(0), lambda a, b: a + lax.tanh(b), (1,))


def pair(y: Any) -> Any:
    """Sum and largest, by one reduction."""
    first = (np.float32(0), np.float32(0))
    return lax.reduce((y, y), first, lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (1,))


PLAIN: dict[str, Fn] = {
    "max": lambda y: jnp.max(y, 1),
    "prod": lambda y: jnp.prod(y, 1),
    "reduce": halves,
}
TUPLES: dict[str, Fn] = {"argmax": lambda y: jnp.argmax(y, 1), "pair": pair}


def kernels(fn: Callable[..., Any], *shapes: tuple[int, ...], machine: str = "tpu_v5e") -> int:
    """Number of kernels of a program after fusion."""
    state = state_of(module_of(fn, *floats_of(*shapes)))
    model = CostModel(state.graph.module, state.graph.rules, MACHINES[machine])
    return len(set(model.time.kernels.leader.tolist()))


def beside_a_sum(reduce: Fn) -> Fn:
    return lambda y: (reduce(y), jnp.sum(y * y, 1))


@pytest.mark.parametrize("name", [*PLAIN, *TUPLES])
def test_reductions_join_the_dot_that_they_read(name: str) -> None:
    """As compiled for v5e: one kernel, as of a sum."""
    reduce = {**PLAIN, **TUPLES}[name]
    shapes = (64, 32), (32, 512)
    assert kernels(lambda x, w: reduce(x @ w), *shapes) == 1
    assert kernels(lambda x, w: reduce(x @ w), *shapes, machine="h100") == 2


@pytest.mark.parametrize("name", PLAIN)
def test_reductions_of_one_array_share_a_kernel(name: str) -> None:
    assert kernels(beside_a_sum(PLAIN[name]), POINTS) == 1


@pytest.mark.parametrize("name", TUPLES)
def test_reductions_of_tuples(name: str) -> None:
    """A kernel of their own on TPUs, beside a further reduction; an elementwise op joins."""
    reduce = TUPLES[name]
    assert kernels(beside_a_sum(reduce), POINTS) == 2
    assert kernels(lambda y: (jnp.sum(y * y, 1), reduce(y)), POINTS) == 2
    assert kernels(beside_a_sum(reduce), POINTS, machine="h100") == 1
    assert kernels(lambda y: (reduce(y), jnp.tanh(y)), POINTS) == 1


def test_pools_are_no_reductions() -> None:
    """Pools and their gradients combine windows; a kernel of the user's is not fused."""

    def pooled(y: Any) -> Any:
        return jnp.square(lax.reduce_window(y, -np.inf, lax.max, (1, 3), (1, 2), "SAME")).sum()

    rules, module = RuleTable(), module_of(jax.grad(pooled), *floats_of(POINTS))
    pools = [op for op in module.ops if rules(op).kind is Kind.REDUCTION]
    assert len(pools) >= 2
    assert not any(is_reduction(rules(op)) for op in pools)
    (total,) = (op for op in module_of(lambda y: y.sum(), *floats_of(POINTS)).ops)
    assert is_reduction(rules(total))
    rule = rules(total)
    assert not is_reduction(dataclasses.replace(rule, local=lambda *_: ()))
    assert not is_reduction(dataclasses.replace(rule, operands=((NONE, NONE),)))
