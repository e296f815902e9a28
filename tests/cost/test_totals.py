"""Totals of gradients after the loop: casts, gathers and updates, one parameter at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from experiments.compiled_pipelines import Model, Row, pipeline
from partir_search.ir.analysis.def_use import def_use
from partir_search.passes.pipeline.late_ops import by_results
from partir_search.rules.registry import RuleTable
from partir_search.simulator.memory.recomputed_reads import (
    last_read,
    recomputed_reads,
    stored_source,
)
from tests.support import module_of

ROW = Row("", Model(width=8, words=16, length=4, layers=4), pipeline(2, 2), stages=2)


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    """A pipeline of f32 parameters used in bf16, whose layers lie in several chunks."""
    return ROW.plan()


def test_totals_are_cast_before_they_move(plan: ps.Plan) -> None:
    """Gathers of gradients move bf16, as XLA:TPU compiles f32 ones that a cast reads."""
    gathers = [c for c in plan.collectives if c.kind == "all_gather"]
    up = plan.abstract_args[0][0]["layers"]["up"]
    assert [c.bytes for c in gathers] == [2 * up.size] * 2


def test_each_update_follows_its_gather(plan: ps.Plan) -> None:
    """At most one gathered total lives at a time."""
    module = plan.module
    last = max(i for i, op in enumerate(module.body.ops) if op.regions)
    ops = [op for op in module.body.ops[last:] if op.results]
    results = [x.id for x in module.body.results]
    order = [op.results[0].id for op in ops if op.results[0].id in results]
    assert order == sorted(order, key=results.index)
    updates = [i for i, op in enumerate(ops) if op.results[0].id in results]
    moves = [i for i, op in enumerate(ops) if op.results[0].type.shape[:1] == (4,)]
    assert moves[0] > updates[0]  # the embedding's comes first, without a move


def test_effects_keep_their_order() -> None:
    def shown(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, z = jnp.sin(x), jnp.cos(x)
        jax.debug.print("{}", z)
        return z + 1.0, y

    module = module_of(shown, jnp.ones(4))
    ops = module.body.ops
    assert by_results(ops, module.body.results) == list(ops)
    silent = [op for op in ops if not op.effect]
    assert by_results(silent, module.body.results[::-1])[0] is silent[0]
    assert by_results(silent, module.body.results)[0] is silent[1]


def test_sums_are_stored_in_the_type_of_their_casts(plan: ps.Plan) -> None:
    """Of an all-reduced f32 total half of the bytes are left, unless a trait says otherwise."""
    wide = ROW.plan(ps.MACHINES["tpu_v5e"].with_traits(f32_dot_operand_bytes=4))
    at = max(i for i, op in enumerate(plan.module.body.ops) if op.regions) + 2
    left_out = [float(p.simulation.temporaries.bytes_at[at]) for p in (plan, wide)]
    table, layers = 4 * 16 * 8, 4 * 2 * 8 * 32  # f32, all words; f32, layers of a stage
    assert left_out == [-(table + 2 * layers) / 2, 0.0]  # one total of look-up and head


def test_results_in_buffers_of_arguments_are_kernels() -> None:
    """A copy behind a donated result lives until the kernel of the result."""

    def update(p: jax.Array, x: jax.Array) -> jax.Array:
        return p - 0.1 * jnp.tanh(x.T.astype(jnp.float32))

    x = jnp.ones((4, 4), jnp.bfloat16)
    module = module_of(update, x.astype(jnp.float32), x)
    table, uses = RuleTable(), def_use(module)
    stored = [int(uses.makers[v.id] is None) for v in module.values]
    rules = [table(op) for op in module.ops]
    until = recomputed_reads(module, rules, stored, np.ones(len(module.values)))
    end = len(module.ops) - 1
    chain = [op.results[0] for op in module.ops[:-1]]
    assert [until[v.id] for v in chain] == [end] * len(chain)
    p, given = module.body.args
    assert last_read(given, uses, range(len(module.ops)), until) == end
    assert stored_source(chain[-1], uses, stored) is given
    assert stored_source(module.ops[-1].results[0], uses, stored) is None
    assert stored_source(p, uses, stored) is p
