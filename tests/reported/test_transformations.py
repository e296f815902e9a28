"""Partitioned steps inside of other transformations, against the plain step there."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType, Mesh

import partir_search as ps

pytestmark = pytest.mark.devices

P = jax.P
ROWS = ps.ManualPartition({"x": 0}, axis="batch")
SCHEDULE = [
    ps.ManualPartition({"x": 0, "y": 0}, axis="batch"),
    ps.ManualPartition({"state/w": 1}, axis="model"),
]


def train(state: Any, x: Any, y: Any) -> Any:
    """A step whose state has floats, a count and a key."""

    def loss(w: Any) -> Any:
        noise = 0.1 * jax.random.normal(state["key"], x.shape)
        return jnp.mean((jnp.tanh((x + noise) @ w["w"]) @ w["v"] - y) ** 2)

    weights = {"w": state["w"], "v": state["v"]}
    value, grads = jax.value_and_grad(loss)(weights)
    new = jax.tree.map(lambda a, g: a - 0.3 * g, weights, grads)
    key, n = jax.random.split(state["key"])[0], state["n"] + 1
    return {**new, "n": n, "key": key}, value


def new_state() -> Any:
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.normal(size=(4, 8)), jnp.float32),
        "v": jnp.asarray(rng.normal(size=(8, 2)), jnp.float32),
        "n": jnp.zeros((), jnp.int32),
        "key": jax.random.key(0),
    }


def batches(n: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    shapes = (n, 8, 4), (n, 8, 2)
    x, y = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
    return x, y


XS, YS = batches()
X, Y = XS[0], YS[0]


@functools.cache
def step_on(kind: Any) -> Any:
    mesh = jax.make_mesh((2, 4), ("batch", "model"), (kind, kind), devices=jax.devices()[:8])
    return ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(train)


AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


@pytest.fixture(params=[AUTO, EXPLICIT], ids=str)
def step(request: pytest.FixtureRequest) -> Any:
    return step_on(request.param)


def same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


def several(f: Any, state: Any) -> Any:
    return lax.scan(lambda s, b: f(s, *b), state, (XS, YS))


def of_w(f: Any, state: Any) -> Callable[[Any], Any]:
    return lambda w: f({**state, "w": w}, X, Y)[1]


PARTITIONED: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda f, s: jax.jit(f)(s, X, Y),
    "in an expression": lambda f, s: jax.jit(lambda s: f(f(s, X, Y)[0], X, Y)[1] * 2 + X.sum())(s),
    "scan": several,
    "jitted scan": lambda f, s: jax.jit(lambda s: several(f, s))(s),
    "fori_loop": lambda f, s: lax.fori_loop(0, 2, lambda i, s: f(s, XS[i], YS[i])[0], s),
    "while_loop": lambda f, s: lax.while_loop(lambda s: s["n"] < 2, lambda s: f(s, X, Y)[0], s),
    "cond": lambda f, s: lax.cond(s["n"] < 3, lambda s: f(s, X, Y)[0], lambda s: s, s),
    "checkpoint": lambda f, s: jax.jit(jax.checkpoint(f))(s, X, Y),
    "lower": lambda f, s: jax.jit(f).lower(s, X, Y).compile()(s, X, Y),
}
PLAIN: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "grad": ("grad", lambda f, s: jax.grad(of_w(f, s))(s["w"])),
    "jit of grad": ("grad", lambda f, s: jax.jit(jax.grad(of_w(f, s)))(s["w"])),
    "jvp": ("grad", lambda f, s: jax.jvp(of_w(f, s), (s["w"],), (s["w"],))),
    "jacrev": ("grad", lambda f, s: jax.jacrev(of_w(f, s))(s["w"])),
    "vmap": ("vmap", lambda f, s: jax.vmap(f, in_axes=(None, 0, 0))(s, XS, YS)),
    "grad of jit": ("grad", lambda f, s: jax.grad(of_w(jax.jit(f), s))(s["w"])),
    "hessian of jit": ("grad", lambda f, s: jax.hessian(of_w(jax.jit(f), s))(s["w"])),
    "grad of scan": (
        "grad",
        lambda f, s: jax.grad(lambda w: several(f, {**s, "w": w})[1].sum())(s["w"]),
    ),
    "grad of checkpoint": ("grad", lambda f, s: jax.grad(of_w(jax.checkpoint(f), s))(s["w"])),
    "vmap of jit": (
        "vmap",
        lambda f, s: jax.vmap(jax.jit(f), in_axes=(None, 1, 1))(
            s, XS.swapaxes(0, 1), YS.swapaxes(0, 1)
        ),
    ),
    "grad of vmap of jit": (
        "vmap",
        lambda f, s: jax.grad(
            lambda w: jax.vmap(jax.jit(f), (None, 0, 0))({**s, "w": w}, XS, YS)[1].sum()
        )(s["w"]),
    ),
    "vmap of grad of jit": (
        "grad",
        lambda f, s: jax.vmap(
            lambda x: jax.grad(lambda w: jax.jit(f)({**s, "w": w}, x, Y)[1])(s["w"])
        )(XS),
    ),
}


@pytest.mark.parametrize("name", PARTITIONED)
def test_partitioned(step: Any, name: str) -> None:
    """The program runs under jit and in loops, from arrays that lie anywhere."""
    want = PARTITIONED[name](jax.jit(train), new_state())
    placed = jax.device_put(new_state(), step.plan(new_state(), X, Y).in_shardings[0][0])
    for state in (new_state(), placed):
        same(PARTITIONED[name](step, state), want)


def test_the_program_is_the_plan(step: Any) -> None:
    """One `shard_map` with the plan's collectives; results lie where the plan has them."""
    text = jax.jit(step).lower(new_state(), X, Y).as_text()
    counts = step.plan(new_state(), X, Y).collective_counts
    assert text.count("stablehlo.all_reduce") == counts["all_reduce"] > 0
    state, _ = jax.jit(lambda s: several(step, s))(new_state())
    assert state["w"].sharding.spec == P(None, "model")
    assert jax.eval_shape(step, new_state(), X, Y)[0]["w"].shape == (4, 8)
    assert "shard_map" in str(jax.make_jaxpr(step)(new_state(), X, Y))


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str) -> None:
    """Where it is differentiated or batched it is the plain function, with one warning."""
    reason, program = PLAIN[name]
    want = program(jax.jit(train), new_state())
    mesh = step_on(AUTO).plan(new_state(), X, Y).mesh
    mine = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(train)
    with pytest.warns(UserWarning, match=f"train is not partitioned .* under jax.{reason}"):
        got = program(mine, new_state())
    same(got, want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(program(mine, new_state()), want)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_within_another_mesh(kind: Any) -> None:
    """`jax.set_mesh` of the same mesh, and of another one, around a jit."""
    step = step_on(kind)
    other = jax.make_mesh((8,), ("z",), (kind,), devices=jax.devices()[:8])

    def run(f: Any) -> Callable[[Any], Any]:
        return lambda s: (several(f, s), f(s, X, Y)[1] + s["v"].sum())

    want = jax.jit(run(train))(new_state())
    for mesh in (other, step.plan(new_state(), X, Y).mesh, step._options.mesh):
        with jax.set_mesh(mesh):
            same(jax.jit(run(step))(new_state()), want)


def test_within_the_users_shard_map(mesh: Mesh) -> None:
    auto = Mesh(mesh.devices, mesh.axis_names)
    step = ps.auto_partition(auto, schedule=SCHEDULE, machine="cpu")(train)

    def body(x: Any, y: Any) -> Any:
        return step(new_state(), x, y)[1][None]

    for wrap in (jax.jit, lambda f: f):
        specs = P("batch"), P("batch")
        run = wrap(jax.shard_map(body, mesh=auto, in_specs=specs, out_specs=P("batch")))
        with contextlib.ExitStack() as stack:
            if wrap is jax.jit:
                stack.enter_context(pytest.warns(UserWarning, match="under jax.shard_map"))
            got = run(X, Y)
        same(got, jnp.stack([train(new_state(), X[i : i + 4], Y[i : i + 4])[1] for i in (0, 4)]))


def test_within_a_partitioned_function(mesh: Mesh) -> None:
    """A partitioned function that calls another one is partitioned as a whole."""
    inner = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(train)

    def outer(state: Any, x: Any, y: Any) -> Any:
        state, first = inner(state, x, y)
        return inner(state, x, y)[0], first

    step = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(outer)
    same(step(new_state(), X, Y), outer(new_state(), X, Y))
    assert not any(op.prim == "shard_map" for op in step.plan(new_state(), X, Y).module.ops)
    assert step.check(new_state(), X, Y).ok


def test_what_cannot_run(mesh: Mesh) -> None:
    """A mesh without devices; a function that closes over what is traced."""
    abstract = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    step = ps.auto_partition(abstract, schedule=SCHEDULE, machine="cpu")(train)
    with pytest.raises(ValueError, match="AbstractMesh, which has no devices"):
        jax.jit(step)(new_state(), X, Y)

    def outer(w: Any, x: Any) -> Any:
        inner = ps.auto_partition(mesh, schedule=[], machine="cpu")(lambda x: (x @ w).sum())
        return inner(x)

    with pytest.warns(UserWarning, match="closes over a traced value"):
        got = jax.jit(outer)(new_state()["w"], X)
    same(got, (X @ new_state()["w"]).sum())
    with pytest.warns(UserWarning, match="closes over a traced value"):
        got = jax.grad(lambda w: outer(w, X))(new_state()["w"])  # none of the arguments is traced
    same(got, jax.grad(lambda w: (X @ w).sum())(new_state()["w"]))


def test_first_call_inside(mesh: Mesh) -> None:
    """A call of concrete arrays in a jit, the first of all, leaves nothing of that trace behind."""
    table = jnp.asarray(np.arange(2**22, dtype=np.float32).reshape(4, -1) / 2**22)
    step = ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(lambda x: x @ table)
    with pytest.warns(UserWarning, match="closes over an array"):
        got = jax.jit(lambda scale: scale * step(X).sum())(2.0)
    np.testing.assert_allclose(got, 2 * (X @ table).sum(), rtol=1e-3)
    np.testing.assert_allclose(step(X), X @ table, rtol=1e-4, atol=1e-5)


def test_effects_inside(mesh: Mesh) -> None:
    """Callbacks of a step run inside of a jitted loop, in order."""
    seen: list[float] = []

    def noted(x: Any) -> Any:
        seen.append(float(x.sum()))
        return np.float32(len(seen))

    def fn(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return x + io_callback(noted, shape, x, ordered=True)

    step = ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(fn)
    got = jax.jit(lambda x: lax.scan(lambda c, _: (step(c), None), x, length=2)[0])(X)
    same(got, X + 3)
    assert len(seen) == 2
    assert seen[1] > seen[0]
