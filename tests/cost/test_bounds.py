"""Lower bounds of products, and what plans send beside them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.rules.registry import RuleTable
from partir_search.simulator.lower_bounds import product_words, products_bytes
from tests.support import module_of


def test_cases_meet() -> None:
    """The three formulas are continuous where they change over, in any order of dims."""
    for m, n, k in ((4096, 512, 64), (900, 300, 100)):
        for p in (m / n, m * n / k**2):
            low, high = (product_words(m, n, k, p * x) for x in (1 - 1e-9, 1 + 1e-9))
            assert low == pytest.approx(high, rel=1e-6)
        assert product_words(m, n, k, 16) == product_words(k, m, n, 16)
    assert product_words(64, 64, 64, 1) == 0


@pytest.mark.parametrize("q", [2, 3, 4])
def test_three_dimensional_forward_meets_the_bound(q: int) -> None:
    """3-D products of squares send (q - 1) / q^3 of each matrix: exactly the bound."""
    size, devices = 96.0, q**3
    sent = 3 * (q - 1) / q**3 * size**2
    assert product_words(size, size, size, devices) == pytest.approx(sent, rel=1e-12)


def test_batches_of_products_need_nothing() -> None:
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 4, 4), (8, 4, 4))]
    module = module_of(lambda x, w: jnp.einsum("bij,bjk->bik", x, w), *shapes)
    rules = [RuleTable()(op) for op in module.ops]
    assert products_bytes(module, rules, 8) == 0
    assert products_bytes(module, rules, 32) == 4 * product_words(4, 4, 4, 4)


def test_a_plan_says_both() -> None:
    """Megatron's two all_reduces of a pair of matrices, against six products."""

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sum((jnp.tanh(x @ params[0]) @ params[1]) ** 2)

    mesh = jax.sharding.AbstractMesh((4,), ("model",))
    schedule = [ps.ManualPartition({"params/0": 1}, axis="model")]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(jax.grad(loss))
    params = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 256), (256, 64))]
    plan = step.plan(params, jax.ShapeDtypeStruct((512, 64), jnp.float32))
    assert plan.sent_bytes == 2 * 3 / 4 * 512 * 64 * 4
    assert plan.bound_bytes > 0
    text = str(ps.report.collectives_table(plan, {}).caption)
    assert f"{plan.sent_bytes / 1e3:.0f} kB a step" in text
    assert f"would need {plan.bound_bytes / 1e3:.0f} kB" in text
