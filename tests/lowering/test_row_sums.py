"""Rows scattered into zeros and added to a carry are scattered into the carry."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.role import Role
from partir_search.lowering import emit
from partir_search.lowering.emit_scatters import scatters_into_totals
from partir_search.lowering.local_ir import LocalOp, LocalRegion
from partir_search.rules import indexing
from partir_search.rules.registry import role_of
from partir_search.simulator.memory import dtypes
from tests.pipelines.programs import STEPS, WIDTH, WORDS, arguments
from tests.support import assert_same

TABLE = (WORDS, WIDTH)
PARTS = {"microbatches": 4}
PIPELINE = [ps.Pipeline("stage", microbatches=4)]
DATA = ps.ManualPartition({"tokens": 0}, "data")
WORDS_TILED = ps.ManualPartition({"params/embedding": 0}, "stage")


def regions(body: LocalRegion) -> Any:
    yield body
    for item in body.steps:
        for inner in item.regions if isinstance(item, LocalOp) else ():
            yield from regions(inner)


@pytest.mark.devices
@pytest.mark.parametrize("name", ["tied", "narrow", "masked"])
@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        (PARTS, [DATA]),
        (PARTS, [DATA, WORDS_TILED]),
        ({}, [*PIPELINE, DATA]),
        ({}, [*PIPELINE, DATA, WORDS_TILED]),
    ],
    ids=["parts", "parts and words", "pipeline", "pipeline and words"],
)
def test_rows_go_into_the_carry(
    monkeypatch: pytest.MonkeyPatch, name: str, options: Any, schedule: Any
) -> None:
    """Executed on 4 devices against the plain step: data tiled, and words too."""
    shapes: list[tuple[int, ...]] = []

    def added(ctx: Any, op: Any, total: Any, *rest: Any) -> Any:
        shapes.append(total.shape)
        assert total.dtype == jnp.float32
        return indexing.added_to_rows(ctx, op, total, *rest)

    monkeypatch.setattr(emit, "added_to_rows", added)
    mesh = jax.make_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4])
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False, **options)(
        jax.jit(STEPS[name])
    )
    got, want = step(*arguments()), jax.jit(STEPS[name])(*arguments())
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), 2e-2 if name == "narrow" else 2e-5)
    tile = (WORDS // 2, WIDTH) if WORDS_TILED in schedule else TABLE
    assert shapes
    assert set(shapes) == {tile}


def test_ticks_mask_rows_not_the_table() -> None:
    """Loops with and without a microbatch in every tick; a mask of the table would stand between
    the scatter and the addition.
    """
    mesh = AbstractMesh((2, 2), ("stage", "data"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[*PIPELINE, DATA], progress=False)(
        jax.jit(STEPS["tied"])
    )
    plan = step.plan(*arguments())
    row_sums = plan.partition.analysis.row_sums
    found = [scatters_into_totals(row_sums, each) for each in regions(plan.program.body)]
    assert sum(len(each.sums) for each in found) == len(row_sums) == 2


def test_the_simulator_writes_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule: the rows in zeros are written and read, and the carry read and written."""
    words, width, parts = 1 << 16, 1024, 4

    def train_step(table: Any, tokens: Any) -> Any:
        def loss(table: Any) -> Any:
            return jnp.sum(jnp.sin(table[tokens]) ** 2)

        return table - 0.1 * jax.grad(loss)(table)

    args = (
        jax.ShapeDtypeStruct((words, width), jnp.float32),
        jax.ShapeDtypeStruct((parts * 64,), jnp.int32),
    )

    def seconds() -> float:
        step = ps.auto_partition(
            AbstractMesh((1,), ("data",)),
            machine="tpu_v5e",
            schedule=[],
            microbatches=parts,
            progress=False,
        )(train_step)
        plan = step.plan(*args)
        (loop,) = (op for op in plan.module.ops if op.regions)
        scatters = [op for op in loop.regions[0].ops if role_of(op) is Role.SCATTER]
        assert len(scatters) == 1
        return float(plan.cost.seconds)

    found = seconds()
    monkeypatch.setattr(dtypes, "_row_sums", lambda *_: {})
    whole = 4 * words * width
    saved = parts * 4 * whole / ps.MACHINES["tpu_v5e"].attained_hbm_bytes_per_s
    assert seconds() - found == pytest.approx(saved, rel=0.05)
