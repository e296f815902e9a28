"""The decorator: call forms, pytrees, placements, signatures, stages, other transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir_search as ps

pytestmark = pytest.mark.devices
BP = [ps.ManualPartition({"batch": 0}, axis="batch")]


def step(state: dict[str, Any], batch: Any, *, scale: float = 1.0) -> Any:
    def loss(params: Any) -> Any:
        h = jnp.tanh(batch["x"] @ params["w1"])
        return scale * jnp.mean((h @ params["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def make_args(batch: int = 8) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    params = {"w1": draw(8, 16), "w2": draw(16, 4)}
    state = {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}
    return state, {"x": draw(batch, 8), "y": draw(batch, 4)}


def assert_trees(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def options(**kw: Any) -> dict[str, Any]:
    return {"schedule": BP, "machine": "cpu", **kw}


def test_plain_and_jitted_functions(mesh: jax.sharding.Mesh) -> None:
    args = make_args()
    want = jax.jit(step)(*args)
    assert_trees(ps.auto_partition(mesh, **options())(step)(*args), want)
    assert_trees(ps.auto_partition(mesh, **options())(jax.jit(step))(*args), want)

    @ps.auto_partition(mesh, **options())
    def decorated(state: Any, batch: Any) -> Any:
        """Docs."""
        return step(state, batch)

    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Docs."
    assert_trees(decorated(*args), want)


def test_kwargs_and_statics(mesh: jax.sharding.Mesh) -> None:
    state, batch = make_args()
    f = ps.auto_partition(mesh, **options(static_argnames="scale"))(step)
    for scale in (1.0, 2.0):
        want = step(state, batch, scale=scale)
        assert_trees(f(state, batch=batch, scale=scale), want)
    dynamic = ps.auto_partition(mesh, **options())(step)
    assert_trees(dynamic(state, batch, scale=3.0), step(state, batch, scale=3.0))
    positional = ps.auto_partition(mesh, schedule=[], machine="cpu", static_argnums=1)(
        lambda x, n: x * n
    )
    np.testing.assert_array_equal(positional(np.arange(4), 3), np.arange(4) * 3)


def test_jitted_with_its_own_statics_says_so(mesh: jax.sharding.Mesh) -> None:
    f = jax.jit(lambda x, n: x * n, static_argnums=1)
    with pytest.raises(ValueError, match="pass the same static_argnums"):
        ps.auto_partition(mesh, schedule=[], machine="cpu")(f)(np.arange(4), 3)


def test_placements(mesh: jax.sharding.Mesh) -> None:
    """Arrays on the host, on one device, sharded otherwise, and as the plan wants them."""
    state, batch = make_args()
    f = ps.auto_partition(mesh, **options())(step)
    want = step(state, batch)
    assert_trees(f(state, batch), want)
    assert_trees(f(jax.device_put(state), jax.device_put(batch, jax.devices()[3])), want)
    rows = NamedSharding(mesh, P("model"))
    assert_trees(f(state, jax.device_put(batch, NamedSharding(mesh, P(None)))), want)
    assert_trees(
        f(jax.device_put(state, NamedSharding(mesh, P())), jax.device_put(batch, rows)), want
    )
    placed, _ = f(state, batch)
    for leaf in jax.tree.leaves(placed):
        assert isinstance(leaf.sharding, NamedSharding)
        assert leaf.sharding.mesh == jax.sharding.Mesh(mesh.devices, mesh.axis_names)


def test_each_signature_is_planned_once(mesh: jax.sharding.Mesh) -> None:
    traces: list[int] = []

    def counted(state: Any, batch: Any) -> Any:
        traces.append(batch["x"].shape[0])
        return step(state, batch)

    f = ps.auto_partition(mesh, **options())(counted)
    for batch in (8, 16, 8, 16):
        args = make_args(batch)
        assert_trees(f(*args), step(*args))
    assert traces.count(8) == traces.count(16) == 1
    f.clear_cache()
    f(*make_args(8))
    assert traces.count(8) == 2


def test_donation(mesh: jax.sharding.Mesh) -> None:
    state, batch = make_args()
    f = ps.auto_partition(mesh, **options(donate_argnums=0))(step)
    first, _ = f(state, batch)
    second, _ = f(first, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(second))
    compiled = f.lower(state, batch).compile()
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(second))
    assert compiled.memory_analysis().alias_size_in_bytes == held


def test_state_comes_out_as_it_goes_in(mesh: jax.sharding.Mesh) -> None:
    schedule = [*BP, ps.ManualPartition({"state/params/w1": 1}, axis="model")]
    f = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(step)
    args = make_args()
    plan = f.plan(*args)
    (state_in, _), _ = plan.in_shardings
    assert state_in["momentum"]["w1"].spec == P(None, "model")
    assert state_in["params"]["w2"].spec == P("model")
    state, _ = f(*args)
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(state_in), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def test_abstract_arguments_and_mesh() -> None:
    state, batch = make_args()
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, batch))
    abstract = AbstractMesh((2, 4), ("batch", "model"))
    f = ps.auto_partition(abstract, **options(machine="tpu_v5p"))(step)
    plan = f.plan(*structs)
    assert plan.collective_counts["all_reduce"] == 3
    assert plan.partition_specs[0][1]["x"] == P("batch")
    with pytest.raises(ValueError, match="AbstractMesh, which has no devices"):
        f(state, batch)


def test_abstract_arguments_do_not_run(mesh: jax.sharding.Mesh) -> None:
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_args())
    with pytest.raises(TypeError, match=r"use .plan\(...\) or .lower\(...\)"):
        ps.auto_partition(mesh, **options())(step)(*structs)


def test_stages(mesh: jax.sharding.Mesh) -> None:
    args = make_args()
    f = ps.auto_partition(mesh, **options())(step)
    plan = f.plan(*args)
    traced = f.trace(*args)
    lowered = traced.lower()
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    compiled = lowered.compile()
    placed = jax.device_put(args, plan.in_shardings[0])
    assert_trees(compiled(*placed), step(*args))
    shapes = f.eval_shape(*args)
    assert shapes[0]["params"]["w1"].shape == (8, 16)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_axis_types(kind: Any) -> None:
    mesh = jax.make_mesh((2, 4), ("batch", "model"), axis_types=(kind, kind))
    args = make_args()
    want = step(*args)
    f = ps.auto_partition(mesh, **options())(step)
    assert_trees(f(*args), want)
    placed = jax.device_put(args, NamedSharding(mesh, P()))
    assert_trees(f(*placed), want)
    with pytest.warns(UserWarning, match=r"as P\(\), and the plan has it .* moved in every call"):
        state, _ = f(*placed)
    assert_trees(f(state, args[1])[1], step(want[0], args[1])[1])
    with jax.set_mesh(mesh):
        assert_trees(f(*placed), want)


def test_under_other_transformations(mesh: jax.sharding.Mesh) -> None:
    """Grad and vmap see the plain jitted function, and say so once."""
    f = ps.auto_partition(mesh, schedule=[], machine="cpu")(lambda x: jnp.sin(x).sum())
    x = np.linspace(0, 1, 8, dtype=np.float32)
    with pytest.warns(UserWarning, match="is not partitioned where it is called under jax.grad"):
        np.testing.assert_allclose(jax.grad(f)(x), np.cos(x), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(x[:, None]), np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(x), np.sin(x).sum(), rtol=1e-6)


def test_random_keys_and_odd_leaves(mesh: jax.sharding.Mesh) -> None:
    """Keys of both kinds, scalars, None, bools; results that are constants or arguments."""

    def f(key: Any, raw: Any, x: Any, n: Any, nothing: Any) -> Any:
        a = jax.random.normal(key, x.shape)
        b = jax.random.uniform(raw, x.shape)
        return {
            "sum": (x + a + b) * n,
            "key": jax.random.split(key)[0],
            "x": x,
            "one": 1.0,
        }, nothing

    x = np.ones((8, 4), np.float32)
    args = (jax.random.key(1), jax.random.PRNGKey(2), x, 3, None)
    schedule = [ps.ManualPartition({"x": 0}, axis="model")]
    got = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(f)(*args)
    want = jax.jit(f)(*args)
    np.testing.assert_array_equal(got[0]["sum"], want[0]["sum"])
    assert got[0]["key"] == want[0]["key"]
    assert got[1] is None
    assert got[0]["one"].weak_type == want[0]["one"].weak_type


def test_closed_over_arrays(mesh: jax.sharding.Mesh) -> None:
    table = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), jax.devices()[5])
    schedule = [ps.ManualPartition({"x": 0}, axis="batch")]
    f = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(lambda x: x * table)
    x = np.ones((8, 4), np.float32)
    np.testing.assert_array_equal(f(x), np.asarray(table))


def test_fixed_shardings(mesh: jax.sharding.Mesh) -> None:
    args = make_args()
    f = ps.auto_partition(
        mesh,
        schedule=[],
        machine="cpu",
        in_shardings=(None, NamedSharding(mesh, P("batch"))),
        out_shardings=({"params": {"w1": P(None, "model"), "w2": None}, "momentum": None}, P()),
    )(step)
    plan = f.plan(*args)
    specs = {path: spec for path, _, spec in plan.arguments()}
    assert specs["batch/x"] == specs["batch/y"] == P("batch")
    assert specs["state/params/w1"] == P(None, "model")
    assert_trees(f(*args), step(*args))


def test_sharding_constraint_is_honoured(mesh: jax.sharding.Mesh) -> None:
    def f(x: Any, w: Any) -> Any:
        h = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P(None, "model")))
        return jnp.tanh(h).sum(0)

    plain = jax.make_mesh((2, 4), ("batch", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def g(x: Any, w: Any) -> Any:
        h = jax.lax.with_sharding_constraint(x @ w, NamedSharding(plain, P(None, "model")))
        return jnp.tanh(h).sum(0)

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(8, 16)).astype("f"), rng.normal(size=(16, 8)).astype("f")
    step = ps.auto_partition(plain, schedule=[], machine="cpu")(g)
    plan = step.plan(x, w)
    assert plan.partition_specs[0][1] == P(None, "model")
    np.testing.assert_allclose(step(x, w), np.tanh(x @ w).sum(0), rtol=1e-4)


def test_automatic_after_manual(mesh: jax.sharding.Mesh) -> None:
    """Search on one axis keeps what the tactic before it did."""
    schedule = [*BP, ps.AutomaticPartition(axes=("model",))]
    f = ps.auto_partition(mesh, schedule=schedule, machine="tpu_v5e", episodes=60)(step)
    args = make_args()
    plan = f.plan(*args)
    assert plan.partition_specs[0][1]["x"][0] == "batch"
    assert plan.searches[0].axes == ("model",)
    assert_trees(f(*args), step(*args))


def test_registered_rule_for_an_unknown_primitive(mesh: jax.sharding.Mesh) -> None:
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    def make(name: str) -> Any:
        """A matrix product whose lowering no function of jax's describes."""
        p = Primitive(name)
        p.def_abstract_eval(lambda x, w: jax.core.ShapedArray((x.shape[0], w.shape[1]), x.dtype))
        lowered = mlir.lower_fun(lambda x, w: x @ w, multiple_results=False)
        mlir.register_lowering(p, lambda ctx, x, w: lowered(ctx, x, w))
        return p

    x, w = np.ones((8, 16), np.float32), np.ones((16, 8), np.float32)
    schedule = [ps.ManualPartition({"x": 0}, axis="batch"), ps.ManualPartition({"x": 1}, "model")]
    unknown = make("unknown_matmul")
    f = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(lambda x, w: unknown.bind(x, w))
    with pytest.warns(UserWarning, match=r"'unknown_matmul' has no sharding rule: its 1 uses"):
        np.testing.assert_array_equal(f(x, w), x @ w)
    assert f.plan(x, w).opaque()["unknown_matmul"][0] == 1
    assert f.plan(x, w).collective_counts["all_gather"] == 2
    known = make("known_matmul")
    ps.register_rule(known, "i k, k j -> i j", flops_per_point=2.0)
    g = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(lambda x, w: known.bind(x, w))
    np.testing.assert_array_equal(g(x, w), x @ w)
    assert g.plan(x, w).collective_counts["all_reduce"] == 1
    assert g.plan(x, w).partition_specs[0][1] == P("model")
