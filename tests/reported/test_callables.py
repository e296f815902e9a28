"""Methods, partials and objects as functions; states of haiku and optax."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import partir_search as ps
from tests.reported.front_ends import OPTIMIZER, data, partition, same

pytestmark = pytest.mark.devices


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


def test_positions_mark_keyword_arguments(mesh: Any) -> None:
    """As in jax.jit, also of methods that close over their object and of nnx steps."""
    x, _ = data()

    class Holder:
        def step(self, w: Any, kind: str, *, x: Any) -> Any:
            return w * 2 if kind == "double" else linear_step(w, x)

        marked = partition(mesh, static_argnums=2, donate_argnums=(0, 1))(step)

    def nnx_step(module: nnx.Module, x: Any, kind: str) -> Any:
        return module.scale[...] * x if kind == "double" else x

    step = functools.partial(partition(mesh, static_argnums=1, donate_argnums=0), Holder().step)
    for run in (step(), Holder().marked):
        for kind in ("double", "line"):
            w = jnp.ones((8, 8))
            want = Holder().step(w, kind, x=x)
            placed = jax.device_put(w, run.plan(w=w, kind=kind, x=x).in_shardings[1]["w"])
            same(run(w=placed, kind=kind, x=x), want)
            assert placed.is_deleted()
    module = nnx.Module()
    module.scale = nnx.Param(jnp.full((8,), 3.0))
    named = partition(mesh, static_argnums=2, donate_argnums=1)(nnx_step)
    same(named(module, x=jnp.ones((8, 8)), kind="double"), 3 * jnp.ones((8, 8)))
    assert named.plan(module, x=x, kind="line").module.donated == {1}


def test_static_arguments_everywhere(mesh: Any) -> None:
    """Of a check, of known strategies, and equal to a dynamic argument: `3` is one object."""

    def step(w: Any, kind: str, times: int, rate: Any, x: Any) -> Any:
        assert isinstance(times, int)
        return w * times + rate if kind == "fast" else linear_step(w, x)

    def nnx_step(module: nnx.Module, times: int, rate: Any, x: Any) -> Any:
        assert isinstance(times, int)
        module.scale[...] = module.scale[...] * times + rate
        return module.scale[...] * x

    x, _ = data()
    w = jnp.ones((8, 8))
    plain = partition(mesh, static_argnums=1, static_argnames="times")(step)
    for kind in ("fast", "line"):
        assert plain.check(w, kind, 3, 3, x).ok
        assert plain.plan(w, kind, 3, 3, x).check(plain, w, kind, 3, 3, x).ok
        assert plain.check(w, kind, times=3, rate=3, x=x).ok
    known = ps.known_strategies(plain, mesh, w, "line", 3, 3, x, machine="tpu_v5e")
    assert "BP(batch)" in known
    with pytest.warns(UserWarning, match="is not partitioned where it is called under jax.vmap"):
        same(jax.vmap(lambda w: plain(w, "fast", 3, 3, x))(w[None])[0], w * 3 + 3)
    assert plain.eval_shape(w, "fast", 3, 3, x).shape == (8, 8)
    module = nnx.Module()
    module.scale = nnx.Param(jnp.ones((8,)))
    with_module = partition(mesh, static_argnames="times")(nnx_step)
    assert with_module.check(module, 3, 3, x).ok
    same(with_module(module, 3, 3, x), 6 * x)


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
