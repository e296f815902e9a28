"""Layers as scans: found, described, and equal to the layers written out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.catalog import MODELS
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.ir.verify import verify
from partir_search.passes.roll import (
    Again,
    LayerPair,
    Rolled,
    layer_scans,
    operands_behind,
    region_at,
    roll,
)
from partir_search.passes.roll.min_cut import min_node_cut
from partir_search.planning.microbatch import in_time
from partir_search.planning.trace import read_call, split_call
from tests.support import (
    assert_same,
    check_partition,
    floats_of,
    module_of,
    run_evaluator,
    state_of,
    tile_arg,
)
from tests.written_out import block, deep, deep_args

ONE = MeshShape(("x",), (1,))
BATCH = 2


def step_of(name: str, **sizes: Any) -> tuple[Module, list[Any]]:
    """A step of gradient descent on a model of the catalog, and its flat arguments."""
    entry = MODELS[name].resized(**sizes)
    args = jax.eval_shape(
        lambda: (
            entry.init_state(entry.config, optax.sgd(0.1), 0),
            entry.sample_batch(entry.config, BATCH, 0),
        )
    )
    call = split_call(entry.step, args, {}, (), ())
    module = read_call(jax.jit(entry.step), call, args, {}, name).module
    return module, [filled(x) for x in jax.tree.leaves(args)]


def filled(kind: Any) -> np.ndarray[Any, Any]:
    """An array of small numbers."""
    rng = np.random.default_rng(len(kind.shape))
    if np.issubdtype(kind.dtype, np.floating):
        return rng.normal(0.1, 0.1, kind.shape).astype(kind.dtype)
    return rng.integers(0, 8, kind.shape).astype(kind.dtype)


@functools.cache
def rolled(name: str, layers: int, **sizes: Any) -> tuple[Module, list[Any], Rolled]:
    module, args = step_of(name, layers=layers, **sizes)
    found = roll(module)
    verify(found.module)
    assert len({v.name for v in found.module.values}) == len(found.module.values)
    return module, args, found


def only_pair(found: Rolled) -> LayerPair:
    ((path, (pair,)),) = found.pairs.items()
    assert path == ()
    return pair


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("llama-tiny", 8, {}),
    "transformer": ("transformer-tiny", 4, {}),
    "transformer, remat": ("transformer-tiny", 4, {"remat": True}),
    "vit": ("vit-tiny", 4, {}),
    "gpt": ("gpt-tiny", 4, {}),
    "bert": ("bert-tiny", 4, {}),
    "mixer": ("mixer-tiny", 4, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_rolled_is_unrolled(case: str) -> None:
    """By the evaluator; forward and backward layers are one scan each, with one carry."""
    name, layers, sizes = CASES[case]
    module, args, found = rolled(name, layers, **sizes)
    pair = only_pair(found)
    assert pair.backward is not None
    for scan, reverse in ((pair.forward, False), (pair.backward, True)):
        assert (scan.layers, scan.reverse, len(scan.carry)) == (layers, reverse, 1)
    assert found.layers == 2 * layers
    want, got = (run_evaluator(state_of(m, ONE).partition(), args) for m in (module, found.module))
    assert_same(got, want, 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_description(case: str) -> None:
    """Residuals go from scan to scan; each parameter has one stack, and each its gradient."""
    name, layers, sizes = CASES[case]
    _, _, found = rolled(name, layers, **sizes)
    pair = only_pair(found)
    ops = found.module.body.ops
    assert pair.backward is not None
    forward, backward = ops[pair.forward.position], ops[pair.backward.position]
    assert sorted(r for _, r in pair.backward.residuals) == list(pair.forward.stacks)
    for operand, result in pair.backward.residuals:
        assert backward.operands[operand] is forward.results[result]
        assert pair.forward.carry[0] in operands_behind(forward, result)
    parameters = {forward.operands[i] for i in pair.forward.parameters}
    assert parameters >= {backward.operands[i] for i in pair.backward.parameters}
    makers = [op for op in ops if op.prim == "stack_layers"]
    assert {op.results[0] for op in makers} == parameters
    single = {r for op in ops if op.prim == "unstack_layers" for r in op.results}
    assert not any(x in single for op in makers for x in op.operands)
    assert len(pair.backward.stacks) == len(parameters)
    if sizes.get("remat"):
        ((kept, carry),) = pair.forward.carry_stacks
        assert ([kept], [carry]) == (list(pair.forward.stacks), list(pair.forward.carry))


def test_scans_of_the_user() -> None:
    """A scan over layers and its transposition have the same description."""
    module, _ = step_of("transformer-tiny", layers=4, scan=True)
    found = roll(module)
    assert found.module is module
    pair = only_pair(found)
    assert layer_scans(module.body) == (pair,)
    assert pair.backward is not None
    assert (pair.forward.layers, pair.forward.reverse, pair.backward.reverse) == (4, False, True)
    assert len(pair.forward.carry) == len(pair.backward.carry) == 1
    assert len(pair.backward.residuals) > 30
    assert len(pair.backward.stacks) == 9


@pytest.mark.long
def test_unequal_first_layer() -> None:
    """T5's last layers begin the gradient of the bias of all layers."""
    module, args = step_of("t5-tiny", layers=4)
    found = roll(module)
    pairs = found.pairs[()]
    assert [(p.forward.layers, p.backward and p.backward.layers) for p in pairs] == [(4, 4)] * 2
    want, got = (run_evaluator(state_of(m, ONE).partition(), args) for m in (module, found.module))
    assert_same(got, want, 1e-5)


