"""Plans of rows replayed by their actions, and rows that no longer have one."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.pinned_plans import PinnedPlans, skipped
from tests.support import ROUND

MESH = AbstractMesh((4,), ("batch",))


@dataclasses.dataclass(frozen=True)
class Case:
    """A product of x [8, 16] and w [16, `width`]."""

    width: int = 32

    def partitioned(self, mesh: Any, machine: str, schedule: Any = None) -> tuple[Any, Any]:
        assert machine == "round"

        def step(x: jax.Array, w: jax.Array) -> jax.Array:
            return jnp.tanh(x) @ w

        args = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, self.width)))
        return ps.auto_partition(mesh, schedule=schedule, machine=ROUND)(step), tuple(args)


def _actions(case: Case, value: str = "x") -> list[Any]:
    tactics = [ps.ManualPartition({value: 0}, axis="batch")]
    step, args = case.partitioned(MESH, "round", tactics)
    actions: list[Any] = step.plan(*args).to_json()["actions"]
    return actions


def test_actions_are_replayed_on_the_program() -> None:
    """The plan is that of the actions, also where shapes have changed since."""
    actions = _actions(Case())
    for case in (Case(), Case(64)):
        pinned = PinnedPlans(case, MESH, "round")
        plan, whole = pinned.plan(actions), pinned.plan([])
        assert plan.to_json()["actions"] == actions
        assert whole.cost.flops == 4 * plan.cost.flops


def test_rows_of_values_that_are_gone_are_named() -> None:
    (action,) = _actions(Case())
    actions = [action | {"tile": "gone"}]
    with pytest.raises(ValueError, match="gone"):
        PinnedPlans(Case(), MESH, "round").plan(actions)


def test_skipped_rows_are_counted_by_program_and_reason() -> None:
    reasons = {("v5e", "moe", "BP"): "a", ("v5e", "moe", "MP"): "a", ("v5p", "moe", "BP"): "b"}
    assert skipped(reasons) == [
        "moe on v5e: 2 rows not predicted again (BP, MP): a",
        "moe on v5p: 1 rows not predicted again (BP): b",
    ]
    assert not skipped({})
