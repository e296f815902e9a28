"""Fixed shardings that differ and meet: each is kept, and values are redistributed between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from tests.reported.fixed_shardings import (
    FREE,
    MESH,
    P,
    Step,
    X,
    Y,
    check,
    counts,
    fix,
    rests,
)


def in_a_scan(x: Any, y: Any) -> Any:
    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        carry = fix(jnp.tanh(carry @ y), None, "cols")
        return fix(carry + x, "rows"), carry.sum()

    last, sums = lax.scan(body, fix(x, "cols", "rows"), None, length=3)
    return fix(last, None, "rows"), sums


def in_branches(x: Any, y: Any, fix: Step = fix) -> Any:
    return lax.cond(
        x.sum() > 0,
        lambda x: fix(x * 2, "rows"),
        lambda x: fix(x * 3, None, "cols"),
        fix(x + y, "cols"),
    )


def in_a_while(x: Any, y: Any) -> Any:
    return lax.while_loop(
        lambda c: fix(c[0], "rows").sum() < 100,
        lambda c: (fix(c[0] * 2 + 1, None, "cols"), fix(c[1] + c[0], "rows", "cols")),
        (fix(x, "cols"), y),
    )


@jax.custom_vjp
def sine(x: Any) -> Any:
    return fix(jnp.sin(x), "rows")


sine.defvjp(
    lambda x: (fix(jnp.sin(x), "rows"), fix(x, "cols")),
    lambda x, g: (fix(g, None, "rows") * jnp.cos(x),),
)


def residual(x: Any, y: Any) -> Any:
    h = fix(x * y, "rows", "cols")
    return ((h + fix(fix(h, "rows") @ y, "rows", "cols")) * fix(x, None, ("rows", "cols"))).sum()


STEPS: Mapping[str, Step] = {
    "add": lambda x, y: (fix(x * 2, "rows") + fix(y * 2, "cols")).sum(),
    "select": lambda x, y: jnp.where(fix(x > 0, "rows"), fix(y, "cols"), fix(x, None, "cols")),
    "broadcast": lambda x, y: (fix(x * 2, "rows") + fix(y[:1] * 2, None, "cols")).sum(),
    "whole_beside_tiled": lambda x, y: (fix(x * 2) + fix(y * 2, "cols")).sum(0),
    "dot": lambda x, y: fix(x * 2, "rows", "cols") @ fix(y * 2, "cols", "rows"),
    "concatenate": lambda x, y: jnp.concatenate([fix(x * 2, "rows"), fix(y, None, "rows")]),
    "gradient": jax.grad(residual),
    "remat": jax.grad(jax.checkpoint(residual)),
    "custom_vjp": jax.grad(lambda x, y: (sine(x) * fix(y, "cols")).sum()),
    "scan": in_a_scan,
    "scan_gradient": jax.grad(lambda x, y: in_a_scan(x, y)[0].sum()),
    "while": in_a_while,
    "free_dims": lambda x, y: (fix(x * 2, FREE, "cols") + fix(y * 2, "cols", FREE)).sum(0),
    "orders": lambda x, y: fix(x, ("rows", "cols")) + fix(y, ("cols", "rows")),
}


@pytest.mark.devices
@pytest.mark.parametrize("name", STEPS)
def test_equals_plain(name: str) -> None:
    check(STEPS[name], X, Y)


@pytest.mark.devices
def test_branches_differ() -> None:
    """XLA's partitioner refuses branches of unlike shardings (jax 0.10.2)."""
    check(in_branches, X, Y, plain=lambda x, y: in_branches(x, y, lambda x, *_: x))


def test_each_is_kept() -> None:
    """What constraints make lies as they say, also where an add, and its gradient, joins them."""

    def step(x: Any, y: Any) -> Any:
        def loss(x: Any) -> Any:
            return (fix(x * 2, "rows", "cols") + fix(x @ y, "cols")).sum()

        return jax.grad(loss)(x)

    plan = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[])(step).plan(X, Y)
    both = {str(P(("rows",), ("cols",))), str(P(("cols",), None))}
    assert set(map(str, rests(plan))) == both


