"""What XLA:TPU makes of a softmax and its gradient, in bytes for each score.

Held against `simulator/memory/softmax.py`.

Measured by compiling such programs for v5e; the figures stand in docs/evidence/simulator.md.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.simulator.memory.dtypes import assign_dtypes
from partir_search.simulator.simulator import CostModel
from tests.cost.test_passes import VECTORS, seconds
from tests.support import TPU_TRAITS, module_of, state_of

TPU = dataclasses.replace(VECTORS, traits=TPU_TRAITS)
BATCH, LENGTH = 4, 512
SCORES = BATCH * LENGTH * LENGTH


def scores(query: Any, key: Any) -> Any:
    return jnp.einsum("bqd,bkd->bqk", query, key)


def plain(query: Any, key: Any) -> Any:
    return scores(query, key)


def scaled(query: Any, key: Any) -> Any:
    return scores(query, key) * 0.125


def scaled_wide(query: Any, key: Any) -> Any:
    return scores(query, key).astype(jnp.float32) * 0.125


def masked(query: Any, key: Any) -> Any:
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return jnp.where(mask, scaled(query, key).astype(jnp.float32), -1e9)


def narrow_masked(query: Any, key: Any) -> Any:
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return jnp.where(mask, scaled(query, key), -1e9)


def heads(width: int) -> Any:
    return jnp.ones((BATCH, LENGTH, width), jnp.bfloat16)


def per_score(form: Any, width: int, machine: Any = TPU, grad: bool = False) -> float:
    """Bytes that a pass of attention moves for each score."""

    def attend(query: Any, key: Any, value: Any) -> Any:
        weights = jax.nn.softmax(form(query, key)).astype(value.dtype)
        return jnp.einsum("bqk,bkd->bqd", weights, value)

    def loss(*args: Any) -> Any:
        return attend(*args).astype(jnp.float32).sum()

    fn = jax.grad(loss, argnums=(0, 1, 2)) if grad else attend
    took = seconds(machine, fn, *[heads(width)] * 3)
    return took * 1e9 / SCORES


@pytest.mark.parametrize("form", [plain, masked])
def test_a_loss_reads_its_scores_again_for_the_sum(form: Any) -> None:
    """No dot reads the weights of a logsumexp: a second kernel reads the narrow scores, and vector
    units walk them in both kernels.
    """

    def loss(query: Any, key: Any) -> Any:
        return jax.nn.logsumexp(form(query, key), axis=-1)

    took = seconds(TPU, loss, heads(16), heads(16)) * 1e9 / SCORES
    assert took == pytest.approx((2 + 4) + (2 + 4), abs=12 * 2 * 16 / LENGTH)


@pytest.mark.parametrize(
    ("form", "width", "moved"),
    [
        # written, walked in the product's kernel, read for the weights
        (plain, 16, 2 + 4 + 2),
        # a kernel of its own reads and stores it, and walks it twice; the product walks once
        (plain, 8, 2 + 4 + 2 + 2 + 8 + 2),
        # the sum of exponentials is a kernel of its own
        (scaled, 16, 2 + 4 + 2 + 4 + 2),
        (narrow_masked, 16, 2 + 4 + 2 + 4 + 2),
        # f32 is written and read; vector units are done as soon
        (masked, 16, 4 + 4),
        (scaled_wide, 16, 4 + 4),
    ],
)
def test_bytes_of_a_softmax(form: Any, width: int, moved: float) -> None:
    slack = 12 * 2 * width / LENGTH  # query, key, value and results
    assert per_score(form, width) == pytest.approx(moved, abs=slack)


def test_products_make_the_gradient_of_scores_where_that_moves_less() -> None:
    """Two read the scores and the weights' gradient, so that it is not stored (v5e)."""
    inlines = TPU.with_traits(in_place_elementwise=True, recomputes_dot_operands=True)
    saved = per_score(scaled, 16, grad=True) - per_score(scaled, 16, inlines, grad=True)
    # read twice, made narrow, written, read twice; or read four times
    assert saved == pytest.approx((4 + 4 + 2 + 4) - 8, abs=0.5)
    assert math.isclose(
        per_score(masked, 16, grad=True), per_score(masked, 16, inlines, grad=True), rel_tol=0.01
    )


def test_a_softmax_in_narrow_numbers_is_not_stored() -> None:
    """v5p stores what a softmax in f32 becomes, and no other."""
    stores = TPU.with_traits(materializes_softmax=True)
    assert per_score(narrow_masked, 16, stores) == pytest.approx(per_score(narrow_masked, 16))
    assert per_score(masked, 16, stores) > per_score(masked, 16) + 4


@pytest.mark.parametrize(("form", "width"), [(plain, 1.0), (narrow_masked, 1.0), (masked, 2.0)])
def test_scores_masked_in_16_bits_are_stored_in_16_bits(form: Any, width: float) -> None:
    """As CLIP's, bf16[128,8,76,76]; scores masked after they are widened are stored in f32."""

    def attend(query: Any, key: Any, value: Any) -> Any:
        weights = jax.nn.softmax(form(query, key).astype(jnp.float32)).astype(value.dtype)
        return jnp.einsum("bqk,bkd->bqd", weights, value)

    partition = state_of(module_of(attend, *[heads(64)] * 3)).partition()
    module = partition.module
    found = assign_dtypes(module, partition.rules, TPU_TRAITS)
    dot = next(op for op in module.ops if partition.rules[op.id].contracts)
    assert found.width[dot.results[0].id] == width


def test_gathered_exponentials_are_computed_with_again() -> None:
    """The gradient's sum reads the weights, of stored exponentials; none reads a bias again."""

    def loss(query: Any, key: Any, value: Any, bias: Any) -> Any:
        weights = jax.nn.softmax(scaled_wide(query, key) + bias).astype(value.dtype)
        return jnp.einsum("bqk,bkd->bqd", weights, value).astype(jnp.float32).sum()

    bias = jnp.ones((LENGTH, LENGTH))
    module = module_of(jax.grad(loss, argnums=(0, 1, 2)), *[heads(64)] * 3, bias)
    model = CostModel(module, state_of(module).graph.rules, TPU)
    ops = {op.prim: op for op in module.body.ops if not op.backward}
    last = model.memory.read_until
    first = next(at for at, op in enumerate(module.body.ops) if op.backward)
    assert last[ops["exp"].results[0].id] > first
    assert last[next(v for _, v in ops["add"].inputs() if v.type.shape[-2:] == bias.shape).id] < 0
