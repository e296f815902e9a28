"""Fixed shardings of regions, of other meshes and of jitted functions, and beside tactics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import partir_search as ps
from partir_search.aot.hlo import hlo_collectives
from partir_search.aot.verify import compare
from tests.reported.fixed_shardings import (
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
from tests.support import assert_same


def region(body: Step, spec: PartitionSpec, **manual: Any) -> Step:
    return jax.shard_map(body, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=False, **manual)


def numbered(x: Any) -> Any:
    """Depends on the device: on which order of axes its tile lies along."""
    return x * 2 + lax.axis_index("rows") * 10 + lax.axis_index("cols")


@pytest.mark.devices
def test_regions_see_their_own_order() -> None:
    """A `shard_map` runs on tiles in its own order of axes, whatever the program's is."""
    one = region(numbered, P(("rows", "cols")))
    other = region(numbered, P(("cols", "rows")))
    plan = check(lambda x, y: one(x) + other(y), X, Y)
    assert counts(plan) == {"collective_permute": 2}
    check(lambda x, y: jax.grad(lambda x: (one(x) * other(x * y)).sum())(x), X, Y)
    ends = {"in_shardings": (P(("cols", "rows")),), "out_shardings": P(("rows", "cols"))}
    assert counts(check(other, X, **ends)) == {"collective_permute": 1}


@pytest.mark.devices
def test_regions_that_leave_axes() -> None:
    """Constraints on the axes that a region leaves to the compiler, and a region inside of one."""

    def body(a: Any) -> Any:
        a = lax.with_sharding_constraint(a * 2, P(None, "cols"))
        return a @ jnp.ones((8, 8)) + lax.axis_index("rows")

    partly = region(body, P("rows"), axis_names={"rows"})
    check(lambda x, y: partly(fix(x, "cols")) + fix(y, None, "rows"), X, Y)

    def around(a: Any) -> Any:
        inner = jax.shard_map(
            lambda a: a * 2 + lax.axis_index("cols"),
            in_specs=P("cols"),
            out_specs=P("cols"),
            axis_names={"cols"},
        )
        return inner(a) + lax.axis_index("rows")

    nested = check(region(around, P("rows"), axis_names={"rows"}), jnp.tile(X, (2, 1)))
    assert nested.collective_counts["all_gather"] == 1


@pytest.mark.devices
def test_other_meshes_of_the_same_devices() -> None:
    """What a device holds counts, not what axes are called; an axis falls into parts for it."""
    kind = jax.sharding.AxisType.Auto
    devices = jax.devices()[:8]
    flat = jax.make_mesh((8,), ("all",), (kind,), devices=devices)
    renamed = jax.make_mesh((4, 2), ("a", "b"), (kind,) * 2, devices=devices)
    turned = jax.make_mesh((2, 4), ("a", "b"), (kind,) * 2, devices=devices)
    same = check(lambda x: fix(x * 2, "all", mesh=flat) + 1, X)
    assert rests(same) == [P(("rows", "cols"), None)]
    same = check(lambda x: fix(x * 2, "b", "a", mesh=renamed) + 1, X)
    assert rests(same) == [P(("cols",), ("rows",))]
    parts = check(
        lambda x, y: (fix(x * 2, "a", mesh=turned) + fix(y, None, ("b", "a"), mesh=turned)).sum(0),
        X,
        Y,
    )
    assert [str(s) for s in rests(parts)] == [
        str(P(("rows.0",), None)),
        str(P(None, ("rows.1", "cols", "rows.0"))),
    ]
    given = NamedSharding(turned, P("b", "a"))
    ends = check(lambda x: x * 2, X, in_shardings=(given,), out_shardings=NamedSharding(flat, P()))
    assert ends.in_shardings[0][0].is_equivalent_to(given, 2)
    assert ends.out_shardings.spec == P()


@pytest.mark.devices
def test_dims_that_do_not_divide() -> None:
    """They are tiled by the axes that divide them, and the line is named."""

    def step(x: Any) -> Any:
        return (fix(x[:6] * 2, ("cols", "rows")) + fix(x[:6] * 3, None, "rows")).sum(1)

    partitioned = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[])(step)
    with pytest.warns(
        UserWarning,
        match=r"fixed_shardings\.py.* dim 0 of size 6 does not divide by 8",
    ):
        plan = partitioned.plan(X)
    assert rests(plan) == [P(("cols",), None), P(None, ("rows",))]
    np.testing.assert_allclose(partitioned(X), jax.jit(step)(X), rtol=1e-5)


