"""Propagation: fixed point in both directions, conflicts, keeping whole, provenance, travel."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import REPLICATED
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Slice
from partir_search.propagation.conflicts import find_conflicts
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from tests.support import check_partition, module_of, state_of, tile_arg


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


MLP = (ones(8, 8), ones(8, 16), ones(16, 8))


def dims(state: State, axis: str) -> list[int]:
    """Dim of each argument on an axis."""
    row = state.tiles[state.mesh.index(axis)]
    return [row[state.graph.class_of[v.id]] for v in state.graph.module.body.args]


def kinds(state: State) -> list[str]:
    """Collectives of the device-local program."""
    moves = localize(state.partition()).reshards()
    return [m.step.kind for m, _ in moves if not isinstance(m.step, Slice)]


def test_forward_and_backward() -> None:
    """Megatron: tiling w1's columns reaches w2's rows; the result is one sum."""
    state = state_of(module_of(mlp, *MLP))
    tile_arg(state, 1, 1, "model")
    assert dims(state, "model") == [-1, 1, 0]
    assert kinds(state) == ["all_reduce"]
    backward = state_of(module_of(mlp, *MLP))
    tile_arg(backward, 2, 0, "model")
    assert dims(backward, "model") == [-1, 1, 0]
    assert backward.key() == state.key()


def test_order_of_independent_actions_does_not_matter() -> None:
    one, two = (state_of(module_of(mlp, *MLP)) for _ in range(2))
    tile_arg(one, 0, 0, "batch")
    tile_arg(one, 1, 1, "model")
    tile_arg(two, 1, 1, "model")
    tile_arg(two, 0, 0, "batch")
    assert one.key() == two.key()


def test_conflict_is_recorded_and_nothing_happens() -> None:
    """Both operands of an add want their own dim: neither wins."""
    state = state_of(module_of(lambda x, y: x + y, ones(8, 8), ones(8, 8)))
    x, y = (state.graph.class_of[v.id] for v in state.graph.module.body.args)
    state.tiles[0][x] = 0
    tile_arg(state, 1, 1, "batch")
    (conflict,) = find_conflicts(state)
    assert sorted(conflict.candidates) == [(0, x), (1, y)]
    assert kinds(state) == ["all_gather", "all_gather"]
    check_partition(state.partition(), lambda x, y: x + y, (ones(8, 8), ones(8, 8)))


def test_earlier_wins() -> None:
    """After batch parallelism a weight on the batch axis is gathered where it is used."""
    state = state_of(module_of(mlp, *MLP))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 0, "batch")
    assert dims(state, "batch") == [0, 0, -1]
    assert kinds(state) == ["all_gather"]


def test_kept_values_stop_propagation() -> None:
    state = state_of(module_of(mlp, *MLP))
    w2 = state.graph.module.body.args[2]
    state.replicate(state.graph.class_of[w2.id], (1,))
    tile_arg(state, 1, 1, "model")
    assert dims(state, "model") == [-1, 1, REPLICATED]
    check_partition(state.partition(), mlp, MLP)


def test_refusals() -> None:
    state = state_of(module_of(mlp, *MLP))
    tile_arg(state, 0, 0, "model")
    with pytest.raises(IllegalAction, match="cannot be tiled on dim 1 along axis 'model'"):
        tile_arg(state, 0, 1, "model")
    with pytest.raises(IllegalAction, match="is decided along axis 'model'"):
        state.replicate(state.graph.class_of[0], (1,))
    odd = state_of(module_of(lambda x: x * 2, ones(6, 3)))
    with pytest.raises(IllegalAction, match="cannot be tiled on dim 0"):
        tile_arg(odd, 0, 0, "model")
    tile_arg(odd, 0, 0, "batch")
    with pytest.raises(IllegalAction, match="dim 1"):
        tile_arg(odd, 0, 1, "model")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_sums_of_gradients_are_reduced_once(dtype: Any) -> None:
    """Three uses of x give three partial gradients and one all_reduce."""

    def f(x: Any, q: Any, k: Any, v: Any) -> Any:
        return jax.grad(lambda y: sum((y @ w).sum() for w in (q, k, v)))(x)

    args = [x.astype(dtype) for x in (ones(4, 8), *(ones(8, 8),) * 3)]  # small numbers: exact
    state = state_of(module_of(f, *args))
    for i in (1, 2, 3):
        tile_arg(state, i, 1, "model")
    assert kinds(state) == ["all_reduce"]
    check_partition(state.partition(), f, args)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_tiles_of_a_vocabulary_are_looked_up(dtype: Any) -> None:
    """Each device adds the words that it has: the table is gathered nowhere."""
    args = (jnp.arange(64, dtype=dtype).reshape(16, 4), jnp.arange(0, 16, 2))
    state = state_of(module_of(lambda table, words: table[words] * 2, *args))
    tile_arg(state, 0, 0, "model")
    assert kinds(state) == ["all_reduce"]
    check_partition(state.partition(), lambda table, words: table[words] * 2, args)


@pytest.mark.parametrize("scattered", [False, True])
def test_what_numbers_point_into_gives_way(scattered: bool) -> None:
    """Edges look up nodes of which each device has some: the nodes are gathered, or the partial
    sums of what is scattered to them are added, rather than all edges sent.
    """

    def f(nodes: Any, edges: Any, ends: Any) -> Any:
        return nodes.at[ends].add(edges) if scattered else nodes[ends] * edges

    random = np.random.default_rng(0)
    nodes, edges = ones(8, 4), ones(64, 4)
    args = (nodes, edges, random.integers(0, 8, 64))
    state = state_of(module_of(f, *args))
    classes = [state.graph.class_of[v.id] for v in state.graph.module.body.args]
    state.tile(classes[0], 0, state.mesh.axes("batch"), also=classes[1:])
    sent = {m.payload_bytes for m, _ in localize(state.partition()).reshards()}
    assert sent == {nodes.nbytes}
    check_partition(state.partition(), f, args)


def test_reduce_scatter_where_the_sum_is_needed_tiled() -> None:
    def f(x: Any, w: Any, m: Any) -> Any:
        return m + x.T @ (x @ w)

    args = (ones(8, 4), ones(4, 8), ones(4, 8))
    state = state_of(module_of(f, *args))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 2, 0, "batch")
    assert kinds(state) == ["reduce_scatter"]
    check_partition(state.partition(), f, args)


def test_two_axes_on_one_dim_put_the_gathered_one_last() -> None:
    """w2 rests on (model, batch): one all_gather over batch gives what the matmul needs."""
    state = state_of(module_of(mlp, *MLP))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 1, "model")
    tile_arg(state, 2, 0, "batch")
    partition = state.partition()
    assert partition.order == (1, 0)
    assert partition.layout(partition.module.body.args[2]) == ((1, 0), ())
    assert kinds(state) == ["all_gather", "all_reduce"]
    check_partition(partition, mlp, MLP)


def test_scan_carries_agree() -> None:
    def f(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum(1)), x, ws)

    args = (ones(8, 8), ones(3, 8, 8))
    state = state_of(module_of(f, *args))
    tile_arg(state, 0, 0, "batch")
    partition = state.partition()
    op = next(op for op in partition.module.ops if op.prim == "scan")
    assert partition.layout(op.results[0]) == ((0,), ())
    assert partition.layout(op.results[1]) == ((), (0,))
    assert kinds(state) == []
    check_partition(partition, f, args)


def loops(x: Any, w: Any, n: Any) -> Any:
    """While with constants in condition and body, reversed scan with constants, cond."""

    def body(c: Any) -> Any:
        return c[0] + 1, jnp.tanh(c[1] @ w)

    _, y = jax.lax.while_loop(lambda c: c[0] < n, body, (0, x))
    z, ys = jax.lax.scan(lambda c, a: (c * 0.5 + a @ w, c), y, jnp.stack([x, y]), reverse=True)
    return jax.lax.cond(n > 2, lambda a, b: a @ w + b, lambda a, b: a - b, z, ys[0]), ys


@pytest.mark.parametrize("arg,dim,axis", [(0, 0, "batch"), (0, 1, "model"), (1, 1, "model")])
def test_control_flow(arg: int, dim: int, axis: str) -> None:
    args = (ones(8, 8) * 0.1, ones(8, 8) * 0.1, jnp.int32(3))
    state = state_of(module_of(loops, *args))
    tile_arg(state, arg, dim, axis)
    tile_arg(state, 0, 0, "model" if axis == "batch" else "batch")
    check_partition(state.partition(), loops, args)


def test_state_in_and_out_are_one() -> None:
    def f(p: Any, m: Any, x: Any) -> Any:
        m = 0.9 * m + x.T @ (x @ p)
        return p - m, m

    args = (ones(4, 8), ones(4, 8), ones(8, 4))
    module = module_of(f, *args, ties=((0, 0), (1, 1)))
    zero3 = state_of(module)
    tile_arg(zero3, 2, 0, "batch")
    tile_arg(zero3, 1, 1, "batch")
    assert dims(zero3, "batch") == [1, 1, 0]
    zero2 = state_of(module)
    tile_arg(zero2, 2, 0, "batch")
    zero2.replicate(zero2.graph.class_of[module.body.args[0].id], (0,))
    tile_arg(zero2, 1, 1, "batch")
    assert dims(zero2, "batch") == [REPLICATED, 1, 0]
    assert kinds(zero2) == ["reduce_scatter", "all_gather"]
    check_partition(zero2.partition(), f, args)


def test_random_bits_are_sliced() -> None:
    def f(key: Any, x: Any) -> Any:
        k1, k2 = jax.random.split(key)
        mask = jax.random.bernoulli(k1, 0.5, x.shape)
        noise = jax.random.normal(k2, x.shape) + jax.random.uniform(key, (8, 4), jnp.bfloat16)
        return jnp.where(mask, x, noise), jax.random.randint(k1, (8,), 0, 100)

    for key in (jax.random.key(0), jax.random.key(0, impl="rbg")):
        args = (key, ones(8, 4))
        state = state_of(module_of(f, *args))
        tile_arg(state, 1, 0, "batch")
        tile_arg(state, 1, 1, "model")
        assert kinds(state) == []
        check_partition(state.partition(), f, args)


def test_explain(mesh: jax.sharding.Mesh) -> None:
    schedule = [
        ps.ManualPartition({"x": 0}, axis="batch"),
        ps.ManualPartition({"w1": 1}, axis="model"),
    ]
    plan = ps.auto_partition(mesh, schedule=schedule, machine="cpu")(mlp).plan(*MLP)
    assert plan.explain("x").splitlines() == [
        "x: f32[8,8]",
        "  batch: dim 0, by Tile(value='x', dim=0, axis='batch')",
        "  model: replicated (nothing reached it)",
    ]
    text = plan.explain("w2")
    assert "model: dim 0, by propagation of Tile(value='w1', dim=1, axis='model') through" in text
    assert "dot_general" in text
    assert "test_propagate.py" in text
    assert "replicated" in plan.explain("w*")
    with pytest.raises(ValueError, match="no argument or value 'w9'; near it are: w1, w2, x"):
        plan.explain("w9")


@pytest.mark.parametrize("seed", range(6))
def test_what_was_propagated_before_is_repeated_exactly(seed: int) -> None:
    """Random walks with undo on three axes: states that share memo equal one that does not."""

    def attention(x: Any, w: Any, o: Any) -> Any:
        q = (x @ w).reshape(4, 8, 4, 2, 4)
        p = jax.nn.softmax(jnp.einsum("bqhge,bkhge->bhgqk", q, q), axis=-1)
        y = jnp.einsum("bhgqk,bkhge->bqhge", p, q).reshape(4, 8, 32) @ o
        return jax.grad(lambda o: (x * y.sum()).sum())(o)

    graph = Graph(module_of(attention, ones(4, 8, 16), ones(16, 32), ones(32, 16)), contract=True)
    mesh = MeshShape(("a", "b", "c"), (2, 2, 4))  # what was done on a is done again on b
    draw, memo = random.Random(seed), dict[Any, Any]()
    several = [(0,), (1,), (2,), (0, 1), (1, 2)]
    ranked = [c for c, shape in enumerate(graph.shapes) if shape]
    pool = []
    for _ in range(10):
        cls = draw.choice(ranked)
        dim = draw.randrange(len(graph.shapes[cls]))
        also = tuple(c for c in draw.sample(ranked, 2) if len(graph.shapes[c]) > dim)
        pool.append((cls, dim, draw.choice(several), also))
    replayed = 0
    for _ in range(30):
        shared, fresh = State(graph, mesh, memo=memo), State(graph, mesh, record=True)
        marks: list[tuple[bytes, bytes]] = []
        for _ in range(10):
            cls, dim, axes, also = draw.choice(pool)
            marks.append((shared.key(), fresh.key()))
            if draw.random() < 0.2:
                back = draw.choice(marks)
                shared.restore(back[0])
                fresh.restore(back[1])
                marks = marks[: marks.index(back)]
            elif draw.random() < 0.2 and fresh.free(cls, axes):
                shared.replicate(cls, axes)
                fresh.replicate(cls, axes)
            elif fresh.may_tile(cls, dim, axes):
                known = set(map(id, itertools.chain(*memo.values())))
                shared.tile(cls, dim, axes, also)
                replayed += known.issuperset(map(id, itertools.chain(*memo.values())))
                fresh.tile(cls, dim, axes, also)
            assert shared.key() == fresh.key()
        shared.restore(State(graph, mesh).key())
        assert shared.key() == State(graph, mesh).key()
    assert replayed >= 10
