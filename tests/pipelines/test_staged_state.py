"""Train state by stage: executed against the plain step, converted, saved, refused."""

from __future__ import annotations

import functools
import math
import pathlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.staged_state import LayerOrder
from partir_search.passes.pipeline.layer_order import staged_by_stage, to_layers, to_stages
from partir_search.passes.pipeline.stage_arrays import by_stage
from partir_search.plan.report.summary import summary
from partir_search.plan.staged_order import reorder_stages
from tests.support import assert_same

LAYERS, WIDTH, WORDS, BATCH, LENGTH = 4, 8, 12, 16, 4
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(1e-2))
TOKENS = ps.ManualPartition({"tokens": 0}, "data")


def layer(h: Any, p: Any) -> Any:
    return h + jnp.sin(h @ p["up"] + p["bias"]) @ p["down"]


def initial(scanned: bool, optimizer: Any = OPTIMIZER) -> Any:
    """State of an embedding and of layers, in one stack or each its own."""
    keys = iter(jax.random.split(jax.random.key(0), 4))

    def draw(*shape: int) -> Any:
        return 0.3 * jax.random.normal(next(keys), shape)

    stacks = {
        "up": draw(LAYERS, WIDTH, 2 * WIDTH),
        "bias": draw(LAYERS, 2 * WIDTH),
        "down": draw(LAYERS, 2 * WIDTH, WIDTH),
    }
    apart = [jax.tree.map(lambda x, i=i: x[i], stacks) for i in range(LAYERS)]
    params = {"embedding": draw(WORDS, WIDTH), "layers": stacks if scanned else apart}
    return {"params": params, "opt": optimizer.init(params)}


def data() -> Any:
    return jax.random.randint(jax.random.key(1), (BATCH, LENGTH + 1), 0, WORDS)


def make_step(
    scanned: bool,
    optimizer: Any = OPTIMIZER,
    logged: Callable[[Any], Any] = lambda layers: 0.0,
) -> Callable[..., Any]:
    """Step that returns the new state and a pair of the loss and what is logged of the layers."""

    def step(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            h = params["embedding"][tokens[:, :-1]]
            if scanned:
                h, _ = jax.lax.scan(lambda h, p: (layer(h, p), None), h, params["layers"])
            else:
                h = functools.reduce(layer, params["layers"], h)
            scores = jax.nn.log_softmax(h @ params["embedding"].T)
            return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt}, (value, logged(state["params"]["layers"]))

    return step


def partitioned(mesh: Any, step: Any, *tactics: Any, **options: Any) -> Any:
    pipeline = {"microbatches": 4, "staged_state": True, **options}
    schedule = [ps.Pipeline("stage", **pipeline), *tactics]
    return ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, episodes=20)(
        jax.jit(step, donate_argnums=0)
    )


def exchanged(plan: Any) -> int:
    """Collectives along the stages, but for permutes, of values larger than numbers."""
    return sum(
        c.kind in ("all_to_all", "all_gather", "reduce_scatter") and "stage" in c.axes
        for c in plan.collectives
    )


