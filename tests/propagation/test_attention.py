"""Attention in ordinary programs is found, in the forms in which people write it; what only looks
like it is left, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from models.catalog import MODELS
from partir_search.ir.core import Module, Op
from partir_search.ir.verify import verify
from partir_search.passes.attention import with_attention
from partir_search.rules.registry import RuleTable
from tests.attention import FORMS, gradients, heads
from tests.support import assert_same, floats_of, module_of, run_evaluator, state_of


def attentions(module: Module) -> tuple[list[Op], list[str], Module]:
    found, reasons = with_attention(module, RuleTable())
    verify(found)
    return [op for op in found.ops if "body" in op.params], reasons, found


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """One op forward and one backward; no value has queries and keys; causal masks are known."""
    module = module_of(gradients(FORMS[form]), *heads(2, 8))
    ops, reasons, found = attentions(module)
    assert [op.prim for op in ops] == ["attention", "attention_grad"]
    assert not reasons
    scores = [v for v in found.values if v.type.shape.count(8) > 1]
    assert not scores or form.endswith("dropped")  # random bits
    assert [op.params["body"].causal for op in ops] == [not form.startswith("full")] * 2
    forward, backward = (RuleTable()(op) for op in ops)
    assert forward.blockwise
    assert backward.blockwise
    operands = 2 + (form == "full, padded")  # keys and values, and which keys are there
    assert len(forward.blockwise.passing) == len(backward.blockwise.passing) == operands
    assert len(backward.blockwise.returning) == 2


def test_forward_only() -> None:
    ops, _, _ = attentions(module_of(FORMS["flax"], *heads(2, 8)))
    assert [op.prim for op in ops] == ["attention"]


def test_a_mask_that_is_returned_stays() -> None:
    def masked(q: Any, k: Any, v: Any) -> Any:
        mask = jnp.tril(jnp.ones((q.shape[1],) * 2, bool))
        return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None]), mask

    args = heads(2, 8)
    ops, _, found = attentions(module_of(masked, *args))
    assert len(ops) == 1
    assert_same(run_evaluator(state_of(found).partition(), args), masked(*args))


def test_layers_fold() -> None:
    """Equal layers have equal ops, so that searches work on one of them."""

    def two(q: Any, k: Any, v: Any) -> Any:
        return FORMS["flax"](FORMS["flax"](q, k, v), k, v)

    ops, _, _ = attentions(module_of(gradients(two), *heads(2, 8)))
    assert len(ops) == 4
    assert ops[0].params == ops[1].params
    assert hash(ops[0].params["body"]) == hash(ops[1].params["body"])
    assert ops[0].params != ops[2].params


@pytest.mark.parametrize(
    "mask, causal",
    [
        (lambda i, j: i >= j, True),
        (lambda i, j: j <= i, True),
        (lambda i, j: i - j >= 0, True),
        (lambda i, j: (i >= j) & (i - j < 4), True),  # a sliding window
        (lambda i, j: i > j, False),  # nobody looks at itself
        (lambda i, j: i >= j - 1, False),
        (lambda i, j: i <= j, False),
        (lambda i, j: (i >= j) | (j == 7), False),
        (lambda i, j: (i + j) % 2 == 0, False),
        (lambda i, j: 2 * i >= j, False),
    ],
)
def test_causal_masks(mask: Callable[[Any, Any], Any], causal: bool) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        n = q.shape[1]
        seen = mask(jnp.arange(n)[:, None], jnp.arange(n)[None])
        scores = jnp.where(seen, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    (op,), _, _ = attentions(module_of(attention, *heads(2, 8)))
    assert op.params["body"].causal == causal


def scanned(q: Any, k: Any, v: Any) -> Any:
    """Three layers in a scan, which reads its mask from outside."""
    mask = jnp.tril(jnp.ones((q.shape[1],) * 2, bool))

    def layer(x: Any, scale: Any) -> Any:
        scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", x, scale * k), -1e9)
        return jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)), None

    return jax.lax.scan(jax.checkpoint(layer), q, jnp.arange(1.0, 4.0))[0]


def looped(q: Any, k: Any, v: Any) -> Any:
    """Layers in a loop within a conditional."""
    mask = jnp.tril(jnp.ones((q.shape[1],) * 2, bool))

    def layer(i: Any, x: Any) -> Any:
        return jax.nn.dot_product_attention(x, k, v, mask=mask[None, None])

    def run() -> Any:
        return jax.lax.while_loop(lambda x: x[0] < 3, lambda x: (x[0] + 1, layer(*x)), (0, q))[1]

    return jax.lax.cond(k.sum() > 0, run, lambda: q)


@pytest.mark.parametrize("fun", [gradients(scanned), looped], ids=["scanned", "looped"])
def test_masks_outside_of_loops(fun: Callable[..., Any]) -> None:
    """A mask of positions alone is made by blocks inside of the loop; none enters a loop."""
    args = heads(2, 8)
    ops, reasons, found = attentions(module_of(fun, *args))
    assert ops
    assert not reasons
    assert all(op.params["body"].causal for op in ops)
    assert not [v for v in found.values if v.type.shape.count(8) > 1]
    assert_same(run_evaluator(state_of(found).partition(), args), jax.tree.leaves(fun(*args)))


def kept(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights


def sharpened(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)) ** 2
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def looked_at(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v), jnp.argmax(scores, -1)


@pytest.mark.parametrize(
    "attention, reason",
    [
        (kept, "leaves its region with keys and queries"),
        (sharpened, "integer_pow at .* is not linear in the weights"),
        (looked_at, "is used by argmax"),
    ],
    ids=["kept", "sharpened", "looked at"],
)
def test_what_is_left(attention: Callable[..., Any], reason: str) -> None:
    module = module_of(attention, *heads(2, 8))
    ops, reasons, found = attentions(module)
    assert not ops
    assert found is module
    assert len(reasons) == 1
    assert re.search(reason, reasons[0]), reasons


def test_losses_are_no_attention() -> None:
    """A softmax over classes has no product after it."""

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(jax.nn.log_softmax(nn.relu(x) @ w))

    ops, _, _ = attentions(module_of(jax.grad(loss), *floats_of((8, 4), (4, 16))))
    assert not ops


FOUND = {"llama-tiny": 2, "gpt-tiny": 1, "bloom-tiny": 1, "vit-tiny": 2, "moe-tiny": 2}
FOUND |= {"transformer-tiny": 2, "t5-tiny": 1, "nnx-tiny": 2}


@pytest.mark.parametrize("name", FOUND)
def test_models(name: str) -> None:
    """Of T5 the cross-attention: a learned bias, of which the gradient has all scores, stays."""
    entry = MODELS[name]
    traced = jax.jit(entry.step).trace(*entry.abstract_args(8))
    leaves = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jax.tree.leaves(traced.in_avals)]
    tree = jax.tree.structure(entry.abstract_args(8))

    def flat(*args: Any) -> Any:
        return entry.step(*jax.tree.unflatten(tree, args))

    ops, _, _ = attentions(module_of(flat, *leaves))
    count = FOUND[name]
    assert [op.prim for op in ops] == ["attention"] * count + ["attention_grad"] * count
