"""Emitted equations keep the user's source lines and scopes, and arguments their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import partir_search as ps

MESH = AbstractMesh((2, 4), ("batch", "model"))
ZERO_3 = [
    ps.ManualPartition({"batch": 0}, axis="batch"),
    ps.ManualPartition({"state/params/w1": 1}, axis="model"),
    ps.ManualPartition({"state/**": ps.FIRST_DIVISIBLE_DIM}, axis="batch"),
]
COLLECTIVES = {"all_gather", "psum", "psum_invariant", "reduce_scatter", "all_to_all"}


def step(state: Any, batch: Any, *, rate: float, power: int = 2) -> Any:
    def loss(params: Any) -> Any:
        with jax.named_scope("forward"):
            hidden = jnp.tanh(batch @ params["w1"])

            def more(hidden: Any, _: Any) -> Any:
                with jax.named_scope("inner"):
                    return jnp.tanh(hidden @ params["w2"] @ params["w2"].T), None

            return jnp.mean(lax.scan(more, hidden, length=2)[0] ** power)

    grads = jax.grad(loss)(state["params"])
    with jax.named_scope("update"):
        return {"params": jax.tree.map(lambda w, g: w - rate * g, state["params"], grads)}


def abstract(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


STATE = {"params": {"w1": abstract(16, 32), "w2": abstract(32, 16)}}


def equations(jaxpr: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name stack with those of the equations around, equation) of all equations."""
    for eqn in jaxpr.eqns:
        scope = f"{prefix}/{eqn.source_info.name_stack}"
        yield scope, eqn
        for param in eqn.params.values():
            for inner in param if isinstance(param, list | tuple) else [param]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner, scope)


@pytest.fixture(scope="module")
def partitioned() -> Any:
    return ps.auto_partition(
        MESH, schedule=ZERO_3, machine="tpu_v5e", donate_argnums=0, static_argnames="power"
    )(step)


def test_lines_and_scopes(partitioned: Any) -> None:
    """Every equation in the mapped program is of a line of `step`; collectives have scopes."""
    traced = partitioned.trace(STATE, abstract(8, 16), rate=0.1)
    lines, first = inspect.getsourcelines(step)
    found: dict[str, set[str]] = {}
    seen = 0
    for scope, eqn in equations(traced.jaxpr.jaxpr):
        name = eqn.primitive.name
        if name in ("dot_general", "tanh", "scan", *COLLECTIVES):
            seen += 1
            own = [f for f in eqn.source_info.traceback.frames if f.file_name == __file__]
            assert own, (scope, eqn)
            assert first <= own[0].line_num < first + len(lines)
            found.setdefault(name, set()).add(scope)
            assert "forward" in scope or "update" in scope, (scope, name)
    assert seen > 10
    assert set(found) & COLLECTIVES >= {"all_gather", "reduce_scatter"}
    inside = [scope for scope in found["dot_general"] if "inner" in scope]
    assert inside
    assert all(scope.count("forward") == scope.count("inner") == 1 for scope in inside)


def test_argument_names(partitioned: Any) -> None:
    """As under `jax.jit`, with static arguments left out."""
    text = partitioned.lower(STATE, abstract(8, 16), rate=0.1).as_text(debug_info=True)
    plain = jax.jit(step, static_argnames="power").lower(STATE, abstract(8, 16), rate=0.1)
    names = re.findall(r'loc\("((?:state|batch|rate)[^"]*)"', text)
    assert names == re.findall(
        r'loc\("((?:state|batch|rate)[^"]*)"', plain.as_text(debug_info=True)
    )
    assert {"state['params']['w1']", "batch", "rate"} <= set(names)


@pytest.mark.devices
def test_compiled_program_names(mesh: jax.sharding.Mesh) -> None:
    """What runs has the names of what `.lower` shows, although its arguments are flat lists."""
    f = ps.auto_partition(mesh, schedule=ZERO_3[:1], machine="cpu", donate_argnums=0)(step)
    state = jax.tree.map(lambda x: jnp.ones(x.shape), STATE)
    f(state, jnp.ones((8, 16)), rate=0.1)
    state = f.init(
        lambda: jax.tree.map(lambda x: jnp.ones(x.shape), STATE), jnp.ones((8, 16)), rate=0.1
    )
    (entry,) = f._entries.values()
    args, kwargs = entry.arguments([*jax.tree.leaves(state), jnp.ones((8, 16)), jnp.float32(1)])
    text = entry.flat.lower(*args, **kwargs).as_text(debug_info=True)
    assert {"state['params']['w1']", "batch", "rate"} <= set(re.findall(r'loc\("([^"]*)"', text))
    assert "result['params']['w2']" in text