def test_what_moves() -> None:
    """One exchange between dims; one gather where one side lies along another axis."""
    swapped = check(lambda x, y: fix(x * 2, "rows") + fix(y * 2, None, "rows"), X, Y)
    assert counts(swapped) == {"all_to_all": 1}
    across = check(lambda x, y: (fix(x * 2, "rows") + fix(y * 2, "cols")) * 2, X, Y)
    assert counts(across) == {"all_gather": 1}
    twice = check(lambda x: fix(fix(x * 2, "rows"), None, "rows") * 3, X)
    assert counts(twice) == {"all_to_all": 1}
    same = check(lambda x, y: fix(x * 2, "rows") + fix(y * 2, "rows"), X, Y)
    assert not counts(same)


@pytest.mark.devices
def test_beside_a_search() -> None:
    """A search leaves what is fixed as it is."""
    plan = check(STEPS["gradient"], X, Y, schedule=None, episodes=20)
    kept = check(STEPS["gradient"], X, Y)
    assert rests(plan) == rests(kept)


@pytest.mark.devices
def test_ends_against_constraints() -> None:
    """Arguments come, and results leave, as their own shardings say."""
    ends = {"in_shardings": (P("rows"), None), "out_shardings": (P("rows"), None)}
    plan = check(lambda x, y: (fix(fix(x, "cols") + y, None, "cols"), y), X, Y, **ends)
    assert plan.partition_specs[0][0] == P("rows")
    assert plan.out_shardings[0].spec == P("rows")
    assert rests(plan) == [P(("cols",), None), P(None, ("cols",))]


@pytest.mark.devices
def test_one_value_as_several_results() -> None:
    shardings = P("rows"), P(None, "cols"), P("cols", "rows"), P("cols")
    twice = check(lambda x: (x, x, x * 2, x), X, in_shardings=(P("cols"),), out_shardings=shardings)
    assert tuple(s.spec for s in twice.out_shardings) == shardings
    assert twice.partition_specs[0] == (P("cols"),)


@pytest.mark.devices
@pytest.mark.parametrize("out", [None, {"w": P("cols")}])
def test_state_is_fixed_otherwise_than_its_successor(out: Any) -> None:
    """State that comes in one sharding leaves so, unless the result's is fixed as well."""

    def step(state: Any, x: Any) -> Any:
        return {"w": fix(state["w"] - 0.1 * x, "cols")}, (x * x).sum()

    ends = {"in_shardings": ({"w": P("rows")}, None), "out_shardings": (out, None)}
    plan = check(step, {"w": X}, Y, **ends)
    assert plan.partition_specs[0][0]["w"] == P("rows")
    assert plan.out_shardings[0]["w"].spec == (P("cols") if out else P("rows"))
    assert rests(plan) == [P(("cols",), None)]


@pytest.mark.devices
def test_orders_of_axes() -> None:
    """Both orders of two axes: tiles are permuted where an argument enters or a result leaves."""
    one, other = P(("rows", "cols")), P(("cols", "rows"))
    ends = {"in_shardings": (one, other), "out_shardings": (one, other, P(None, *other))}
    plan = check(lambda x, y: (x * 2, y + x, x @ y), X, Y, **ends)
    assert plan.partition_specs[0] == (one, other)
    assert tuple(s.spec for s in plan.out_shardings) == ends["out_shardings"]
    assert plan.collective_counts["collective_permute"] == 2
    moved = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert [c.bytes for c in moved] == [X.nbytes // 8] * 2
    assert plan.cost.bytes_by_kind["collective_permute"] == 2 * X.nbytes // 8
    straight = check(lambda x: x * 2, X, in_shardings=(one,), out_shardings=other)
    assert counts(straight) == {"collective_permute": 1}
    inside = check(STEPS["orders"], X, Y)
    assert not counts(inside)  # in between nobody sees the order


def test_ends_are_kept_in_files(tmp_path: Any) -> None:
    one, other = P(("rows", "cols")), P(("cols", "rows"))
    ends = {"in_shardings": (one,), "out_shardings": (other, P("cols"))}

    def step(x: Any) -> Any:
        return x * 2, x

    plan = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], **ends)(step).plan(X)
    plan.save(tmp_path / "plan.json")
    saved = ps.load_plan(tmp_path / "plan.json")
    again = ps.auto_partition(MESH, machine="tpu_v5e", schedule=saved)(step)
    assert again.plan(X).actions == plan.actions
    assert tuple(s.spec for s in again.plan(X).out_shardings) == ends["out_shardings"]
    np.testing.assert_array_equal(again(X)[0], X * 2)
