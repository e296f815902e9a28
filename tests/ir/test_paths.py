"""Blocks of programs without names: nnx, equinox, and functions of nested parameters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, Mesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.printing.paths import op_paths
from partir_search.ir.source_names import scope_path
from tests.calls import calls_of

AXES = AbstractMesh((2, 4), ("batch", "model"))
BATCH = ps.ManualPartition({"tokens": 0}, axis="batch")
D = 8


def plan_of(function: Any, *args: Any, mesh: Any = AXES, schedule: Any = ()) -> ps.Plan:
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[*schedule])(function)
    plan: ps.Plan = partitioned.plan(*args)
    return plan


def blocks(text: str) -> list[str]:
    """Heads of blocks, with the indent of nested ones."""
    return re.findall(r"^ ( *[^%()=:\n]*(?: \.\.\. x .*)?) \{$", text, re.MULTILINE)


def paths_of(plan: ps.Plan, prim: str) -> list[str]:
    """Paths of the ops of one primitive, in program order."""
    paths = op_paths(plan.module)
    return ["/".join(paths[op.id]) for op in plan.module.ops if op.prim == prim]


def array(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape) + sum(shape)).normal(size=shape) * 0.3)


def normed(p: Any, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["scale"]


def mixed(p: Any, x: Any) -> Any:
    weights = jax.nn.softmax((x @ p["q"]) @ (x @ p["k"]).swapaxes(-1, -2))
    return weights @ (x @ p["v"]) @ p["o"]


def layer(p: Any, x: Any) -> Any:
    x = x + mixed(p["attn"], normed(p["norm1"], x))
    return x + jnp.tanh(normed(p["norm2"], x) @ p["mlp"]["w1"] + p["mlp"]["b1"]) @ p["mlp"]["w2"]


def forward(params: Any, tokens: Any) -> Any:
    x = params["embed"]["table"][tokens]
    for p in params["layers"]:
        x = layer(p, x)
    return normed(params["norm"], x) @ params["head"]["w"]


def train_step(params: Any, tokens: Any) -> Any:
    """Gradient descent of a language model."""

    def loss(params: Any) -> Any:
        scores = jax.nn.log_softmax(forward(params, tokens))
        with jax.named_scope("picked"):
            return -jnp.take_along_axis(scores, tokens[..., None], -1).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def params_of(layers: int) -> Any:
    one = {
        "norm1": {"scale": array(D)},
        "norm2": {"scale": array(D)},
        "attn": {name: array(D, D) for name in "qkvo"},
        "mlp": {"w1": array(D, 16), "b1": array(16), "w2": array(16, D)},
    }
    return {
        "embed": {"table": array(12, D)},
        "head": {"w": array(D, 12)},
        "layers": [one] * layers,
        "norm": {"scale": array(D)},
    }


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 12, (8, 6)))


@pytest.mark.devices
def test_print_nested_parameters(mesh: Mesh, golden: Callable[[str], None]) -> None:
    """A block for each layer, alike in both passes; the plan computes what the function does."""
    params = params_of(3)
    columns = ps.ManualPartition({"params/layers/*/mlp/w1": 1}, axis="model")
    plan = plan_of(train_step, params, TOKENS, mesh=mesh, schedule=[BATCH, columns])
    text = plan.ir()
    assert blocks(text) == [
        " layers/0 ... x 3 (layers/0 .. layers/2)",
        "   attn",
        "   mlp",
        " picked",
        " backward of layers/2 ... x 3 (layers/2 .. layers/0)",
        "   mlp",
        "   attn",
    ]
    golden(plan.ir("forward of layers/0"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[BATCH, columns])(train_step)
    got, want = step(params, TOKENS), train_step(params, TOKENS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), got, want)


def test_print_nnx(golden: Callable[[str], None]) -> None:
    entry = MODELS["nnx-tiny"].resized(layers=3)
    plan = plan_of(entry.step, *entry.abstract_args(16), schedule=[BATCH])
    assert blocks(plan.ir()) == [
        " blocks/0 ... x 3 (blocks/0 .. blocks/2)",
        "   attention",
        " backward of blocks/2 ... x 3 (blocks/2 .. blocks/0)",
        "   attention",
    ]
    text = plan.ir("forward of blocks/1")  # the counts depend on flax's version
    golden(re.sub(r"\d+ (?=elementwise|movement|reduction|more)", "# ", text))


def test_every_weight_is_read_in_its_module() -> None:
    plan = plan_of(train_step, params_of(2), TOKENS)
    found = paths_of(plan, "dot_general")
    per_layer = [*["attn"] * 6, *["mlp"] * 2]
    want = [f"layers/{i}/{name}" for i in (0, 1) for name in per_layer]
    assert found[: len(want) + 1] == [*want, "head"]
    assert paths_of(plan, "tanh") == ["layers/0/mlp", "layers/1/mlp"]


def test_scopes_stand_below_modules() -> None:
    """A scope of a program without names keeps its name."""
    plan = plan_of(train_step, params_of(2), TOKENS)
    assert paths_of(plan, "gather") == ["embed", "picked"]


def test_scanned_layers() -> None:
    entry = MODELS["nnx-scan-tiny"]
    plan = plan_of(entry.step, *entry.abstract_args(16))
    assert blocks(plan.ir())[:2] == ["     blocks", "       attention"]


def test_equinox_layers() -> None:
    """Names of classes are no names of layers."""
    eqx = pytest.importorskip("equinox")
    layers = [eqx.nn.MLP(D, D, 16, 1, key=jax.random.key(i)) for i in range(3)]

    def f(layers: Any, x: Any) -> Any:
        for one in layers:
            x = x + jax.vmap(one)(x)
        return x

    text = plan_of(f, layers, array(8, D)).ir()
    assert blocks(text) == [" layers/0 ... x 3 (layers/0 .. layers/2)"]


def test_dense_chain() -> None:
    """The op after a product is of its layer, in the last one too."""

    def f(params: Any, x: Any) -> Any:
        for w, v, b in params:
            x = jnp.tanh(x @ w @ v + b)
        return x.sum()

    params = [(array(D, D), array(D, D), array(D))] * 3
    plan = plan_of(f, params, array(8, D))
    assert paths_of(plan, "tanh") == ["params/0", "params/1", "params/2"]
    assert paths_of(plan, "reduce_sum") == [""]
    assert blocks(plan.ir()) == [" params/0 ... x 3 (params/0 .. params/2)"]


def test_cache_and_second_model() -> None:
    """A cache is read inside of modules; a second model has modules of its own."""

    def read(params: Any, cache: Any, x: Any) -> Any:
        for p, c in zip(params, cache, strict=True):
            x = jnp.tanh(x @ p["a"] @ c["k"] + p["b"])
        return x

    plan = plan_of(
        read,
        [{"a": array(D, D), "b": array(D)}] * 2,
        [{"k": array(D, D)}] * 2,
        array(8, D),
    )
    assert paths_of(plan, "dot_general") == ["params/0", "params/0", "params/1", "params/1"]

    def two(encoder: Any, decoder: Any, x: Any) -> Any:
        for p in (*encoder, *decoder):
            x = jnp.tanh(x @ p["a"] @ p["b"])
        return x

    model = [{"a": array(D, D), "b": array(D, D)}] * 2
    plan = plan_of(two, model, model, array(8, D))
    want = ["encoder/0", "encoder/1", "decoder/0", "decoder/1"]
    assert paths_of(plan, "dot_general") == [name for name in want for _ in "ab"]


@pytest.mark.parametrize("name", ["transformer-tiny", "dlrm-tiny", "microbatch-tiny"])
def test_named_programs_keep_their_names(name: str) -> None:
    entry = MODELS[name]
    module = plan_of(entry.step, *entry.abstract_args(16)).module
    assert op_paths(module) == [scope_path(op.scope) for op in module.ops]


def test_programs_of_one_module_have_no_blocks() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(x @ w) @ v

    plan = plan_of(f, array(8, D), array(D, D), array(D, D))
    assert set(op_paths(plan.module)) == {()}


def test_a_scope_is_selected_whole() -> None:
    """`layers/1` is no part of `layers/10`."""
    plan = plan_of(forward, params_of(12), TOKENS)
    assert plan.ir("layers/1").count("attn {") == 1
    assert len(plan.ir("layers").splitlines()) < 2 * len(plan.ir("layers/1").splitlines())
    with pytest.raises(ValueError, match=r"no op was traced under 'layers/12'; .*layers/11"):
        plan.ir("layers/12")


def test_paths_are_linear() -> None:
    """Four times the layers take about four times the calls."""

    def calls(layers: int) -> int:
        module = plan_of(train_step, params_of(layers), TOKENS).original
        copy = dataclasses.replace(module)  # without cached analyses
        return calls_of(lambda: op_paths(copy))

    assert calls(32) < 5 * calls(8)