# Orders of layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "numbers"),
    [(None, (2, 2, 2)), (None, (4, 1, 2)), (0, (2, 1, 3)), (1, (2, 2, 2)), (2, (3, 2, 1))],
)
def test_tiles_hold_layers_of_their_stage(dim: int | None, numbers: tuple[int, int, int]) -> None:
    """Every element keeps its stage, there and back nothing is lost, and stages find their rows."""
    stages, chunks, length = numbers
    count, order = math.prod(numbers), LayerOrder(stages, chunks, dim)
    shape = 12, 24, 36
    x = np.arange(count * math.prod(shape)).reshape(count, *shape)
    rows = to_stages([x] if dim is None else list(x), order)
    for row in rows if dim is not None else ():
        for stage, tile in enumerate(np.split(np.asarray(row), stages, axis=dim)):
            layers = np.unique(tile // math.prod(shape))
            assert set(layers // length % stages) == {stage}
    stack = rows[0] if dim is None else jnp.stack(rows)
    np.testing.assert_array_equal(staged_by_stage(stack, order), by_stage(x, stages, chunks))
    back = to_layers(rows, order)
    np.testing.assert_array_equal(back[0] if dim is None else jnp.stack(back), x)


# Executed ----------------------------------------------------------------------------------------


@pytest.mark.devices
@pytest.mark.parametrize(
    ("scanned", "shape", "chunks", "tactics"),
    [
        (False, (4, 2, 1), 1, (TOKENS,)),
        (False, (2, 2, 2), 2, (ps.AutomaticPartition(),)),
        (True, (2, 2, 2), 2, (ps.AutomaticPartition(),)),
        pytest.param(False, (2, 2, 2), 1, (ps.AutomaticPartition(),), marks=pytest.mark.long),
        pytest.param(True, (4, 2, 1), 1, (TOKENS,), marks=pytest.mark.long),
    ],
)
def test_three_steps(
    scanned: bool, shape: tuple[int, ...], chunks: int, tactics: tuple[Any, ...]
) -> None:
    """Adam and clipping by the global norm: nothing is exchanged at the edge of a step."""
    mesh = jax.make_mesh(shape, ("stage", "data", "model"), devices=jax.devices()[:8])
    plain = jax.jit(make_step(scanned))
    step = partitioned(mesh, make_step(scanned), *tactics, chunks=chunks)
    first, tokens = initial(scanned), data()
    plan = step.plan(first, tokens)
    assert not exchanged(plan)
    text = step.lower(first, tokens).as_text()
    assert "all_to_all" not in text
    edges = partitioned(mesh, make_step(scanned), *tactics, chunks=chunks, staged_state=False)
    other = edges.plan(first, tokens)
    if not scanned or chunks > 1:
        assert exchanged(other)
        assert plan.cost.bytes_by_axis["stage"] < other.cost.bytes_by_axis["stage"]
    state = plan.skew(first)
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(first), 0)
    where = jax.tree.leaves(plan.in_shardings[0][0])
    assert [x.sharding for x in jax.tree.leaves(state)] == where
    want = first
    for _ in range(3):
        state, (loss, _) = step(state, tokens)
        want, (wanted, _) = plain(want, tokens)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(want), tolerance=1e-4)


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize("name", ["transformer-tiny", "llama-tiny", "t5-tiny"])
@pytest.mark.parametrize(("shape", "chunks"), [((4, 2, 1), 1), ((2, 2, 2), 2)])
def test_models_of_the_catalog(name: str, shape: tuple[int, ...], chunks: int) -> None:
    """A flax TrainState with layers written out, clipped by the global norm, AdamW."""
    entry = MODELS[name].resized(layers=4)
    args = jax.jit(lambda: entry.args(8))()
    mesh = jax.make_mesh(shape, ("stage", "data", "model"), devices=jax.devices()[:8])
    step = partitioned(mesh, entry.step, ps.AutomaticPartition(), chunks=chunks)
    plan = step.plan(*args)
    assert not exchanged(plan)
    assert not plan.module.staged.edges
    state, want, plain = plan.skew(args[0]), args[0], jax.jit(entry.step)
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(args[0]), 0)
    for _ in range(2):
        state, *_ = step(state, *args[1:])
        want, *_ = plain(want, *args[1:])
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(want), tolerance=1e-4)


# Plans -------------------------------------------------------------------------------------------


def planned(
    step: Any, scanned: bool = False, optimizer: Any = OPTIMIZER, stages: int = 2, **options: Any
) -> Any:
    """Plan on stages x data 2, without devices."""
    mesh = AbstractMesh((stages, 2), ("stage", "data"))
    return partitioned(mesh, step, TOKENS, **options).plan(initial(scanned, optimizer), data())


def test_saved_plans_are_replayed(tmp_path: pathlib.Path) -> None:
    plan = planned(make_step(False))
    plan.save(tmp_path / "plan.json")
    loaded = ps.load_plan(tmp_path / "plan.json")
    mesh = AbstractMesh((2, 2), ("stage", "data"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=loaded)(
        jax.jit(make_step(False), donate_argnums=0)
    )
    again = step.plan(initial(False), data())
    assert again.module.staged == plan.module.staged
    assert again.collectives == plan.collectives
    assert again.pipeline.staged_state


def test_print(golden: Callable[[str], None]) -> None:
    sgd = optax.sgd(1e-2)
    golden(planned(make_step(False, sgd), optimizer=sgd).ir())


def test_report() -> None:
    plan = planned(make_step(False))
    why = dict(summary(plan))["why this plan"]
    assert "2 stages on 'stage' (1f1b, state by stage)" in why
    assert "36 arguments hold layers by stage between steps (plan.skew, plan.unskew)" in why
    assert "of other kinds" not in why
    first = plan.module.staged.groups[0].arguments[0]
    with pytest.raises(ValueError, match="give the step all layers in one argument"):
        reorder_stages(plan.module, (), [first], [None], into=True)
    with pytest.raises(ValueError, match="pass a whole argument of the step"):
        plan.unskew(initial(False)["params"])


def test_rows_of_one_chunk_are_by_stage_anyway() -> None:
    plan = planned(make_step(True), scanned=True)
    assert plan.module.staged.groups == plan.module.staged.edges == ()
    assert not exchanged(plan)
    assert not plan.reorders_state
    assert Counter(
        g.order.dim for g in planned(make_step(True), scanned=True, chunks=2).module.staged.groups
    ) == {None: 9}


@pytest.mark.devices
def test_check() -> None:
    """The check converts arguments and results, and runs the step with the state by stage."""
    step = optax.sgd(1e-2)
    mesh = jax.make_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4])
    found = partitioned(mesh, make_step(False, step), TOKENS, chunks=2).check(
        initial(False, step), data()
    )
    assert found.ok, found.worst


