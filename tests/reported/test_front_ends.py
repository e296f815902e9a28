"""Modules of flax nnx and equinox as arguments; methods; states of haiku and optax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import partir_search as ps

pytestmark = pytest.mark.devices

ROWS = ps.ManualPartition({"x": 0}, axis="batch")
COLUMNS = ps.ManualPartition({"**/hidden/kernel": 1}, axis="model")
OPTIMIZER = optax.adam(1e-1, eps=1e-1)  # no noise of gradients that are zero


class Net(nnx.Module):
    """Two layers, tied at will, with normalisation and dropout."""

    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0, tied: bool = False) -> None:
        self.hidden = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.out = nnx.Linear(16, 8, rngs=rngs)
        self.again = nnx.List([nnx.Linear(8, 8, rngs=rngs)])
        if tied:
            self.again[0].kernel = nnx.Linear(8, 8, rngs=rngs).kernel
            self.last = nnx.Linear(8, 8, rngs=rngs)
            self.last.kernel = self.again[0].kernel

    def __call__(self, x: Any) -> Any:
        y = self.again[0](self.out(self.drop(nnx.relu(self.norm(self.hidden(x))))))
        return self.last(y) if hasattr(self, "last") else y


def data(rows: int = 16) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(rows, 8)), jnp.float32) for _ in range(2))


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    def loss(model: Any) -> Any:
        return jnp.mean((model(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def objects(**kw: Any) -> tuple[Any, Any]:
    model = Net(nnx.Rngs(0), **kw)
    return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)


def partition(mesh: Any, *more: Any, **kw: Any) -> Callable[[Any], Any]:
    return ps.auto_partition(mesh, schedule=[ROWS, *more], machine="cpu", **kw)


def leaves(*nodes: Any) -> list[Any]:
    return jax.tree.leaves([nnx.state(n) for n in nodes])


def same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)
        assert a.dtype == b.dtype


def planned_once(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be planned."""
    from partir_search.planning.pipeline import PlanPipeline

    def fail(*args: Any) -> Any:
        raise AssertionError("planned again")

    monkeypatch.setattr(PlanPipeline, "make", fail)


