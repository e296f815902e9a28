"""Updates of layers that admit a state by stage, and updates that do not, on one device."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.core import Module
from partir_search.ir.interpreter import interpret, run_whole
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.verify import verify
from partir_search.passes.pipeline.layer_order import to_layers, to_stages
from partir_search.passes.pipeline.loop_parts import NoPipeline
from partir_search.passes.pipeline.module import pipelined
from partir_search.planning.loops import with_layers
from partir_search.planning.microbatch import in_time
from partir_search.planning.trace import read_call, split_call
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED
from tests.support import assert_same

LAYERS, WIDTH, BATCH = 4, 4, 8
Update = Callable[[Any, Any, Any], Any]  # of parameters, gradients and averages of layers


def staged(step: Any, args: Any, *numbers: int) -> Module:
    """A step as a pipeline of (stages, microbatches, chunks) with its state by stage."""
    traced = read_call(jax.jit(step), split_call(step, args, {}, (), ()), args, {}, "step")
    module = in_time(with_layers(traced)[0].module, numbers[1]).module
    found = pipelined(module, PipelineSchedule(*numbers), (*RULES, *UNRULED), staged=True)
    verify(found)
    return found


def results_of(module: Module, args: Any) -> list[Any]:
    """Results of a staged module, from arguments in the layers' order and back."""
    rules = [RuleTable()(op) for op in module.ops]

    def run(*leaves: Any) -> list[Any]:
        return interpret(module, rules, leaves, lambda op, ins: run_whole(rules[op.id], op, ins))

    leaves, ties = jax.tree.leaves(args), dict(module.ties)
    for group in module.staged.groups:
        moved = to_stages([leaves[i] for i in group.arguments], group.order)
        for i, x in zip(group.arguments, moved, strict=True):
            leaves[i] = x
    found = list(jax.jit(run)(*leaves))
    for group in module.staged.groups:
        places = [ties[i] for i in group.arguments]
        for i, x in zip(places, to_layers([found[i] for i in places], group.order), strict=True):
            found[i] = x
    return found


def arguments() -> tuple[Any, Any]:
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 2))

    def draw(*shape: int) -> Any:
        return 0.5 * jax.random.normal(next(keys), shape)

    layers = [{"w": draw(WIDTH, WIDTH), "b": draw(WIDTH)} for _ in range(LAYERS)]
    first, x = draw(WIDTH, WIDTH), draw(BATCH, WIDTH)
    return {"first": first, "layers": layers, "average": layers}, x


def step_of(update: Update, log: Callable[[Any], Any] = lambda layers: 0.0) -> Any:
    def step(state: Any, x: Any) -> Any:
        def loss(first: Any, layers: Any) -> Any:
            h = functools.reduce(lambda h, p: h + jnp.sin(h @ p["w"] + p["b"]), layers, x @ first)
            return (h**2).mean()

        first, layers = state["first"], state["layers"]
        value, (d_first, grads) = jax.value_and_grad(loss, (0, 1))(first, layers)
        layers, average = update(layers, grads, state["average"])
        new = {"first": first - 0.1 * d_first, "layers": layers, "average": average}
        return new, (value, log(state["layers"]))

    return step


def descend(layers: Any, grads: Any, average: Any, rate: Any = 0.1) -> Any:
    """Gradient descent, with averages of the parameters."""
    new = jax.tree.map(lambda p, g: p - rate * g, layers, grads)
    return new, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, new)


def total(values: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a + b, values)


def clipped(layers: Any, grads: Any, average: Any) -> Any:
    norm = jnp.sqrt(total([jnp.sum(g**2) for g in jax.tree.leaves(grads)]))
    return descend(layers, grads, average, 0.1 / jnp.maximum(1.0, norm))


def if_finite(layers: Any, grads: Any, average: Any) -> Any:
    flags = [jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]
    good = functools.reduce(jnp.logical_and, flags)
    new = descend(layers, grads, average)
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, (layers, average))


def narrow(layers: Any, grads: Any, average: Any) -> Any:
    """Casts, and a norm of the averages, which are no gradients."""
    size = total(
        [
            jnp.sum(jnp.abs(a.astype(jnp.bfloat16)), dtype=jnp.float32)
            for a in jax.tree.leaves(average)
        ]
    )
    return descend(layers, grads, average, 0.1 / (1.0 + size))


