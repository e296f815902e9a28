"""jax's trace of the step: read once, and let go of."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.planning import pipeline
from partir_search.planning.trace import read_call

MESH = AbstractMesh((2,), ("batch",))
TACTICS = [ps.ManualPartition({"x": 0}, axis="batch")]


class Step:
    """A jitted step that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

        def step(w: Any, x: Any) -> Any:
            self.traces += 1
            return jnp.tanh(x @ w)

        self.jitted = jax.jit(step)
        self.args = np.ones((4, 4), np.float32), np.ones((8, 4), np.float32)

    def plan(self) -> ps.Plan:
        return ps.auto_partition(MESH, schedule=TACTICS, machine="cpu")(self.jitted).plan(
            *self.args
        )


def test_the_trace_is_let_go_of(young_heap: None) -> None:
    step = Step()
    jaxpr = step.jitted.trace(*step.args).jaxpr
    kept = weakref.ref(getattr(jaxpr, "jaxpr", jaxpr))
    del jaxpr
    assert kept() is not None
    plan = step.plan()
    gc.collect()
    assert kept() is None
    assert step.traces == 1  # the plan used the trace that was there
    assert len(plan.module.ops) == 2


def test_a_step_that_was_called_is_not_compiled_again() -> None:
    step = Step()
    step.jitted(*step.args)
    step.plan()
    step.jitted(*step.args)
    assert step.traces == 1


def test_ops_of_one_line_share_where_they_come_from() -> None:
    """Layers repeat tracebacks, each of which is larger than its op."""

    def step(x: Any) -> Any:
        for _ in range(3):
            x = jnp.sin(x)
        return x

    plan = ps.auto_partition(MESH, schedule=TACTICS, machine="cpu")(step).plan(np.ones(8, "f4"))
    one, *others = plan.module.ops
    assert len(others) == 2
    assert all(op.origin is one.origin for op in others)
    assert "test_trace.py" in one.source


def test_equal_literals_are_one() -> None:
    def step(x: Any) -> Any:
        return (x * 3.0 + 0.0) * 3.0 - (-0.0)

    plan = ps.auto_partition(MESH, schedule=TACTICS, machine="cpu")(step).plan(np.ones(8, "f4"))
    literals = [x for op in plan.module.ops for x in op.operands if not hasattr(x, "id")]
    assert [float(x.value) for x in literals] == [3.0, 0.0, 3.0, -0.0]
    assert literals[0] is literals[2]
    assert literals[1] is not literals[3]


def test_microbatches_do_not_trace_the_whole_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of microbatches is a rewrite of one trace."""
    calls: list[str] = []

    def read(jitted: Any, call: Any, args: Any, kwargs: Any, name: str, **rest: Any) -> Any:
        calls.append(name)
        return read_call(jitted, call, args, kwargs, name, **rest)

    monkeypatch.setattr(pipeline, "read_call", read)
    machine = dataclasses.replace(ps.MACHINES["cpu"], hbm_bytes=100)
    partitioned = ps.auto_partition(
        MESH, machine=machine, microbatches=(1, 2), episodes=1, on_overflow="warn"
    )(jax.jit(lambda w, x: w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w), donate_argnums=0))
    plan = partitioned.plan(np.ones((4, 4), "f4"), np.ones((8, 4), "f4"))
    assert plan.module.donated == {0}
    assert len(calls) == 1
