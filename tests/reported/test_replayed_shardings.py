"""Shardings fixed by the user hold in known strategies and in replayed plans, too."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from tests.reported.fixed_shardings import MESH, P, check, fix, rests
from tests.support import floats_of

W, X = floats_of((8, 4), (16, 8))
ROWS = [ps.ManualPartition({"x": 0}, axis="rows")]
FIXED = {"in_shardings": (P(None, "cols"), P("rows")), "out_shardings": (P("cols"), None)}


def step(w: Any, x: Any) -> Any:
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * grad, value


def constrained(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: (fix(jnp.tanh(x @ w), "rows", None) ** 2).sum())(w)


def specs(shardings: Any) -> list[Any]:
    return [sharding.spec for sharding in jax.tree.leaves(shardings)]


def planned(**options: Any) -> ps.Plan:
    return ps.auto_partition(MESH, machine="tpu_v5e", **options)(step).plan(W, X)


def test_known_strategies_keep_them() -> None:
    """At both ends of the program, and a constraint inside; and so does a plan that replays one."""
    known = ps.auto_partition(MESH, machine="tpu_v5e", **FIXED)(step).known_plans(W, X)
    for plan in known.values():
        assert specs(plan.in_shardings) == [P(None, "cols"), P("rows")]
        assert specs(plan.out_shardings)[0] == P("cols")
    replayed = check(step, W, X, schedule=known["BP(cols)"], **FIXED)
    assert specs(replayed.in_shardings) == [P(None, "cols"), P("rows")]
    inside = ps.auto_partition(MESH, machine="tpu_v5e")(constrained).known_plans(W, X)
    assert "BP(rows)+MP(cols)" in inside
    for plan in inside.values():
        assert rests(plan)[0] == P("rows", None)


@pytest.mark.devices
def test_replays_add_what_the_plan_leaves_open() -> None:
    plan = planned(schedule=ROWS)
    assert specs(plan.in_shardings) == [P(), P("rows")]
    own = plan.in_shardings[0]
    assert check(step, W, X, schedule=plan, in_shardings=own).actions[:1] == plan.actions[:1]
    fixed = check(step, W, X, schedule=plan, in_shardings=(P(None, "cols"), None))
    assert specs(fixed.in_shardings) == [P(None, "cols"), P("rows")]
    moved = check(step, W, X, schedule=plan, out_shardings=(P(("cols", "rows")), None))
    assert specs(moved.out_shardings)[0] == P(("cols", "rows"))
    again = check(step, W, X, schedule=moved, out_shardings=(P(("cols", "rows")), None))
    assert again.actions == moved.actions


def test_replays_that_contradict() -> None:
    plan = planned(schedule=ROWS)
    message = "x cannot be replicated along axis 'rows': the plan to replay has it otherwise than"
    with pytest.raises(ps.IllegalAction, match=message):
        planned(schedule=plan, in_shardings=(None, P("cols")))


def test_replays_on_a_changed_program() -> None:
    """The user's shardings first, then what of the plan is compatible."""
    saved = dataclasses.replace(planned(schedule=ROWS).spec, on_change="apply", fingerprint="other")
    with pytest.warns(UserWarning, match="x cannot be tiled on dim 0"):
        plan = planned(schedule=saved, in_shardings=(P("rows"), P("cols")))
    assert specs(plan.in_shardings) == [P("rows"), P("cols")]