@pytest.mark.parametrize("update", [descend, clipped, if_finite, narrow], ids=lambda f: f.__name__)
@pytest.mark.parametrize("numbers", [(2, 4, 1), (2, 4, 2)])
def test_updates_by_elements_and_totals(update: Update, numbers: tuple[int, ...]) -> None:
    step = step_of(update)
    module = staged(step, arguments(), *numbers)
    assert module.staged.edges == ()
    assert sum(len(g.arguments) for g in module.staged.groups) == 4 * LAYERS
    want = jax.tree.leaves(jax.jit(step)(*arguments()))
    assert_same(results_of(module, arguments()), want, tolerance=1e-5)


def by_layer_rate(layers: Any, grads: Any, average: Any) -> Any:
    scaled = [jax.tree.map(lambda g, s=s: 0.5**s * g, g) for s, g in enumerate(grads)]
    return descend(layers, scaled, average)


def by_layer_norm(layers: Any, grads: Any, average: Any) -> Any:
    return descend(
        layers, [{**g, "w": g["w"] / jnp.sqrt((g["w"] ** 2).sum())} for g in grads], average
    )


def of_the_next(layers: Any, grads: Any, average: Any) -> Any:
    last = [*grads[1:], grads[0]]
    mixed = [{**g, "w": g["w"] + 0.1 * n["w"]} for g, n in zip(grads, last, strict=True)]
    return descend(layers, mixed, average)


def transposed(layers: Any, grads: Any, average: Any) -> Any:
    return descend(layers, [{**g, "w": g["w"] + 0.1 * g["w"].T} for g in grads], average)


def by_place(layers: Any, grads: Any, average: Any) -> Any:
    weights = jnp.arange(WIDTH, dtype=jnp.float32)
    return descend(layers, [{**g, "w": g["w"] * weights} for g in grads], average)


def twice_the_first(layers: Any, grads: Any, average: Any) -> Any:
    sums = [jnp.sum(g["w"] ** 2) for g in grads]
    return descend(layers, grads, average, 0.1 / (1.0 + total([*sums, sums[0]])))


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (by_layer_rate, "layers 0 and 1 are updated differently: mul at .*py:"),
        (by_layer_norm, "layers 0 and 1 are updated differently: div at .*py:"),
        (of_the_next, "joins arrays of one layer twice"),
        (transposed, "transpose at .*py:.* reads it, and may combine elements of several layers"),
        (by_place, "broadcast_in_dim.* makes a value that is combined with it"),
        (twice_the_first, "a number of single layers"),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_updates_that_need_the_layers_order(update: Update, reason: str) -> None:
    """One kind keeps the layers' order, or both; the step is exact in any case."""
    step = step_of(update)
    if update is by_layer_rate:
        with pytest.raises(NoPipeline, match=f"no argument can be kept by stage.*{reason}"):
            staged(step, arguments(), 2, 4, 2)
        return
    module = staged(step, arguments(), 2, 4, 2)
    (edge,) = module.staged.edges
    assert re.match(r"state/layers/0/w: ", edge)
    assert re.search(reason, edge), edge
    assert sum(len(g.arguments) for g in module.staged.groups) == 2 * LAYERS
    want = jax.tree.leaves(jax.jit(step)(*arguments()))
    assert_same(results_of(module, arguments()), want, tolerance=1e-5)


def test_frozen_parameters_and_uneven_layers() -> None:
    def step(state: Any, x: Any, frozen: Any) -> Any:
        def loss(state: Any) -> Any:
            first, scales = state
            h = x * first
            for w, s in zip(frozen, scales, strict=True):
                h = h + jnp.sin((h * s) @ w)
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    scales = [jnp.full(WIDTH, 1.0 + i) for i in range(LAYERS)]
    weights = [jnp.full((WIDTH, WIDTH), 0.1 * i) for i in range(LAYERS)]
    x = np.linspace(0.0, 1.0, BATCH * WIDTH, dtype=np.float32).reshape(BATCH, WIDTH)
    module = staged(step, ((scales[0], scales), x, weights), 2, 4, 1)
    assert [g.arguments for g in module.staged.groups] == [(1, 2, 3, 4)]
    assert module.staged.edges == ("frozen/0: frozen/0 is not returned: no train state",)
    with pytest.raises(NoPipeline, match="3 stages do not divide the 4 layers"):
        staged(step_of(descend), arguments(), 3, 4, 1)