def test_few_layers_are_left() -> None:
    module, _ = step_of("llama-tiny")
    found = roll(module)
    assert found.module is module
    assert not found.pairs
    (forward, backward) = found.reasons
    where = r"2 equal layers at jvp\(Llama\)/layer_0/norm1, .*llama.py:\d+ \(.*\): fewer than 3"
    departs = r", layer 2 has dot_general at .* where layer 3 has dot_general at .*"
    assert re.fullmatch(where + departs, forward)
    assert backward.startswith("2 equal layers at transpose(jvp(Llama))")


@pytest.mark.devices
@pytest.mark.parametrize("layer", [block, jax.checkpoint(block)], ids=["plain", "remat"])
def test_train_step_on_devices(layer: Callable[..., Any]) -> None:
    """Weights and batch tiled: evaluator, emitted program and plain function agree."""
    args = deep_args()
    step = functools.partial(deep, layer=layer)
    found = roll(module_of(step, *args, ties=[(i + 1, i) for i in range(5)]))
    pair = only_pair(found)
    assert pair.backward is not None
    assert pair.forward.layers == 4
    assert len(pair.backward.residuals) == len(pair.forward.stacks) > 0
    state = state_of(found.module)
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 2, 1, "model")
    partition = state.partition()
    stack = found.module.body.ops[pair.forward.position].operands[pair.forward.parameters[0]]
    assert isinstance(stack, Value)
    assert partition.layout(stack) == ((), (), (1,))  # as the weights
    check_partition(partition, step, args)


@pytest.mark.devices
def test_layers_of_microbatches() -> None:
    """In the body of a loop over microbatches; parameters are stacked before the loop."""
    args = deep_args()
    module = module_of(deep, *args, ties=[(i + 1, i) for i in range(5)])
    found = roll(in_time(module, 4).module)
    ((path, (pair,)),) = found.pairs.items()
    ((position, _),) = path
    loop = found.module.body.ops[position]
    body = region_at(found.module, path)
    assert loop.regions[0] is body
    assert loop.params["length"] == pair.forward.layers == 4
    assert pair.backward is not None
    assert len(pair.backward.residuals) == len(pair.forward.stacks) > 0
    stacks = [op for op in found.module.ops if op.prim == "stack_layers"]
    assert all(op in found.module.body.ops for op in stacks)
    scan = body.ops[pair.forward.position]
    outside = {a: x for a, x in zip(body.args, loop.operands, strict=True) if isinstance(x, Value)}
    parameters = {outside[a] for _, a in scan.inputs() if a in outside and len(a.type.shape) == 3}
    assert parameters == {op.results[0] for op in stacks}  # matrices and their transpositions
    assert loop.params["num_consts"] == 4  # no single parameter of a layer is left
    check_partition(state_of(found.module).partition(), deep, args)


def test_residuals_are_few() -> None:
    """Of the activations of a transformer layer, the inputs and results of the products alone."""
    _, _, found = rolled("gpt-tiny", 4)
    pair = only_pair(found)
    assert pair.backward is not None
    scan = found.module.body.ops[pair.forward.position]
    types = [str(scan.results[r].type) for _, r in pair.backward.residuals]
    assert types.count("f32[4,2,4,16,16]") == 1  # scores; 5 such arrays without repeated ops
    assert len(types) == 13
    backward = found.module.body.ops[pair.backward.position].regions[0]
    assert all(op.backward for op in backward.ops)