# Edges and refusals ------------------------------------------------------------------------------


def per_matrix() -> Any:
    """Optimizer with the norm of each array in place of its elements: Adam's cousin LARS."""
    return optax.chain(optax.scale_by_trust_ratio(), optax.sgd(1e-2))


def test_one_kind_read_by_layer_keeps_the_layers_order() -> None:
    """A logged norm of one matrix: all matrices of the kind move, and the report says why."""
    step = make_step(False, logged=lambda layers: jnp.sum(layers[2]["up"] ** 2))
    plan = planned(step)
    (edge,) = plan.module.staged.edges
    assert edge.startswith("state/params/layers/0/up: layers 0 and 2 are updated differently: ")
    assert re.search(r"(reduce_sum|square|integer_pow) at .*test_staged_state.py:\d+", edge)
    assert sum(len(g.arguments) for g in plan.module.staged.groups) == 24
    assert "1 of other kinds move in every step" in dict(summary(plan))["why this plan"]


def test_no_flag_is_refused() -> None:
    with pytest.raises(TypeError, match="Pipeline: staged_state"):
        ps.Pipeline("stage", microbatches=4, staged_state="yes")  # type: ignore[arg-type]


def test_no_kind_by_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="no argument can be kept by stage") as error:
        planned(make_step(False, per_matrix()), optimizer=per_matrix())
    message = str(error.value)
    assert re.search(r"; state/params/layers/0/\w+: .*test_staged_state.py:\d+", message), message


# Objects -----------------------------------------------------------------------------------------


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, h: Any) -> Any:
        return h + self.down(jnp.sin(self.up(h)))


class Net(nnx.Module):
    def __init__(self) -> None:
        self.entry = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(LAYERS))
        self.blocks = nnx.List([Block(nnx.Rngs(i)) for i in range(LAYERS)])

    def __call__(self, h: Any) -> Any:
        return functools.reduce(lambda h, block: block(h), self.blocks, self.entry(h))


def objects() -> tuple[Net, nnx.Optimizer[Net]]:
    net = Net()
    return net, nnx.Optimizer(net, OPTIMIZER, wrt=nnx.Param)


def train(net: Net, optimizer: nnx.Optimizer[Net], x: Any) -> Any:
    value, grads = nnx.value_and_grad(lambda net: jnp.mean((net(x) - jnp.cos(x)) ** 2))(net)
    optimizer.update(net, grads)
    return value


@pytest.mark.devices
def test_nnx_objects() -> None:
    """Module and optimizer are converted in place; `init` makes them by stage."""
    mesh = jax.make_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4])
    x = jax.random.normal(jax.random.key(2), (BATCH, WIDTH))
    schedule = [
        ps.Pipeline("stage", microbatches=4, staged_state=True),
        ps.ManualPartition({"x": 0}, "data"),
    ]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(train)
    net, optimizer = objects()
    plan = step.plan(net, optimizer, x)
    assert sum(len(g.arguments) for g in plan.module.staged.groups) == 3 * 4 * LAYERS
    before = jax.tree.leaves(nnx.state(net))
    assert plan.skew(net) is net
    plan.skew(optimizer)
    made, _ = step.init(objects, x)
    assert_same(jax.tree.leaves(nnx.state(made)), jax.tree.leaves(nnx.state(net)), 0)
    plan.unskew(made)
    assert_same(jax.tree.leaves(nnx.state(made)), before, 0)
    want = objects()
    for _ in range(2):
        loss = step(net, optimizer, x)
        np.testing.assert_allclose(loss, train(*want, x), rtol=1e-5)
    plan.unskew(net)
    plan.unskew(optimizer)
    for node, other in zip((net, optimizer), want, strict=True):
        assert_same(jax.tree.leaves(nnx.state(node)), jax.tree.leaves(nnx.state(other)), 1e-4)
