"""Steps with a pipeline on a mesh, run against the plain step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import partir_search as ps
from tests.pipelines.programs import STEPS, arguments
from tests.support import assert_same

TOKENS = ps.ManualPartition({"tokens": 0}, "data")


def step_of(name: str, mesh: Any, *schedule: Any, **options: Any) -> Any:
    given = {"machine": "tpu_v5e", "episodes": 20, "stack": False, "progress": False, **options}
    return ps.auto_partition(mesh, schedule=list(schedule), **given)(
        jax.jit(STEPS[name], donate_argnums=0)
    )


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, devices=jax.devices()[: int(np.prod(shape))])


def check(step: Any, name: str) -> Any:
    """Runs a step against the plain one; returns its plan."""
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    plan = step.plan(*arguments())
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
    return plan