def test_cheapest_cut() -> None:
    """Of equal sets, the one nearest the targets; by brute force on random graphs."""
    assert min_node_cut({"a": 2, "b": 2}, [("a", "b")], {"a"}, {"b"}) == {"b"}
    assert min_node_cut({"a": 2, "b": 1, "c": 1}, [("a", "b"), ("a", "c")], {"a"}, {"b", "c"}) == {
        "b",
        "c",
    }
    assert min_node_cut({"a": 1, "b": 1}, [("a", "b")], {"a"}, {"a", "b"}) == {"a"}
    assert min_node_cut({"a": 1, "b": 1}, [], {"a"}, {"b"}) == set()
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = 7
        cost = {i: int(rng.integers(1, 5)) for i in range(n)}
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.35]
        sources, targets = {0, 1}, {n - 2, n - 1}

        def cuts(chosen: set[int], edges: Any = edges, targets: Any = targets) -> bool:
            reached = {0, 1} - chosen
            for a, b in edges:
                if a in reached and b not in chosen:
                    reached.add(b)
            return not reached & targets

        sets = [{i for i in range(n) if bits >> i & 1} for bits in range(2**n)]
        least = min(sum(cost[i] for i in chosen) for chosen in sets if cuts(chosen))
        found = min_node_cut(cost, edges, sources, targets)
        assert cuts(found)
        assert sum(cost[i] for i in found) == least


def test_equal_constants_of_layers() -> None:
    """Values computed in each layer's own ops from constants alone are one constant."""
    _, _, found = rolled("llama-tiny", 8)
    pair = only_pair(found)
    assert pair.backward is not None
    ops = found.module.body.ops
    consts = [ops[pair.forward.position].operands[i] for i in pair.forward.consts]
    assert sorted(str(x.type) for x in consts) == ["bool[16,16]", *["f32[16,4]"] * 4]


def _written(op: Op) -> float:
    return op.results[0].type.nbytes


def test_further_ops_run_again() -> None:
    """Those of the largest residuals first; with all of them the carry alone is a residual.

    Of a share of the residuals to spare, those of the fewest operations.
    """
    shapes = (8, 16), *((16, 48),) * 4, *((48, 16),) * 4
    args = [0.2 * x for x in floats_of(*shapes)]  # small sums, small rounding errors

    def step(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for up, down in zip(weights[:4], weights[4:], strict=True):
                y = y + jnp.tanh(jnp.sin(y @ up) @ down)
            return (y**2).mean()

        return jax.grad(loss)(weights)

    module, want = module_of(step, *args), jax.jit(step)(*args)
    kept = []
    counts = [Again(n) for n in (0, 1, 1000)]
    shares = [Again(spared=s, operations=_written) for s in (0.2, 0.3, 0.7, 0.9)]
    for again in (*counts, *shares):
        found = roll(module, again=again)
        pair = only_pair(found)
        assert pair.backward is not None
        scan = found.module.body.ops[pair.forward.position]
        stacks = [scan.results[i].type.shape[-1] for i in pair.forward.stacks]
        kept.append(sorted(stacks))
        got = run_evaluator(state_of(found.module, ONE).partition(), args)
        assert_same(got, want)
    assert kept == [[16, 16, 48], [16, 16], [16], [16, 48], [16, 16], [16], [16]]


def test_print_rolled(golden: Any) -> None:
    """Scans over the layers of a step of gradient descent."""
    args = floats_of((8, 16), *((16, 16),) * 5)

    def layer(y: Any, w: Any) -> Any:
        return jnp.sin(jnp.exp(jnp.sin(y @ w)))

    found = roll(module_of(functools.partial(deep, layer=layer), *args))
    assert only_pair(found).forward.layers == 4
    golden(print_partition(state_of(found.module, ONE).partition(), full=True))


def test_forward_layers_alone() -> None:
    """Weights are read from a stack; values read of each layer are taken from a stack."""
    x, *weights = floats_of((4, 8), *((8, 8),) * 4)

    def fn(x: Any, *weights: Any) -> Any:
        scale = jnp.cos(x[0])
        norms = []
        for w in weights:
            x = x + jnp.tanh(jnp.sin(x @ w) * scale) * 0.5
            norms.append(jnp.abs(x).sum(0))
        return x, *norms

    module = module_of(fn, x, *weights)
    found = roll(module)
    pair = only_pair(found)
    assert pair.backward is None
    assert (len(pair.forward.consts), len(pair.forward.parameters)) == (1, 1)
    scan = found.module.body.ops[pair.forward.position]
    initial = scan.operands[pair.forward.carry[0]]
    assert isinstance(initial, Value)
    assert initial.name == "a0"
    got = run_evaluator(state_of(found.module, ONE).partition(), [x, *weights])
    assert_same(got, jax.jit(fn)(x, *weights))
    assert region_at(found.module, ()) is found.module.body