@pytest.mark.parametrize("tied", [False, True])
def test_modules_train(mesh: Any, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, moments, statistics and random streams change as under `nnx.jit`."""
    x, y = data()
    want, got = objects(rate=0.3, tied=tied), objects(rate=0.3, tied=tied)
    step = partition(mesh, COLUMNS, donate_argnums=(0, 1))(train)
    plain = nnx.jit(train)
    for i in range(3):
        if i == 1:
            planned_once(step, monkeypatch)
            held = got[0].hidden.kernel.get_raw_value()
            assert held.sharding.spec == jax.P(None, "model")
        np.testing.assert_allclose(step(*got, x, y), plain(*want, x, y), rtol=1e-5)
    same(leaves(*got), leaves(*want))
    assert not tied or got[0].last.kernel is got[0].again[0].kernel


def test_plan_of_modules(mesh: Any) -> None:
    """Paths are names of attributes; abstract modules plan, and the state is made in place."""
    x, y = data()
    step = partition(mesh, COLUMNS)(train)
    shapes = nnx.eval_shape(objects)
    plan = step.plan(*shapes, x, y)
    paths = [path for path, _, _ in plan.arguments()]
    assert {"model/again/0/kernel", "optimizer/opt_state/0/mu/hidden/kernel", "x"} <= set(paths)
    assert plan.in_shardings[0][0]["hidden"]["kernel"].spec == jax.P(None, "model")
    _, updates = plan.out_shardings
    assert updates["model"]["hidden"]["kernel"].spec == jax.P(None, "model")
    tied = {module_path(plan, i) for i, _ in plan.module.ties}
    assert {"model/hidden/kernel", "optimizer/opt_state/0/nu/hidden/kernel"} <= tied
    model, optimizer = step.init(objects, x, y)
    assert model.hidden.kernel.get_raw_value().sharding.spec == jax.P(None, "model")
    assert step.plan(model, optimizer, x, y) is step.plan(model, optimizer, x, y)
    assert (found := step.check(model, optimizer, x, y)).ok, found.worst
    assert step.eval_shape(model, optimizer, x, y).shape == ()
    assert step.lower(model, optimizer, x, y).compile() is not None
    assert "BP(batch)" in step.known_plans(model, optimizer, x, y)
    before = leaves(*objects())
    same(leaves(model, optimizer), before)  # nothing above has changed them
    want = objects()
    np.testing.assert_allclose(step(model, optimizer, x, y), train(*want, x, y), rtol=1e-5)
    same(leaves(model, optimizer), leaves(*want))


def module_path(plan: Any, argument: int) -> str:
    return str(plan.module.arg_paths[argument])


def test_modes_and_structure(mesh: Any) -> None:
    """Another mode is another program; new Variables, attributes and metrics reach the objects."""

    def evaluate(model: Any, metrics: Any, x: Any, y: Any) -> Any:
        out = model(x)
        metrics.update(values=(out - y) ** 2)
        model.seen = nnx.Variable(x.sum())
        model.kind = "evaluated"
        return nnx.Linear(8, 2, rngs=nnx.Rngs(1)), {"out": out, "module": model}

    x, y = data()
    found = []
    for wrap in (nnx.jit, partition(mesh)):
        model, metrics = Net(nnx.Rngs(0), rate=0.5), nnx.metrics.Average()
        step = wrap(evaluate)
        losses = []
        for mode in ("train", "eval", "train"):
            getattr(model, mode)()
            made, out = step(model, metrics, x, y)
            assert out["module"] is model
            assert model.kind == "evaluated"
            losses.append(out["out"])
        found.append((losses, metrics.compute(), model.seen[...], leaves(model), leaves(made)))
    same(found[1], found[0])


def test_evaluation_places_a_module_once(mesh: Any) -> None:
    """What a step only reads lies where its plan wants it, from the first call on."""
    evaluate = partition(mesh, COLUMNS)(lambda model, x, *, pair: model(x) + pair[0](x))
    model, other = Net(nnx.Rngs(0)), nnx.Linear(8, 8, rngs=nnx.Rngs(1))
    x, _ = data()
    model.eval()
    want = model(x) + other(x)
    for _ in range(2):
        same(evaluate(model, x, pair=(other,)), want)
        held = model.hidden.kernel.get_raw_value(), other.kernel.get_raw_value()
        assert held[0].sharding.spec == jax.P(None, "model")
        assert len(held[1].sharding.device_set) == 8
    same(leaves(model), leaves(Net(nnx.Rngs(0))))


def test_two_modules_share_a_variable(mesh: Any) -> None:
    def step(first: Any, pair: Any, x: Any) -> Any:
        first.kernel[...] += x.mean()
        pair["second"].kernel[...] *= 2.0
        return pair["scale"] * pair["second"](x).sum()

    x, _ = data()
    found = []
    for wrap in (nnx.jit, partition(mesh)):
        first, second = (nnx.Linear(8, 8, rngs=nnx.Rngs(i)) for i in range(2))
        second.kernel = first.kernel
        run = wrap(step)
        outs = [run(first, {"second": second, "scale": jnp.float32(2)}, x) for _ in range(2)]
        assert first.kernel is second.kernel
        found.append((outs, leaves(first, second)))
    same(found[1], found[0])


def test_under_the_jit_of_nnx(mesh: Any) -> None:
    """`nnx.jit` below is taken off, with what it donates; `nnx.jit` around runs the plan."""
    x, y = data()
    want = objects()
    loss = nnx.jit(train)(*want, x, y)
    below = partition(mesh, COLUMNS)(nnx.jit(train, donate_argnums=(0, 1)))
    got = objects()
    held = got[0].hidden.bias.get_raw_value()
    np.testing.assert_allclose(below(*got, x, y), loss, rtol=1e-5)
    same(leaves(*got), leaves(*want))
    assert below.plan(*got, x, y).module.donated
    del held
    step = partition(mesh, COLUMNS)(train)
    around, got = nnx.jit(step), objects()
    np.testing.assert_allclose(around(*got, x, y), loss, rtol=1e-5)
    same(leaves(*got), leaves(*want))
    assert got[0].hidden.kernel.get_raw_value().sharding.spec == jax.P(None, "model")


def test_gradients_of_a_step_with_modules(mesh: Any) -> None:
    """`nnx.grad` around a partitioned loss is of the plain one, and says so."""
    loss = partition(mesh)(lambda model, x: jnp.mean(model(x) ** 2))
    model, (x, _) = Net(nnx.Rngs(0)), data()
    with pytest.warns(UserWarning, match="under jax.grad"):
        got = nnx.grad(lambda model: loss(model, x))(model)
    want = nnx.grad(lambda model: jnp.mean(model(x) ** 2))(Net(nnx.Rngs(0)))
    same(jax.tree.leaves(got), jax.tree.leaves(want))


def test_microbatches_of_modules(mesh: Any) -> None:
    class Plain(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.hidden = nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return nnx.relu(self.hidden(x))

    x, y = data(32)
    found = []
    for wrap in (nnx.jit, partition(mesh, microbatches=2)):
        model = Plain(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
        found.append((wrap(train)(model, optimizer, x, y), leaves(model, optimizer)))
    same(found[1], found[0])


# Equinox --------------------------------------------------------------------------------------


@pytest.fixture
def eqx() -> Any:
    return pytest.importorskip("equinox")


def eqx_model(eqx: Any) -> Any:
    class Model(eqx.Module):  # type: ignore[misc, name-defined]
        net: Any
        drop: Any
        scale: float
        name: str
        nothing: Any = None

        def __call__(self, x: Any, key: Any) -> Any:
            return self.scale * self.net(self.drop(x, key=key))

        def loss(self, x: Any, y: Any, key: Any) -> Any:
            keys = jax.random.split(key, x.shape[0])
            return jnp.mean((jax.vmap(self)(x, keys) - y) ** 2)

    net = eqx.nn.MLP(8, 8, 16, 2, activation=jax.nn.gelu, key=jax.random.key(0))
    return Model(net, eqx.nn.Dropout(0.1), 2.0, "model")


def eqx_step(eqx: Any) -> Callable[..., Any]:
    def step(model: Any, opt: Any, x: Any, y: Any, key: Any) -> Any:
        loss, grads = eqx.filter_value_and_grad(type(model).loss)(model, x, y, key)
        updates, opt = OPTIMIZER.update(grads, opt)
        return eqx.apply_updates(model, updates), opt, loss

    return step


def test_equinox_modules(mesh: Any, eqx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activation functions, numbers, strings and None among the leaves are static."""
    x, y = data()
    key = jax.random.key(2)

    def both() -> tuple[Any, Any]:
        model = eqx_model(eqx)
        return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))

    model, opt = both()
    step = eqx_step(eqx)
    want = eqx.filter_jit(step)(model, opt, x, y, key)
    columns = ps.ManualPartition({"model/net/layers/0/weight": 0}, axis="model")
    ours = partition(mesh, columns)(step)
    got = ours(model, opt, x, y, key)
    same(eqx.filter(got, eqx.is_array), eqx.filter(want, eqx.is_array))
    assert got[0].name == "model"
    assert got[0].net.activation is model.net.activation
    assert got[0].net.layers[0].weight.sharding.spec == jax.P("model")
    plan = ours.plan(model, opt, x, y, key)
    assert plan.in_shardings[0][0].net.layers[0].weight.spec == jax.P("model")
    assert plan.out_shardings[0].net.layers[0].weight.spec == jax.P("model")
    assert {"model/net/layers/1/bias", "x"} <= {path for path, _, _ in plan.arguments()}
    assert ours.eval_shape(model, opt, x, y, key)[0].name == "model"
    assert ours.check(model, opt, x, y, key).ok
    for other in (eqx.filter_jit(ours), partition(mesh, columns)(eqx.filter_jit(step))):
        again = other(model, opt, x, y, key)
        same(eqx.filter(again, eqx.is_array), eqx.filter(want, eqx.is_array))
        assert again[0].net.layers[0].weight.sharding.spec == jax.P("model")
    planned_once(ours, monkeypatch)
    ours(*got[:2], x, y, key)


