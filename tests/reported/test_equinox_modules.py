"""Modules of equinox as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from tests.reported.front_ends import OPTIMIZER, data, partition, planned_once, same

pytestmark = pytest.mark.devices


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
