"""Modules of flax nnx as arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.reported.front_ends import COLUMNS, OPTIMIZER, data, partition, planned_once, same

pytestmark = pytest.mark.devices


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


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    def loss(model: Any) -> Any:
        return jnp.mean((model(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def objects(**kw: Any) -> tuple[Any, Any]:
    model = Net(nnx.Rngs(0), **kw)
    return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)


def leaves(*nodes: Any) -> list[Any]:
    return jax.tree.leaves([nnx.state(n) for n in nodes])


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
