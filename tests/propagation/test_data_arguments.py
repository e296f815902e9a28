"""Data are told from parameters that are not trained, by dataflow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from partir_search.plan.report.summary import headlines
from partir_search.planning.microbatch import batch_size
from partir_search.planning.other_batch import with_batch
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.data_arguments import data_arguments
from partir_search.propagation.loop_batches import batch_dims, loop_batches
from partir_search.strategies.argument_roles import find_roles

LAYERS, ROWS, LENGTH, WIDTH, HIDDEN, WORDS = 3, 16, 8, 32, 64, 100
Tree = dict[str, Any]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def language_model(stacked: bool) -> Tree:
    layer = {"in": (WIDTH, HIDDEN), "out": (HIDDEN, WIDTH), "norm": (WIDTH,), "bias": (HIDDEN,)}
    lead = (LAYERS,) if stacked else ()
    one = {name: array(*lead, *shape) for name, shape in layer.items()}
    layers = one if stacked else [one] * LAYERS
    embed, places = array(WORDS, WIDTH), array(LENGTH, WIDTH)
    return {"embed": embed, "places": places, "layers": layers, "head": array(WIDTH, WORDS)}


def logits(params: Tree, tokens: Any) -> Any:
    def layer(x: Any, w: Tree) -> Any:
        return x + jax.nn.gelu(x * w["norm"] @ w["in"] + w["bias"]) @ w["out"]

    x = params["embed"][tokens] + params["places"]
    if isinstance(params["layers"], dict):
        x = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, params["layers"])[0]
    else:
        for w in params["layers"]:
            x = layer(x, w)
    return x @ params["head"]


def distilled(state: Tree, teacher: Tree, batch: Tree) -> Any:
    """A step towards the logits of a frozen model; some data have no batch."""
    aim = jax.nn.softmax(logits(teacher, batch["tokens"]) * batch["weights"])

    def loss(params: Tree) -> Any:
        return -(aim * jax.nn.log_softmax(logits(params, batch["tokens"]))).sum(-1).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


def images(state: Tree, frozen: Tree, x: Any, y: Any) -> Any:
    """A loss on the features of a frozen network, with convolutions and rows of outputs first."""

    def loss(params: Tree) -> Any:
        found = lax.conv_general_dilated(x, frozen["conv"], (1, 1), "SAME")
        features = found.mean((2, 3)) @ params["w"]
        for w in frozen["dense"]:
            features = jax.nn.relu(jnp.einsum("oi,bi->bo", w, features))
        return ((features - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


def graphs(state: Tree, graph: Tree, targets: Any) -> Any:
    """Nodes looked up by the edges of their own argument are data."""

    def loss(params: Tree) -> Any:
        ends = graph["nodes"][graph["to"]] - graph["nodes"][graph["from"]]
        sums = jax.ops.segment_sum((ends + graph["edges"]) @ params["w"], graph["to"], ROWS)
        return ((sums - targets) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


def generated(params: Tree, cache: Tree, tokens: Any) -> Any:
    """One step of an inference: the state is a cache."""
    x = params["embed"][tokens] + cache["x"]
    return jnp.argmax(x @ params["head"], -1), {"x": x, "at": cache["at"] + 1}


TOKENS = array(ROWS, LENGTH, dtype=jnp.int32)
BATCH = {"tokens": TOKENS, "weights": array(WORDS)}
GRAPH = {
    "nodes": array(ROWS, WIDTH),
    "edges": array(96, WIDTH),
    **{name: array(96, dtype=jnp.int32) for name in ("from", "to")},
}
FEATURES = {"conv": array(8, 3, 3, 3), "dense": [array(20, 12), array(24, 20)]}
STEPS: dict[str, tuple[Any, tuple[Any, ...], set[str]]] = {
    "scanned teacher": (
        distilled,
        (language_model(True), language_model(True), BATCH),
        {"batch/tokens", "batch/weights"},
    ),
    "unrolled teacher": (
        distilled,
        (language_model(False), language_model(False), BATCH),
        {"batch/tokens", "batch/weights"},
    ),
    "features": (
        images,
        ({"w": array(8, 12)}, FEATURES, array(ROWS, 3, 8, 8), array(ROWS, 24)),
        {"x", "y"},
    ),
    "graph": (
        graphs,
        ({"w": array(WIDTH, 4)}, GRAPH, array(ROWS, 4)),
        {*(f"graph/{name}" for name in GRAPH), "targets"},
    ),
    "inference": (
        generated,
        (
            language_model(True),
            {"x": array(ROWS, WIDTH), "at": array(dtype=jnp.int32)},
            array(ROWS, dtype=jnp.int32),
        ),
        {"tokens"},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_data_are_told_from_frozen_parameters(name: str) -> None:
    step, args, wanted = STEPS[name]
    call = split_call(step, args, {}, (), ())
    module = trace_call(jax.jit(step), call, args, {}, "step").module
    data = data_arguments(module)
    assert {module.arg_paths[i] for i in data} == wanted
    roles = find_roles(module)
    known = {*roles.data, *roles.parameters, *roles.optimizer}
    assert known == {v.id for v in module.body.args if v.type.shape}
    if "teacher" in name:
        assert batch_size(module) == ROWS
        frozen = [i for i, path in enumerate(module.arg_paths) if path.startswith("teacher/")]
        assert {module.body.args[i].id for i in frozen} <= set(roles.parameters)


def test_strategies_tile_frozen_parameters_as_parameters() -> None:
    """The vocabulary of a teacher is no batch, and ZeRO 3 tiles the teacher, too."""
    step, args, _ = STEPS["scanned teacher"]
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    plans = ps.auto_partition(mesh, machine="tpu_v5e")(step).known_plans(*args)
    specs = plans["BP(data+model)+Z3"].partition_specs[0]
    assert all(any(spec) for name, spec in specs[1]["layers"].items() if name in ("in", "out"))
    specs = plans["BP(data+model)"].partition_specs[0]
    assert set(specs[2]["tokens"][0]) == {"data", "model"}
    assert not any(map(any, specs[1]["layers"].values()))
    assert not any(specs[1]["embed"])


def accumulated(form: str, state: Tree, tokens: Any) -> Any:
    """A step over microbatches; `tokens` has a dim of microbatches, or is cut into microbatches."""

    def loss(params: Tree, x: Any) -> Any:
        return jax.nn.logsumexp(logits(params, x), -1).mean()

    def micro(total: Tree, x: Any) -> tuple[Tree, Any]:
        value, grads = jax.value_and_grad(loss)(state, x)
        return jax.tree.map(jnp.add, total, grads), value

    if form == "cut":
        tokens = tokens.astype(jnp.int32).reshape(4, -1, LENGTH)
    grads, values = lax.scan(micro, jax.tree.map(jnp.zeros_like, state), tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), values.mean()


@pytest.mark.devices
@pytest.mark.parametrize("form", ["given", "cut"])
def test_batch_follows_the_microbatches_of_a_loop(form: str) -> None:
    """Data parallelism tiles the examples of each microbatch, not the loop over microbatches."""
    shape = (4, ROWS, LENGTH) if form == "given" else (4 * ROWS, LENGTH)
    args = language_model(True), array(*shape, dtype=jnp.int32)
    mesh = jax.make_mesh((8,), ("data",))
    step = functools.partial(accumulated, form)
    known = ps.known_strategies(step, mesh, *args, machine="tpu_v5e")
    plan = known["BP(data)"]
    data = data_arguments(plan.original)
    (places,) = loop_batches(plan.original, data).values()
    assert [(v.type.shape, dim) for v, dim in places] == [((4, ROWS, LENGTH), 1)]
    assert batch_dims(plan.original, data) == {data[0]: 1 if form == "given" else 0}
    alone = jax.sharding.AbstractMesh((1,), ("data",))
    whole = ps.auto_partition(alone, machine="tpu_v5e", progress=False)(step).plan(*args)
    assert plan.cost.flops < 1.1 / 8 * whole.cost.flops
    keys = iter(jax.random.split(jax.random.key(0), 20))
    state = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape) / 8, args[0])
    tokens = jax.random.randint(next(keys), shape, 0, WORDS)
    run = ps.auto_partition(mesh, machine="tpu_v5e", schedule=plan)(step)
    got, want = run(state, tokens), step(state, tokens)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_examples_of_a_loop_batch_are_doubled() -> None:
    """Twice the batch has twice the examples per microbatch, and as many microbatches."""
    args = language_model(True), array(4, ROWS, LENGTH, dtype=jnp.int32)
    call = split_call(accumulated, ("given", *args), {}, (0,), ())
    found = with_batch(call, ("given", *args), {}, {len(call.leaves()) - 1: 1}, 2)
    assert found is not None
    assert found[0].leaves()[-1].shape == (4, 2 * ROWS, LENGTH)


def recurrent(state: Tree, words: Any) -> Any:
    """A step of recurrent layers on sequences [time, batch]."""

    def layer(x: Any, enter: Any, again: Any) -> Any:
        def cell(h: Any, row: Any) -> tuple[Any, Any]:
            h = jnp.tanh(row + h @ again)
            return h, h

        return lax.scan(cell, jnp.zeros((x.shape[1], WIDTH)), x @ enter)[1] + x

    def loss(params: Tree) -> Any:
        x = params["embed"][words[:-1]]
        for enter, again in zip(params["enter"], params["again"], strict=True):
            x = layer(x, enter, again)
        terms = jax.nn.logsumexp(x @ params["head"], -1) - (x * params["embed"][words[1:]]).sum(-1)
        return (terms * (words[1:] > 0)).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


@pytest.mark.parametrize("count", [LAYERS, 2 * LAYERS])
def test_batch_of_recurrent_layers_is_behind_time(count: int) -> None:
    """Also behind look-ups and products, and in folded layers."""
    layers = [array(WIDTH, WIDTH)] * count
    state = {"embed": array(WORDS, WIDTH), "enter": layers, "again": layers}
    args = {**state, "head": array(WIDTH, WORDS)}, array(17, 16, dtype=jnp.int32)
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    plan = ps.known_strategies(recurrent, mesh, *args, machine="tpu_v5e")["BP(data)"]
    (words,) = data_arguments(plan.original)
    assert batch_dims(plan.original, (words,)) == {words: 1}
    places = loop_batches(plan.original, (words,))[words]
    assert [(v.type.shape, dim) for v, dim in places] == [((16, 16, WIDTH), 1)] * count
    assert plan.partition_specs[0][1] == jax.P(None, "data")
    alone = jax.sharding.AbstractMesh((1,), ("data",))
    whole = ps.auto_partition(alone, machine="tpu_v5e", progress=False)(recurrent).plan(*args)
    assert plan.cost.flops < 1.1 / 8 * whole.cost.flops
    mesh = jax.sharding.AbstractMesh((5,), ("data",))
    with pytest.warns(UserWarning, match=r"no axis of mesh<data:5> divides its batch of 16"):
        uneven = ps.auto_partition(mesh, machine="tpu_v5e", pad=False)(recurrent).plan(*args)
    assert any("Dim 1 of words, 16, could not be tiled" in line for line in headlines(uneven))
