"""All_reduces of sums that are added to a larger one, which XLA joins with that of the total."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.aot.hlo import CompiledCollective
from partir_search.aot.joined_sums import joined_sums
from partir_search.aot.verify import compare

ROWS, FEW, MANY, D = 16, 32, 64, 8


def _plan(*, added: bool) -> ps.Plan:
    """Sums of rows tiled 8-fold, [MANY, D] and [FEW, D] padded to that; their total if `added`."""

    def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        short = jnp.pad(x.sum(axis=0), ((0, MANY - FEW), (0, 0)))
        return (short + y.sum(axis=0),) if added else (short, y.sum(axis=0))

    tactics = [ps.ManualPartition({"x": 0, "y": 0}, axis="batch")]
    mesh = AbstractMesh((8,), ("batch",))
    planned = ps.auto_partition(mesh, schedule=tactics, machine="tpu_v5e")(step)
    args = (jax.ShapeDtypeStruct((ROWS, n, D), jnp.float32) for n in (FEW, MANY))
    return planned.plan(*args)


@pytest.mark.parametrize("added", [True, False])
def test_padded_summands_are_joined_with_their_total(added: bool) -> None:
    plan = _plan(added=added)
    found = [c.bytes // 4 for c in plan.collectives]
    assert sorted(found) == [FEW * D, MANY * D]
    assert joined_sums(plan.program) == ([((0,), FEW * D)] if added else [])
    compiled = [CompiledCollective("all_reduce", MANY * D, 4, None)]
    changes, unexplained = compare(plan.program, compiled)[1:]
    if added:
        assert changes == ("1 all_reduce along batch joined with that of the total",)
    assert bool(unexplained) != added
    both = [*compiled, CompiledCollective("all_reduce", FEW * D, 4, None)]
    assert compare(plan.program, both)[1:] == ((), ())
