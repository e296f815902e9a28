"""Cost tables against the simulator, on random states of small programs.

`python -m experiments.cost_tables --states=1000` does this for programs of the catalog.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.random_states import random_partitions, ratios
from experiments.small_programs import enumerated, module_of
from partir_search.exact.alternation import Choices
from partir_search.exact.elimination import eliminate
from partir_search.exact.proof import prove
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.planning.exact_steps import ExactSteps
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.simulator.tables.tables import CostTables
from partir_search.simulator.target.machine import MACHINES
from tests.support import module_of as traced

GRID, LINE = MeshShape(("data", "model"), (4, 2)), MeshShape(("data",), (4,))
SQUARE = MeshShape(("data", "model"), (2, 2))
NARROW = MeshShape(("data", "one"), (4, 1))
NEAR = 5e-4


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def scanned(w: Any, x: Any, bias: Any) -> Any:
    """Layers in a scan, with remat, and their gradient."""

    def loss(w: Any) -> Any:
        layer = jax.checkpoint(lambda h, each: (jnp.tanh(h @ each + bias), h.sum()))
        h, sums = jax.lax.scan(layer, x, w)
        return (h**2).mean() + sums.mean()

    return w - jax.grad(loss)(w)


def looped(w: Any, x: Any, n: Any) -> Any:
    """A while loop with a data-dependent end."""
    return jax.lax.while_loop(
        lambda c: (c[1] < n) & (c[0].sum() < 1e6), lambda c: (jnp.tanh(c[0] @ w), c[1] + 1), (x, 0)
    )


def convolved(kernel: Any, image: Any, head: Any) -> Any:
    """A convolution with its halo, a roll, and the gradients of both."""

    def loss(kernel: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=dims)
        y = jnp.concatenate((y[:, 1:], y[:, :1]), axis=1) + y
        return jnp.mean((jax.nn.relu(y) @ head) ** 2)

    return kernel - jax.grad(loss)(kernel)


def tied(table: Any, w: Any, tokens: Any) -> Any:
    """An embedding used twice: sums of both gradients travel to where they meet."""

    def loss(params: Any) -> Any:
        table, w = params
        h = jax.nn.relu(table[tokens] @ w)
        return jax.nn.logsumexp(h @ table.T, axis=-1).mean() + (h**2).max(axis=0).sum()

    grads = jax.grad(loss)((table, w))
    return table - grads[0], w - grads[1]


def crossed(table: Any, rows: Any, head: Any) -> Any:
    """Products of the rows of one example with each other, and the gradient of the table."""

    def loss(table: Any) -> Any:
        x = table[rows]
        pairs = jnp.einsum("bif,bjf->bij", x, x)
        return jnp.mean((pairs.reshape(len(x), -1) @ head) ** 2)

    return table - jax.grad(loss)(table)


def unaligned(table: Any, x: Any) -> Any:
    """Products with dims whose tiles are no multiple of 16 bytes, and with a dim of one element."""

    def loss(table: Any) -> Any:
        logits = x @ table
        return jax.nn.logsumexp(logits, axis=-1).mean() + (logits[:, None] ** 2).mean()

    return table - jax.grad(loss)(table)


def windows(qkv: Any, out: Any, x: Any) -> Any:
    """Attention of 24 positions with heads of 40 numbers, and a norm in groups of 24."""

    def loss(qkv: Any) -> Any:
        parts = x.reshape(*x.shape[:-1], 8, -1)
        y = (parts - parts.mean(-1, keepdims=True)).reshape(x.shape)
        q, k, v = jnp.split((y @ qkv).reshape(*x.shape[:-1], 4, 120), 3, axis=-1)
        shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        read = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(*x.shape[:-1], -1)
        return jnp.mean((read @ out) ** 2)

    return qkv - jax.grad(loss)(qkv)


def scattered(rows: Any, places: Any, more: Any) -> Any:
    """A scatter into rows that fill 128 lanes in part."""
    return jnp.tanh(rows.at[places].add(more))


I32 = jax.ShapeDtypeStruct((4096,), jnp.int32)
OWN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scanned": (scanned, (f32(4, 1024, 1024), f32(4096, 1024), f32(1024))),
    "looped": (looped, (f32(512, 512), f32(2048, 512), jax.ShapeDtypeStruct((), jnp.int32))),
    "convolved": (convolved, (f32(3, 3, 64, 128), f32(64, 32, 32, 64), f32(128, 256))),
    "crossed": (
        crossed,
        (f32(8192, 128), jax.ShapeDtypeStruct((4096, 12), jnp.int32), f32(144, 8)),
    ),
    "tied": (tied, (f32(8192, 512), f32(512, 512), I32)),
    "windows": (windows, (f32(192, 480), f32(160, 192), f32(256, 24, 192))),
    "unaligned": (unaligned, (f32(1024, 8200), f32(4096, 1024))),
    "scattered": (scattered, (f32(8192, 192), I32, f32(4096, 192))),
}


@functools.lru_cache(maxsize=2)
def module_named(name: str) -> Module:
    return traced(OWN[name][0], *OWN[name][1]) if name in OWN else module_of(name)


def game_on(name: str, mesh: MeshShape, machine: str) -> PlanningGame:
    return Planner(module_named(name), mesh, MACHINES[machine]).game(mesh.names)[1]


MOVED = [name for name in OWN if name != "scattered"]  # moves reach its slices rarely
PROGRAMS = ("mlp 2 bias", "adam", "attention", "experts", "classifier", *MOVED)


@pytest.mark.parametrize("machine", ["tpu_v5e", "tpu_v5p", "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tables_agree_with_the_simulator(name: str, machine: str) -> None:
    """Exact where linearised, and never above as a bound, on two meshes."""
    for mesh in (GRID, SQUARE):
        game = game_on(name, mesh, machine)
        tables = CostTables(game.graph, game.model, game.mesh, game.state)
        found = ratios(game, tables, random_partitions(game, 30))
        for each in found:
            assert each.at == pytest.approx(1.0, abs=NEAR)
            assert max(each.below) <= 1.0 + NEAR
        assert max(r.below[1] for r in found) > 0.9


@pytest.mark.parametrize("name", ["scattered", "tied"])
def test_tables_agree_at_random_assignments(name: str) -> None:
    """States that no moves reach: all tilings and loops at random."""
    steps = ExactSteps(game_on(name, SQUARE, "tpu_v5e"))
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = [rng.integers(count) for count in steps.tables.variables.sizes]
        labels = steps.realised(np.array(drawn))
        steps.tables.variables.assign(labels, steps.game.state)
        partition = steps.game.state.partition()
        program = localize(partition, steps.game.cache, sparse=True)
        seconds = steps.game.model.evaluate(program).seconds
        assert steps.tables.at(partition).energy(labels) == pytest.approx(seconds, rel=NEAR)
        assert steps.tables.below(partition).energy(labels) <= seconds * (1.0 + NEAR)


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
def test_both_orders_of_axes(machine: str) -> None:
    """Some states nest the axes the other way, where both tile one dim."""
    game = game_on("mlp 2 bias", GRID, machine)
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    found = ratios(game, tables, random_partitions(game, 150, seed=1))
    assert {r.order for r in found} == {(0, 1), (1, 0)}
    assert all(abs(r.at - 1.0) < NEAR and max(r.below) < 1.0 + NEAR for r in found)


@pytest.mark.parametrize("machine", ["tpu_v5e", "tpu_v5p", "h100"])
@pytest.mark.parametrize("name", ["linear", "mlp 2", "mlp 3", "mlp 4 loss", "classifier"])
def test_bounds_are_below_the_enumerated_optimum(name: str, machine: str) -> None:
    """The minimum of the bound over all labels, on a mesh of one axis, by exact elimination."""
    game = game_on(name, LINE, machine)
    record = enumerated(game, 4000)
    assert record is not None
    played = len(list(play(game, record.best.path)))
    partition, cost = game.state.partition(), game.cost()
    rewind(game, played)
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    proof = prove(tables.below(partition))
    assert proof.exact
    tightest = 0.8 if machine == "tpu_v5p" else 0.3  # others may hide all gathers behind compute
    assert tightest * cost.seconds < proof.bound <= cost.seconds * (1.0 + NEAR)


@pytest.mark.parametrize("name", ["attention", "unaligned"])
def test_axes_of_one_device(name: str) -> None:
    """States with tiles on an axis of one device, of a dim of one element too, have labels."""
    game = game_on(name, NARROW, "h100")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    found = ratios(game, tables, random_partitions(game, 30))
    assert all(abs(r.at - 1.0) < NEAR and max(r.below) < 1.0 + NEAR for r in found)
    assert all((sets.codes[:, 1] == -1).all() for sets in tables.variables.sets)


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("name", ["attention", "scanned", "convolved", "tied"])
def test_tables_of_some_labels_are_those_of_all(name: str, machine: str) -> None:
    """Read along one axis, with only the moves priced that its labels call for."""
    game = game_on(name, GRID, machine)
    whole, some = (CostTables(game.graph, game.model, game.mesh, game.state) for _ in range(2))
    choices, sets = Choices(), whole.variables.sets
    for axis, partition in enumerate(random_partitions(game, 2)):
        kept = choices([labels.groups(axis) for labels in sets], whole.labels_of(partition))
        expected = whole.at(partition).restricted(kept)
        found = some.at(partition, kept)
        assert found.constant == pytest.approx(expected.constant)
        for one, other in zip(found.unary, expected.unary, strict=True):
            assert one == pytest.approx(other)
        assert found.pairs.keys() == expected.pairs.keys()
        for pair, table in found.pairs.items():
            assert table == pytest.approx(expected.pairs[pair])


def test_labels_come_back_from_states() -> None:
    """Labels that are given to a state are those of its partition."""
    game = game_on("attention", GRID, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    for partition in random_partitions(game, 20):
        labels = tables.labels_of(partition)
        tables.variables.assign(labels, game.state)
        again = game.state.partition()
        assert np.array_equal(tables.labels_of(again), labels)
        costs = [
            game.model.evaluate(localize(p, game.cache, sparse=True)).seconds
            for p in (partition, again)
        ]
        assert costs[0] == costs[1]


def test_assignments_of_exact_steps_cost_as_predicted() -> None:
    """The minimum of the costs linearised at a plan, given to a state: the simulator agrees that
    it is no worse than the plan, and the tables are exact there again.
    """
    game = game_on("mlp 3", LINE, "tpu_v5p")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    partition = next(random_partitions(game, 1))
    before = game.model.evaluate(localize(partition, game.cache, sparse=True)).seconds
    best = eliminate(tables.at(partition))
    tables.variables.assign(best.labels, game.state)
    after = game.state.partition()
    seconds = game.model.evaluate(localize(after, game.cache, sparse=True)).seconds
    assert seconds <= before * (1.0 + NEAR)
    labels = tables.labels_of(after)
    assert tables.at(after).energy(labels) == pytest.approx(seconds, rel=NEAR)


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
@pytest.mark.parametrize("name", ["adam", "attention", "scanned", "tied", "windows"])
def test_peak_bytes(name: str, machine: str) -> None:
    """Exact at the program, in the model alone and added to seconds."""
    game = game_on(name, GRID, machine)
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    for partition in random_partitions(game, 20):
        program = localize(partition, game.cache, sparse=True)
        cost, labels = game.model.evaluate(program), tables.labels_of(partition)
        peak = tables.peak_at(program)
        assert peak.energy(labels) == pytest.approx(cost.peak_bytes, rel=1e-9)
        both = tables.at(partition).plus(peak, 1e-12)
        expected = cost.seconds + 1e-12 * cost.peak_bytes
        assert both.energy(labels) == pytest.approx(expected, rel=NEAR)


def test_peak_bytes_fall_with_tilings() -> None:
    """Tiling an argument takes its local bytes off the peak, as the simulator finds."""
    game = game_on("adam", LINE, "tpu_v5e")
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    partition = next(random_partitions(game, 1))
    peak = tables.peak_at(localize(partition, game.cache, sparse=True))
    labels = tables.labels_of(partition)
    weight = game.graph.class_of[game.graph.module.body.args[0].id]
    x = int(tables.variables.of_class[weight])
    each = [peak.energy(np.where(np.arange(len(labels)) == x, n, labels)) for n in (0, 1)]
    assert each[1] < each[0]


def test_diagonals_are_refused() -> None:
    mesh = MeshShape(("r", "c", "r~c"), (2, 2, 2), ("r", "c", "r~c"), ((0, 1),))
    game = game_on("mlp 2", mesh, "tpu_v5e")
    with pytest.raises(ValueError, match="rings"):
        CostTables(game.graph, game.model, game.mesh)