def test_equinox_shapes_and_init(mesh: Any, eqx: Any) -> None:
    x, y = data()
    key = jax.random.key(2)

    def both() -> tuple[Any, Any]:
        model = eqx_model(eqx)
        return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))

    step = partition(mesh)(eqx_step(eqx))
    shapes = eqx.filter_eval_shape(both)
    plan = step.plan(*shapes, x, y, key)
    model, opt = step.init(both, x, y, key)
    assert model.name == "model"
    assert plan.collective_counts["all_reduce"]
    want = eqx_step(eqx)(*both(), x, y, key)
    got = step(model, opt, x, y, key)
    same(eqx.filter(got, eqx.is_array), eqx.filter(want, eqx.is_array))


def test_equinox_methods_and_static_leaves(mesh: Any, eqx: Any) -> None:
    """A module's method; a module that is called; other static leaves are another program."""
    model, (x, y), key = eqx_model(eqx), data(), jax.random.key(1)
    want = model.loss(x, y, key)
    same(partition(mesh)(model.loss)(x, y, key), want)
    linear = eqx.nn.Linear(8, 8, key=key)
    called = ps.auto_partition(mesh, schedule=[], machine="cpu")(linear)
    same(called(x[0]), linear(x[0]))
    step = partition(mesh)(lambda model, x, mode: model.net(x[0]) if mode == "one" else x[0])
    same(step(model, x, "one"), model.net(x[0]))
    same(step(model, x, "none"), x[0])
    with pytest.raises(TypeError, match=r"mode\['list'\] is a set|mode/list is a set"):
        step(model, x, {"list": {1}})


