"""Reading jaxprs, printing, checking and folding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.printer import print_partition
from partir_search.ir.verify import InvalidIR, verify, verify_partition
from partir_search.passes.fold.fold import find_repeats, fold
from partir_search.passes.fold.layers import layer_names
from partir_search.planning.trace import split_call, trace_call
from partir_search.rules.registry import rule_key
from tests.support import check_partition, module_of, state_of, ties_of, tile_arg


def matmuls(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


MATMULS = (np.ones((256, 8), "f"), np.ones((8, 16), "f"), np.ones((16, 8), "f"))


def test_calls_are_inlined_and_dead_code_is_dropped() -> None:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    double.defvjp(lambda x: (double(x), None), lambda _, g: (2 * g,))

    def f(x: Any) -> Any:
        unused = jnp.cos(x)
        return jax.jit(jax.nn.relu)(double(x)), unused[:0].sum() * 0 + x.sum()

    module = module_of(f, np.ones(4, "f"))
    prims = {op.prim for op in module.ops}
    assert not prims & {"jit", "pjit", "custom_jvp_call", "custom_vjp_call"}
    assert "max" in prims
    assert len(module_of(lambda x: (jnp.cos(x), x)[1], np.ones(4, "f")).ops) == 0


def test_regions() -> None:
    def f(x: Any) -> Any:
        y, ys = jax.lax.scan(lambda c, a: (c + a, c * a), x[0], x)
        z = jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, y)
        w = jax.lax.cond(z[0] > 0, jnp.sin, jnp.cos, z)
        return jax.grad(lambda v: jax.checkpoint(jnp.tanh)(v).sum())(w), ys

    module = module_of(f, np.ones((4, 8), "f"))
    regions = {op.prim: len(op.regions) for op in module.ops if op.regions}
    remat = next(p for p in regions if p.startswith(("remat", "checkpoint")))
    assert regions == {"scan": 1, "while": 2, "cond": 2, remat: 1}


def test_users() -> None:
    """Once per operand, in order, readers in regions too; results are no readers."""

    def fn(x: jax.Array, unread: jax.Array) -> Any:
        y = x * x
        loop, _ = jax.lax.scan(lambda c, _: (c + jnp.sin(c), None), y, length=3)
        return loop + y, unread

    module = module_of(fn, np.ones(4, np.float32), np.ones(4, np.float32))
    users = def_use(module).users
    assert len(users) == len(module.values)
    for value, readers in zip(module.values, users, strict=True):
        assert readers == [op for op in module.ops for _, v in op.inputs() if v is value]
    x, unread = module.body.args
    assert [op.prim for op in users[x.id]] == ["mul", "mul"]
    assert users[unread.id] == []


def test_names_and_sources() -> None:
    module = module_of(matmuls, *MATMULS)
    assert [v.name for v in module.body.args] == ["a0", "a1", "a2"]
    assert len({v.name for v in module.values}) == len(module.values)
    assert all("test_ir.py" in op.source for op in module.ops if op.prim == "dot_general")


def test_print_tile_and_sum(golden: Callable[[str], None]) -> None:
    state = state_of(module_of(matmuls, *MATMULS))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 1, "model")
    partition = state.partition()
    golden(print_partition(partition))
    check_partition(partition, matmuls, MATMULS)


def test_print_regions_and_pending(golden: Callable[[str], None]) -> None:
    def f(x: Any, w: Any) -> Any:
        y, _ = jax.lax.scan(lambda c, a: (jnp.tanh(c @ a), None), x, w)
        return y @ w[0] + y @ w[1]

    args = (np.ones((8, 4), "f"), np.full((3, 4, 4), 0.1, "f"))
    state = state_of(module_of(f, *args))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 2, "model")
    partition = state.partition()
    golden(print_partition(partition))
    check_partition(partition, f, args)


def test_print_only_some_ops() -> None:
    partition = state_of(module_of(matmuls, *MATMULS)).partition()
    text = print_partition(partition, lambda op: op.prim == "dot_general")
    assert text.count(" = dot_general ") == 2
    assert " = max" not in text


def test_verify_module() -> None:
    module = module_of(matmuls, *MATMULS)
    first, *rest = module.body.ops
    module.body.ops = (*rest, first)
    with pytest.raises(InvalidIR, match=r"(?s)before it is defined.*> "):
        verify(module)
    module.body.ops = (first, *rest)
    verify(module)
    module.ops[0] = dataclasses.replace(first, id=5)
    with pytest.raises(InvalidIR, match="has id 5 at position 0"):
        verify(module)


def test_verify_partition() -> None:
    partition = state_of(module_of(matmuls, *MATMULS)).partition()
    verify_partition(partition)
    partition.loops[0][0] = 7
    with pytest.raises(InvalidIR, match=r"test_ir.py.* loops over factor 7"):
        verify_partition(partition)
    partition.loops[0][0] = -1
    partition.tiles[1][0] = 1
    verify_partition(partition)
    partition.tiles[0][0] = 2
    with pytest.raises(InvalidIR, match="cannot be tiled on dim 2"):
        verify_partition(partition)


def test_repeats_of_a_sequence() -> None:
    """7 3x(1 2 3 4) 9 2x(5 6): the larger cover first, then what is left of and right of it."""
    prints = np.array([7, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 9, 5, 6, 5, 6])
    found = [(s.start, s.period, s.copies) for s in find_repeats(prints)]
    assert found == [(1, 4, 3), (14, 2, 2)]
    assert find_repeats(np.arange(5)) == []


def deep(layers: int) -> tuple[Any, Any]:
    def f(x: Any, *ws: Any) -> Any:
        for w1, w2 in zip(ws[::2], ws[1::2], strict=True):
            x = x + jnp.tanh(jnp.sin(x @ w1) * 2 + 1) @ w2
        return x.sum()

    w = [np.ones((8, 16), "f"), np.ones((16, 8), "f")] * layers
    return jax.grad(f, argnums=tuple(range(1, 2 * layers + 1))), (np.ones((4, 8), "f"), *w)


def test_fold_does_not_depend_on_depth() -> None:
    sizes = []
    for layers in (4, 8, 16):
        fn, args = deep(layers)
        module = module_of(fn, *args)
        folded = fold(module, rule_key)
        sizes.append((len(folded.module.ops), len(folded.module.values)))
        assert sum(op.count for op in folded.module.body.ops) == len(module.body.ops)
        for value, cls in zip(module.values, folded.class_of, strict=True):
            if cls >= 0:
                assert folded.module.values[cls].type == value.type
    assert sizes[0] == sizes[1] == sizes[2]


def over_microbatches(gradients: Callable[..., Any], *args: Any) -> Any:
    """A module of a step that adds up gradients in a scan over four parts of a batch."""

    def step(xs: Any, *ws: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return tuple(map(jnp.add, total, gradients(x, *ws))), None

        total, _ = jax.lax.scan(add, tuple(map(jnp.zeros_like, ws)), xs)
        return tuple(w - g for w, g in zip(ws, total, strict=True))

    x, *ws = args
    ties = tuple((i + 1, i) for i in range(len(ws)))
    return module_of(step, np.stack([x] * 4), *ws, ties=ties)


def test_fold_looks_into_loops_over_microbatches() -> None:
    """Layers inside of a scan fold as those outside do, and with them what enters and leaves it."""
    sizes = []
    for layers in (16, 24, 32):
        gradients, args = deep(layers)
        module = over_microbatches(gradients, *args)
        folded = fold(module, rule_key, ties_of=ties_of)
        sizes.append((len(folded.module.ops), len(folded.module.values)))
        assert len(fold(module, rule_key).module.ops) > 16 * layers  # if it stays closed
        for value, cls in zip(module.values, folded.class_of, strict=True):
            if cls >= 0:
                assert folded.module.values[cls].type == value.type
        (body,) = [op.regions[0] for op in module.body.ops if op.prim == "scan"]
        (kept,) = [op.regions[0] for op in folded.module.body.ops if op.prim == "scan"]
        assert sum(op.count for op in kept.ops) == len(body.ops)
        classes = {v.id for v in kept.args}
        assert {folded.class_of[v.id] for v in body.args} == classes
        assert len(classes) < 10 < len(kept.args) == len(body.args)
    assert sizes[0] == sizes[1] == sizes[2]


def test_fold_respects_marks() -> None:
    fn, args = deep(4)
    module = module_of(fn, *args)
    plain = fold(module, rule_key)
    marked = fold(module, rule_key, {module.body.args[5].id: "tiled"})
    assert len(plain.module.body.args) < len(marked.module.body.args)


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_fold_of_layers_with_keys_split_from_one_and_nans(make_key: Any) -> None:
    """Layers do not differ by the places of their keys, nor by a NaN of `jnp.var`."""

    def folded_ops(layers: int) -> int:
        def step(params: Any, x: Any, key: Any) -> Any:
            def loss(params: Any) -> Any:
                y = x
                for w, k in zip(params, jax.random.split(key, layers), strict=True):
                    y = y + jnp.tanh(y / jnp.var(y, -1, keepdims=True) @ w["a"]) @ w["b"]
                    y = jnp.where(jax.random.bernoulli(k, 0.5, y.shape), y, 0.0)
                return y.sum()

            return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

        params = [{name: np.ones((8, 8), "f") for name in "ab"} for _ in range(layers)]
        args = (params, np.ones((4, 8), "f"), make_key(0))
        call = split_call(step, args, {}, (), ())
        module = trace_call(jax.jit(step), call, args, {}, "step").module
        return len(fold(module, rule_key).module.body.ops)

    assert folded_ops(9) == folded_ops(6)


def test_fold_merges_updates_that_stand_apart() -> None:
    """An optimizer walks leaves in the order of names: norm_0, norm_1, ..., then w_0, w_1, ...

    No stretch of ops repeats layer by layer there; equal updates of one class are merged all the
    same, and the momenta with them.
    """
    layers = 4

    def step(params: Any, momenta: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            y = x
            for i in range(layers):
                y = y + jnp.tanh(jnp.sin(y @ params[f"a_{i}"]) @ params[f"b_{i}"] * 2 + 1)
            return y.sum()

        grads = jax.grad(loss)(params)
        new = jax.tree.map(lambda g, m: 0.9 * m + g, grads, momenta)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, new), new

    params = {f"a_{i}": np.ones((8, 8), "f") for i in range(layers)}
    params |= {f"b_{i}": np.ones((8, 8), "f") for i in range(layers)}
    args = (params, params, np.ones((4, 8), "f"))
    call = split_call(step, args, {}, (), ())
    module = trace_call(jax.jit(step), call, args, {}, "step").module
    folded = fold(module, rule_key)
    kinds = [p.rstrip("0123456789") for p in folded.module.arg_paths]
    assert len(kinds) < len(module.arg_paths)
    for name in ("a_", "b_"):
        assert kinds.count(f"momenta/{name}") <= 2  # the first layer's gradient is made otherwise
    assert sum(op.count for op in folded.module.body.ops) == len(module.body.ops)


def test_layers_are_told_from_their_parts() -> None:
    """Numbers that count layers go; those of the parts of a layer stay, and so do unlike layers."""
    matrices = [f"edges_{i}/dense_{j}/kernel" for i in range(3) for j in range(3)]
    names = layer_names([*matrices, "edges_0/norm_1/scale"], [(8, 8)] * 9 + [(8,)])
    assert names[0] == names[3] == names[6] != names[1]
    assert len(set(names[:9])) == 3
    flat = [f"{name}_{i}/kernel" for i in range(4) for name in ("mlp_in", "mlp_out")]
    assert len(set(layer_names(flat, [(8, 16), (16, 8)] * 4))) == 2
    blocks = [f"down_{i}/conv{j}/kernel" for i in range(3) for j in (1, 2)]
    wide = [(4, 8), (8, 8), *[(8, 8)] * 4]  # the first block widens
    names = layer_names(blocks, wide)
    assert names[2:4] == names[4:6]
    assert len(set(names)) == 4
    means = [f"stats/block_{i}/norm/mean" for i in range(6)]
    held = [f"params/block_{i}/{name}/kernel" for i in range(6) for name in ("one", "two")]
    names = layer_names([*means, *held], [(8,)] * 6 + [(8, 8)] * 12)
    assert len(set(names[:6])) == 1  # as their layers are
    assert len(set(layer_names(means, [(8,)] * 6))) == 2  # of which nothing else is known
    chain = layer_names([f"dense_{i}/kernel" for i in range(9)], [(8, 8)] * 9)
    assert len(set(chain)) == 2
    assert chain[0] == chain[2] != chain[1]


def test_numbers_in_layers_are_those_of_all_like_layers() -> None:
    """Modules numbered in each layer, as flax numbers them, are named alike in all layers."""
    parts = ("dense_0/kernel", "dense_1/kernel", "attention_0/query/kernel", "norm_0/scale")
    shapes = [(8, 32), (32, 8), (8, 8), (8,)]
    paths = [f"params/block_{i}/{part}" for i in range(12) for part in parts]
    names = layer_names(paths, shapes * 12)
    assert len(set(names)) == len(parts)
    paths = [f"stage_{j}/{path}" for j in range(2) for path in paths]
    names = layer_names(paths, [*shapes * 12, (8, 16), *shapes[1:], *shapes * 11])
    assert len(set(names[4:48])) == 4  # a layer of another shape is of another kind
    assert len(set(names)) > 4


def test_fold_keeps_matrices_of_one_layer_apart() -> None:
    """Three equal matrices in each of five layers: folded over layers, never with one another."""

    def step(params: Any, momenta: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            y = x
            for i in range(5):
                z = y
                for j in range(3):
                    z = jnp.tanh(z @ params[f"layer_{i}"][f"dense_{j}"])
                y = y + z
            return (y * y).sum()

        grads = jax.grad(loss)(params)
        new = jax.tree.map(lambda g, m: 0.9 * m + g, grads, momenta)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, new), new

    w = np.ones((8, 8), "f")
    params = {f"layer_{i}": {f"dense_{j}": w for j in range(3)} for i in range(5)}
    args = (params, params, np.ones((4, 8), "f"))
    call = split_call(step, args, {}, (), ())
    module = trace_call(jax.jit(step), call, args, {}, "step").module
    folded = fold(module, rule_key)
    assert len(folded.module.ops) < len(module.ops) / 2
    held: dict[int, set[str]] = {}
    for value, path in zip(module.body.args, module.arg_paths, strict=True):
        held.setdefault(folded.class_of[value.id], set()).add(path.split("/")[-1])
    assert all(len(names) == 1 for names in held.values())
    assert len(held) < 1 + 2 * 3 * 3  # of 31: fewer than three unlike layers
