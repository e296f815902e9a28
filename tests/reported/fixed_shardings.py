"""The mesh and checks of the tests of fixed shardings that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import partir_search as ps
from tests.support import assert_same, floats_of

P = jax.P
FREE = P.UNCONSTRAINED
Step = Callable[..., Any]


def devices_42() -> jax.sharding.Mesh:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("rows", "cols"), kinds, devices=jax.devices()[:8])


MESH = devices_42()
X, Y = floats_of((8, 8), (8, 8))


def fix(x: Any, *spec: Any, mesh: jax.sharding.Mesh = MESH) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def rests(plan: ps.Plan) -> list[PartitionSpec]:
    """Specs of what constraints make, in order."""
    partition = plan.partition
    made = [op.results[0] for op in plan.module.ops if op.prim == "sharding_constraint"]
    names = partition.mesh.names
    layouts = [[tuple(names[a] for a in axes) for axes in partition.layout(v)] for v in made]
    return [P(*(axes or None for axes in layout)) for layout in layouts]


def counts(plan: ps.Plan) -> dict[str, int]:
    return {kind: n for kind, n in plan.collective_counts.items() if n}


def check(step: Step, *args: Any, plain: Step | None = None, **options: Any) -> ps.Plan:
    """Runs a step partitioned and plain; predicted collectives are emitted ones."""
    options = {"schedule": [], "machine": "tpu_v5e", **options}
    partitioned = ps.auto_partition(MESH, **options)(step)
    plan = partitioned.plan(*args)
    want = jax.tree.leaves(jax.jit(plain or step)(*args))
    assert ps.stablehlo_counts(partitioned.lower(*args).as_text()) == plan.collective_counts
    got = jax.tree.leaves(partitioned(*args))
    assert_same(got, want)
    for x, sharding in zip(got, jax.tree.leaves(plan.out_shardings), strict=True):
        assert x.sharding.is_equivalent_to(sharding, x.ndim)
    return plan
