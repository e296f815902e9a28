"""Maxima, sums and results of attention wait for the backward pass; scores do not."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.ir.verify import verify
from partir_search.passes.attention import forward_phases, with_attention
from partir_search.passes.kept_values import without_kept
from partir_search.passes.roll import Again, roll
from partir_search.rules.kept import KEPT, kept
from partir_search.rules.registry import RuleTable
from tests.support import assert_same, module_of, run_evaluator, state_of

LAYERS, BATCH, LENGTH, WIDTH = 4, 2, 6, 8
TABLE, ONE = RuleTable(), ps.MeshShape(("x",), (1,))


def step(x: Any, *weights: Any) -> Any:
    """Gradients of layers of causal attention."""
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def loss(weights: Any) -> Any:
        y = x @ weights[0]
        for w in weights[1:]:
            query, key, value = y @ w, jnp.sin(y @ w.T), y * 0.5
            scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", query, key), -1e9)
            mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)
            y = y + mixed @ w
        return (y**2).mean()

    return jax.grad(loss)(weights)


def arguments() -> list[Any]:
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    shapes = [(BATCH, LENGTH, WIDTH), *[(WIDTH, WIDTH)] * (LAYERS + 1)]
    return [0.3 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]


def rolled(again: Again | None = None, **options: Any) -> tuple[Module, list[Any]]:
    """Layers as scans, and shapes of the residuals of one layer."""
    module = module_of(step, *arguments())
    found = roll(module, again or Again(attentions=forward_phases(module, TABLE), **options))
    ((pair,),) = found.pairs.values()
    scan = found.module.body.ops[pair.forward.position]
    return found.module, [scan.results[i].type.shape[1:] for i in pair.forward.stacks]


def prims(module: Module) -> dict[str, int]:
    names = [op.prim for op in module.ops]
    return {name: names.count(name) for name in ("attention", "attention_grad", KEPT)}


@pytest.mark.parametrize(("count", "forward"), [(0, 1), (1, 2), (1000, 2)])
def test_no_attention_runs_again_for_stored_rows(count: int, forward: int) -> None:
    """With and without recognition the gradients are those of the plain step."""
    module, _ = rolled(count=count)
    found, _ = with_attention(module, TABLE)
    new = without_kept(found, TABLE)
    verify(new)
    assert prims(new) == {"attention": forward, "attention_grad": 1, KEPT: 0}
    want = jax.jit(step)(*arguments())
    for form in (module, found, new, without_kept(module, TABLE)):
        got = run_evaluator(state_of(form, ONE).partition(), arguments())
        assert_same(got, want)


def test_rows_are_residuals_and_scores_are_not() -> None:
    """A maximum, a sum and a result of each query."""
    _, without = rolled(Again())
    assert (BATCH, LENGTH, LENGTH) in without
    _, rows = rolled()
    assert (BATCH, LENGTH, LENGTH) not in rows
    assert sum(shape in ((BATCH, LENGTH), (BATCH, LENGTH, 1)) for shape in rows) == 2


def test_attention_is_the_first_to_run_again() -> None:
    """As a whole, and alone if that spares enough; then ops of the fewest operations."""
    _, rows = rolled()
    _, attention = rolled(spared=0.01)
    size = BATCH * LENGTH * WIDTH
    assert sum(map(math.prod, rows)) - sum(map(math.prod, attention)) == size + 2 * BATCH * LENGTH
    _, further = rolled(spared=0.5)
    assert sum(map(math.prod, further)) <= 0.5 * sum(map(math.prod, rows))
    _, one = rolled(count=1)
    assert sum(map(math.prod, one)) < sum(map(math.prod, attention))


def test_kept_of_one_batched_operand() -> None:
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(3.0)
    assert_same([jax.vmap(kept.bind, (0, None))(x, y)], [jnp.stack([y, y])])
    assert_same([jax.vmap(kept.bind, (None, 1))(y, x.T)], [x])


def test_attention_runs_again_for_memory() -> None:
    """Rows are stored where they fit; a limit below makes the search repeat ops of a layer."""
    entry = MODELS["llama-tiny"].resized(layers=8)

    def planned(*goals: Any) -> ps.Plan:
        return ps.auto_partition(
            AbstractMesh((4, 2), ("stage", "data")),
            machine=ps.MACHINES["tpu_v5e"].with_traits(vmem_value_fraction=0.0),
            schedule=[ps.Pipeline("stage", microbatches=8), ps.AutomaticPartition()],
            goals=goals or None,
            episodes=20,
            on_overflow="warn",
        )(jax.jit(entry.step)).plan(*entry.abstract_args(128))

    free = planned()
    assert prims(free.module)["attention"] == 2
    tight = planned(ps.Fit(0.9 * free.peak_bytes), ps.Fastest())
    assert free.pipeline is not None
    assert tight.pipeline is not None
    assert (free.pipeline.spared, tight.pipeline.spared > 0) == (0, True)
    assert prims(tight.module)["attention"] == 4
    assert tight.peak_bytes < free.peak_bytes
    assert "attention again" in str(tight.pipeline) or tight.pipeline.again
