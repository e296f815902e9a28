"""Programs that type-check: the partitioned step has the function's own signature."""

from __future__ import annotations

from typing import Any, assert_type

import jax

import partir_search as ps

State = dict[str, jax.Array]


@ps.auto_partition(machine="tpu_v5e", donate_argnums=0)
def step(state: State, batch: jax.Array, *, rate: float = 0.1) -> tuple[State, jax.Array]:
    return {name: x - rate * batch.sum() for name, x in state.items()}, batch.sum()


class Trainer:
    """Owner of a method that is a step."""

    @ps.auto_partition(machine="tpu_v5e")
    def step(self, state: State, batch: jax.Array) -> State:
        return {name: x - batch.sum() for name, x in state.items()}


def used(state: State, batch: jax.Array) -> None:
    """Calls of steps and results of plans."""
    assert_type(step(state, batch, rate=0.2), tuple[State, jax.Array])
    assert_type(Trainer().step(state, batch), State)
    plan = step.plan(state, batch)
    assert_type(plan, ps.Plan)
    assert_type(step.best_so_far(state, batch), ps.Plan)
    assert_type(plan.figures, dict[str, float])
    assert_type(plan.partition_specs, tuple[tuple[Any, ...], dict[str, Any]])
    assert_type(plan.in_shardings, tuple[tuple[Any, ...], dict[str, Any]])
    assert_type(plan.front().fastest.plan(), ps.Plan)
    jitted = ps.auto_partition(machine="tpu_v5e")(jax.jit(lambda x: x))
    assert_type(jitted(batch), Any)
    ps.known_strategies(step, jax.make_mesh((8,), ("data",)), state, batch)