# Methods and other callables ------------------------------------------------------------------


def linear_step(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


@dataclasses.dataclass
class Trainer:
    """An object that is no pytree and has no hash."""

    rate: float

    def scaled(self, w: Any, x: Any) -> Any:
        return self.rate * linear_step(w, x)


def test_methods(mesh: Any) -> None:
    """Decorated methods bind `self`: closed over, static, or an argument if it is a pytree."""
    x, _ = data()
    w = jnp.ones((8, 8))

    class Holder:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        @partition(mesh)
        def step(self, w: Any, x: Any) -> Any:
            return self.rate * linear_step(w, x)

        @partition(mesh, static_argnums=0, donate_argnums=1)
        def static(self, w: Any, x: Any) -> Any:
            return self.rate * linear_step(w, x)

    one, two = Holder(1.0), Holder(2.0)
    want = linear_step(w, x)
    for holder in (one, two, one):
        same(holder.step(w, x), holder.rate * want)
        same(holder.static(jnp.array(w), x), holder.rate * want)
        assert [p for p, _, _ in holder.step.plan(w, x).arguments()] == ["w", "x"]
    assert one.static.plan(w, x).module.donated == {0}
    Trainer.step = partition(mesh)(Trainer.scaled)  # type: ignore[attr-defined]
    for rate in (1.0, 3.0):
        same(Trainer(rate).step(w, x), rate * want)  # type: ignore[attr-defined]
    same(partition(mesh)(Trainer(2.0).scaled)(w, x), 2 * want)

    class Module(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones((8, 8)))

        @partition(mesh)
        def step(self, x: Any) -> Any:
            self.w[...] = linear_step(self.w[...], x)
            return self.w.sum()

        def method(self, x: Any) -> None:
            self.w[...] = linear_step(self.w[...], x)

    module = Module()
    same(module.step(x), want.sum())
    same(module.w[...], want)
    partition(mesh)(module.method)(x)
    same(module.w[...], linear_step(want, x))


def test_partials_and_objects(mesh: Any) -> None:
    """Bound arrays and keywords; an object whose attributes have the names of ours."""

    class Step:
        plan = init = _kept = "mine"

        def __call__(self, w: Any, x: Any) -> Any:
            return linear_step(w, x)

    x, _ = data()
    w = jnp.ones((8, 8))
    want = linear_step(w, x)
    same(partition(mesh)(Step())(w, x), want)
    same(partition(mesh)(functools.partial(linear_step, w))(x), want)
    placed = jax.device_put(w, jax.NamedSharding(mesh, jax.P("batch")))
    same(partition(mesh)(functools.partial(linear_step, placed))(x), want)
    weighted = functools.partial(lambda w, x, scale: scale * linear_step(w, x), scale=2.0)
    same(partition(mesh)(weighted)(w, x), 2 * want)


# Plain pytrees --------------------------------------------------------------------------------


def test_haiku(mesh: Any) -> None:
    hk = pytest.importorskip("haiku")

    def forward(x: Any) -> Any:
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(8, name="hidden")(x), is_training=True)
        return hk.dropout(hk.next_rng_key(), 0.1, x)

    net = hk.transform_with_state(forward)
    x, y = data()
    params, state = net.init(jax.random.key(0), x)

    def step(params: Any, state: Any, opt: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            out, new = net.apply(params, state, key, x)
            return jnp.mean((out - y) ** 2), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = OPTIMIZER.update(grads, opt)
        return optax.apply_updates(params, updates), new, opt, value

    args = params, state, OPTIMIZER.init(params), jax.random.key(1), x, y
    same(partition(mesh)(step)(*args), jax.jit(step)(*args))
