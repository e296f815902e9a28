"""Primitives of libraries are read through their definitions: none is left without a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse
from jax.extend.core import Primitive
from jax.interpreters import mlir

import partir_search as ps
from tests.support import floats_of, module_of

ROWS = ps.ManualPartition({"x": 0}, axis="batch")
COLUMNS = ps.ManualPartition({"w": 1}, axis="model")


def agrees(
    mesh: jax.sharding.Mesh,
    fn: Callable[..., Any],
    args: Sequence[Any],
    schedule: Sequence[Any] = (ROWS,),
    tolerance: float = 1e-5,
) -> Any:
    """The plan of `fn`, once its results agree with the plain function's, leaf by leaf."""
    auto = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(fn)
    want, got = jax.jit(fn)(*args), auto(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return auto.plan(*args)


def test_ops_of_libraries_have_the_line_of_their_call() -> None:
    """Jax traces jitted functions of libraries once, without the frames of their callers, and a
    primitive's definition has this package's.
    """
    scaled = primitive("scaled_sine", lambda x: jnp.sin(x) * 2)

    def normalized(x: Any) -> Any:
        return jax.nn.relu(x - x.mean(0)) / jnp.sqrt(jnp.var(x, 0) + 1)

    def fn(x: Any, ids: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return carry + jnp.take_along_axis(row, ids, 1), jnp.std(
                scaled.bind(lax.stop_gradient(row))
            )

        return lax.scan(body, x[:, :2], normalized(x)[None].repeat(2, 0))[0].sum()

    args = jnp.ones((8, 4)), jnp.zeros((8, 2), jnp.int32)
    made = module_of(lambda x, ids: (fn(x, ids), jax.grad(lambda x: fn(x, ids))(x)), *args)
    assert len(made.ops) > 30
    functions = {op.source.split(" ")[-1] for op in made.ops}
    assert all("test_library_primitives.py" in op.source for op in made.ops)
    assert len(functions) > 2


def counts(plan: Any) -> dict[str, int]:
    return {kind: n for kind, n in plan.collective_counts.items() if n}


def primitive(
    name: str,
    impl: Callable[..., Any],
    *,
    lowering: Callable[..., Any] | None = None,
    several: bool = False,
) -> Primitive:
    """A primitive that keeps its operand's type; lowered as jax lowers `impl`, or as told."""
    made = Primitive(name)
    made.multiple_results = several
    made.def_impl(impl)
    made.def_abstract_eval(lambda x, **_: [x, x] if several else x)
    mlir.register_lowering(made, lowering or mlir.lower_fun(impl, multiple_results=several))
    return made


@pytest.mark.devices
def test_own_primitives_keep_tilings(mesh: jax.sharding.Mesh) -> None:
    """Also inside of a loop and with several results; equal uses are traced once."""
    traced: list[float] = []

    def impl(x: Any, *, factor: float) -> Any:
        traced.append(factor)
        return jnp.tanh(x) * factor

    scaled = primitive("scaled_tanh", impl)
    pair = primitive("pair", lambda x: [x + 1, jnp.sin(x)], several=True)

    def fn(x: Any, w: Any) -> Any:
        for _ in range(5):
            x = scaled.bind(x, factor=2.0)
        x = lax.scan(lambda c, _: (scaled.bind(c @ w, factor=3.0), None), x, None, length=2)[0]
        return pair.bind(x)

    plain, args = jax.jit(fn), floats_of((8, 4), (4, 4))
    plain.lower(*args)
    alone = len(traced)
    plan = ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(fn).plan(*args)
    assert traced[alone:] == [2.0, 3.0]
    assert not plan.opaque()
    plan = agrees(mesh, fn, args)
    assert not counts(plan)
    assert {op.prim for op in plan.module.ops}.isdisjoint({"scaled_tanh", "pair"})


@pytest.mark.devices
def test_host_code_stays_whole(mesh: jax.sharding.Mesh) -> None:
    """What works on numpy arrays is not called while the program is read."""
    calls: list[type] = []

    def impl(x: Any) -> Any:
        calls.append(type(x))
        return np.sin(np.asarray(x))

    def lowering(ctx: Any, x: Any) -> Any:
        host = lambda a: (impl(a),)  # noqa: E731
        kinds = ctx.avals_in, ctx.avals_out
        return mlir.emit_python_callback(ctx, host, None, [x], *kinds, has_side_effect=False)[0]

    host_sin = primitive("host_sin", impl, lowering=lowering)
    x = floats_of((8, 4))[0]
    auto = ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(lambda x: host_sin.bind(x * 2))
    with pytest.warns(UserWarning, match="'host_sin' has no sharding rule: its 1 uses"):
        plan = auto.plan(x)
    assert not calls
    assert list(plan.opaque()) == ["host_sin"]
    np.testing.assert_allclose(auto(x), np.sin(2 * x), rtol=1e-5)
    assert not any(issubclass(kind, jax.core.Tracer) for kind in calls)


def bad_definitions() -> dict[str, Callable[..., Any]]:
    """Definitions that cannot be read: of another type, of values, of nothing but themselves."""

    def itself(x: Any) -> Any:
        return jax.jit(lambda x: made["itself"].bind(x))(x)

    def one(x: Any) -> Any:
        return made["other"].bind(x)

    def other(x: Any) -> Any:
        return made["one"].bind(x) * 2

    impls = {
        "wider": lambda x: x.astype(jnp.complex64),
        "concrete": lambda x: x * float(x.sum()),
        "raising": lambda x: 1 / 0,
        "itself": itself,
        "one": one,
        "other": other,
    }

    def tanh(ctx: Any, x: Any) -> Any:
        return mlir.lower_fun(jnp.tanh, multiple_results=False)(ctx, x)

    made = {name: primitive(name, impl, lowering=tanh) for name, impl in impls.items()}
    return {name: p.bind for name, p in made.items()}


@pytest.mark.devices
@pytest.mark.parametrize("name", ["wider", "concrete", "raising", "itself", "one"])
def test_what_cannot_be_read_stays_one_op(mesh: jax.sharding.Mesh, name: str) -> None:
    """Without a word beyond the warning that names it."""
    bind = bad_definitions()[name]
    x = floats_of((8, 4))[0]
    auto = ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(lambda x: bind(x * 2))
    with pytest.warns(UserWarning, match="has no sharding rule") as caught:
        got = auto(x)
    assert len(caught) == 1
    np.testing.assert_allclose(got, np.tanh(2 * x), rtol=1e-5)


@pytest.mark.devices
def test_collectives_over_positions(mesh: jax.sharding.Mesh) -> None:
    """`vmap` with a name leaves sums over dims by their position, and sums over none."""

    def fn(x: Any) -> Any:
        def one(row: Any) -> Any:
            mean = lax.pmean(row, "rows")
            return row - mean, lax.pmax(row, "rows"), lax.psum(lax.psum(row, "rows"), "rows")

        return jax.vmap(one, axis_name="rows")(x)

    plan = agrees(mesh, fn, floats_of((8, 4)))
    assert not plan.opaque()
    assert "all_gather" not in counts(plan)


MATRIX = np.where(np.arange(128).reshape(8, 16) % 3 == 0, np.arange(128.0).reshape(8, 16) / 64, 0)


@pytest.mark.devices
@pytest.mark.parametrize("kind", ["BCOO", "BCSR", "CSR", "COO"])
def test_sparse_products(mesh: jax.sharding.Mesh, kind: str) -> None:
    """A sparse matrix times columns that are tiled; gradients; to dense and back."""
    make = getattr(sparse, kind)
    leaves, tree = jax.tree.flatten(make.fromdense(jnp.asarray(MATRIX, jnp.float32)))

    def fn(w: Any, data: Any) -> Any:
        def loss(w: Any, data: Any) -> Any:
            a = jax.tree.unflatten(tree, (data, *leaves[1:]))
            return ((a @ w) ** 2).sum() + (a @ w.sum(1)).sum()

        a = jax.tree.unflatten(tree, (data, *leaves[1:]))
        back = jax.tree.leaves(make.fromdense(a.todense() * 2, nse=len(data)))
        return jax.value_and_grad(loss, (0, 1))(w, data), back

    args = (floats_of((16, 8))[0], leaves[0])
    plan = agrees(mesh, fn, args, [COLUMNS])
    assert not plan.opaque()
    assert "all_gather" not in counts(plan)


@pytest.mark.devices
def test_equinox_loops_and_errors(mesh: jax.sharding.Mesh) -> None:
    """Checkpointed loops under `grad`, checks of values, identities that guard transformations."""
    eqx = pytest.importorskip("equinox")

    def fn(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            def step(carry: Any) -> Any:
                i, y = carry
                return i + 1, jnp.tanh(y @ w)

            y = eqx.error_if(x, jnp.any(x > 100), "too large")
            y = jax.vmap(lambda row: eqx.error_if(row, row.sum() > 100, "too large"))(y)
            go = lambda carry: carry[0] < 3  # noqa: E731
            y = eqx.internal.while_loop(
                go, step, (0, y), max_steps=4, kind="checkpointed", checkpoints=2
            )[1]
            return (eqx.internal.nondifferentiable_backward(x) * y).sum()

        return jax.grad(loss)(w)

    plan = agrees(mesh, fn, floats_of((4, 4), (8, 4)))
    assert not plan.opaque()
    assert counts(plan) == {"all_reduce": counts(plan)["all_reduce"]}


@pytest.mark.devices
def test_equinox_noinline(mesh: jax.sharding.Mesh) -> None:
    """A function that is kept out of line runs tile by tile like any other."""
    eqx = pytest.importorskip("equinox")
    layer = eqx.internal.noinline(lambda w, x: jnp.tanh(x @ w))

    def fn(w: Any, x: Any) -> Any:
        y = lax.scan(lambda y, _: (layer(w, y), None), x, None, length=2)[0]
        return y, jax.grad(lambda w: (layer(w, x) ** 2).sum())(w)

    plan = agrees(mesh, fn, floats_of((4, 4), (8, 4)))
    assert not plan.opaque()
    assert counts(plan) == {"all_reduce": 1}


@pytest.mark.devices
def test_equinox_announcements_say_nothing_twice(mesh: jax.sharding.Mesh) -> None:
    """Reading a program calls nothing that reports transformations."""
    eqx = pytest.importorskip("equinox")
    said: list[str] = []

    def new() -> Callable[..., Any]:
        return lambda x: eqx.debug.announce_transform(x, announce=said.append) * 2

    x = floats_of((8, 4))[0]
    jax.jit(new()).trace(x)
    alone, said[:] = len(said), []
    ps.auto_partition(mesh, schedule=[ROWS], machine="cpu")(new()).plan(x)
    assert len(said) == alone


@pytest.mark.devices
@pytest.mark.parametrize("gradient", [False, pytest.param(True, marks=pytest.mark.long)])
def test_differential_equation(mesh: jax.sharding.Mesh, gradient: bool) -> None:
    """diffrax: adaptive steps of a batch, and the gradient; only sums and flags are shared."""
    dfx = pytest.importorskip("diffrax")

    def fn(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            def one(y: Any) -> Any:
                return dfx.diffeqsolve(
                    *(dfx.ODETerm(lambda t, y, w: jnp.tanh(w @ y)), dfx.Heun()),
                    *(0.0, 1.0, 0.2, y),
                    args=w,
                    saveat=dfx.SaveAt(ts=jnp.linspace(0, 1, 3)),
                    stepsize_controller=dfx.PIDController(rtol=1e-2, atol=1e-2),
                    max_steps=16,
                ).ys

            return (jax.vmap(one)(x) ** 2).sum()

        return jax.value_and_grad(loss)(w) if gradient else loss(w)

    plan = agrees(mesh, fn, floats_of((8, 4), (4, 4)), tolerance=1e-4)
    assert not plan.opaque()
    assert "all_gather" not in counts(plan)
