"""Fixed shardings that differ and meet: each is kept, and values are redistributed between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        match=r"test_constraints_that_differ\.py.* dim 0 of size 6 does not divide by 8",
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