@pytest.mark.devices
def test_beside_tactics() -> None:
    """A tactic's word on an argument counts for more than what spreads there from a constraint."""

    def step(x: Any, y: Any) -> Any:
        return (fix(x * 2, "rows") + fix(x @ y, None, "cols")).sum(0)

    for dim, axis, spec in ((1, "rows", P(None, "rows")), (0, "rows", P("rows"))):
        plan = check(step, X, Y, schedule=[ps.ManualPartition({"x": dim}, axis=axis)])
        assert plan.partition_specs[0][0] == spec
    whole = check(step, X, Y, schedule=[ps.ManualPartition({"x": ps.REPLICATED}, axis="rows")])
    assert whole.partition_specs[0][0] == P()
    fixed = ps.auto_partition(
        MESH,
        machine="tpu_v5e",
        in_shardings=(P(None, "rows"), None),
        schedule=[ps.ManualPartition({"x": 0}, axis="rows")],
    )
    with pytest.raises(ps.IllegalAction, match="x cannot be tiled on dim 0 along axis 'rows'"):
        fixed(step).plan(X, Y)


@pytest.mark.devices
def test_reshard_on_explicit_axes(mesh: jax.sharding.Mesh) -> None:
    """The axes that `jax.sharding.reshard` names are kept, where two of them meet as well."""

    def step(x: Any, y: Any) -> Any:
        rows = jax.sharding.reshard(jax.sharding.reshard(x * 2, P("model")), P("batch"))
        return rows + jax.sharding.reshard(y, P(("model", "batch"))).sum()

    with jax.set_mesh(mesh):
        partitioned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[])(step)
        plan = partitioned.plan(X, Y)
        assert plan.partition_specs[0] == (P("model"), P(("model", "batch")))
        assert counts(plan) == {"all_gather": 1, "all_reduce": 1}
        assert_same([partitioned(X, Y)], [X * 2 + Y.sum()])


@pytest.mark.devices
def test_shardings_of_a_jit_inside() -> None:
    inner = jax.jit(
        jnp.sin,
        in_shardings=NamedSharding(MESH, P("rows")),
        out_shardings=NamedSharding(MESH, P(None, "cols")),
    )
    plan = check(lambda x, y: inner(x) + fix(y, "rows"), X, Y)
    assert rests(plan) == [P(("rows",), None), P(None, ("cols",)), P(("rows",), None)]
    check(jax.grad(lambda x, y: (inner(x) * fix(y, "cols")).sum()), X, Y)


@pytest.mark.devices
def test_shardings_of_the_jit_that_is_partitioned() -> None:
    """A jitted function's own shardings hold where `auto_partition` is given no others."""

    def step(x: Any, y: Any, k: int = 2) -> Any:
        return x * k + y, y

    jitted = jax.jit(
        step,
        in_shardings=(NamedSharding(MESH, P(("rows", "cols"))), None),
        out_shardings=(NamedSharding(MESH, P(("cols", "rows"))), None),
        static_argnames=("k",),
    )
    plan = check(jitted, X, Y)
    assert plan.partition_specs[0][0] == P(("rows", "cols"))
    assert plan.out_shardings[0].spec == P(("cols", "rows"))
    assert counts(plan) == {"collective_permute": 1}
    other = check(jitted, X, Y, in_shardings=(P("cols"), None), plain=step)
    assert other.partition_specs[0][0] == P("cols")


@pytest.mark.devices
def test_ends_elsewhere() -> None:
    """What enters or leaves in its own way is printed, followed and compiled as predicted."""
    one, other = P(("rows", "cols")), P(("cols", "rows"))
    ends = {"in_shardings": (one, other), "out_shardings": (other, one)}
    partitioned = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], **ends)(
        lambda x, y: (x * 2, y + x)
    )
    plan = partitioned.plan(X, Y)
    compiled = partitioned.lower(X, Y).compile().as_text()
    assert not compare(plan.program, hlo_collectives(compiled))[2]
    text = plan.ir()
    assert "%x: f32[8,8]{rows:0, cols:0}, %y: f32[8,8]{cols:0, rows:0}" in text
    assert "return %mul: f32[8,8]{cols:0, rows:0}, %add" in text
    again = ps.auto_partition(MESH, machine="tpu_v5e", shardings_like=plan)(lambda x, y: x - y)
    assert again.plan(X, Y).partition_specs[0] == (one, other)
    assert_same([again(X, Y)], [X - Y])
    here = plan.what_if("y", P("rows")).after
    assert here.partition_specs[0][1] == P("rows")
