"""The printed IR: goldens of partitioned programs, what a line may hold, what is left out."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import partir_search as ps
from models import transformer
from models.catalog import MODELS
from partir_search.ir.core import Op
from partir_search.ir.printer import print_partition
from partir_search.ir.printing import blocks
from partir_search.ir.printing.names import printed_as
from partir_search.ir.printing.text import WIDTH
from tests.support import (
    check_partition,
    floats_of,
    module_of,
    ones,
    state_of,
    tile_arg,
)

AXES = AbstractMesh((2, 4), ("batch", "model"))
BATCH = ps.ManualPartition({"batch": 0}, axis="batch")
TOKENS = ps.ManualPartition({"tokens": 0}, axis="batch")
BATCHES = ps.ManualPartition({"batch/**": 0}, axis="batch")
Z2 = ps.ManualPartition({"state/opt_state/**": ps.FIRST_DIVISIBLE_DIM}, axis="batch")


def columns(*paths: str, dim: int = 1) -> ps.ManualPartition:
    return ps.ManualPartition({f"state/params/**/{p}": dim for p in paths}, axis="model")


PROGRAMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "transformer-tiny": ({"layers": 2}, [BATCH, columns("mlp_in/kernel"), Z2]),
    "llama-tiny": ({"layers": 3}, [TOKENS, columns("query/kernel", "gate/kernel", "up/kernel")]),
    "gpt-scan-tiny": ({}, [BATCHES]),
    "resnet-tiny": ({}, [BATCHES]),
    "nnx-tiny": ({"layers": 1}, [TOKENS]),
    "moe-tiny": ({}, [BATCH]),
    "dlrm-tiny": ({}, [BATCHES]),
    "graph-net-tiny": ({}, []),
}


@functools.cache
def plan_of(name: str) -> ps.Plan:
    sizes, schedule = PROGRAMS[name]
    entry = MODELS[name].resized(**sizes)
    step = ps.auto_partition(AXES, machine="tpu_v5e", schedule=schedule)(entry.step)
    return step.plan(*entry.abstract_args(16))


def block(x: Any, w1: Any, w2: Any) -> Any:
    with jax.named_scope("norm"):
        y = x * lax.rsqrt(lax.reduce_sum(x * x, axes=(1,)) + 1e-6)[:, None]
    with jax.named_scope("mlp"):
        return x + lax.sin(y @ w1) @ w2


def train_step(x: Any, *weights: Any) -> Any:
    """Gradient descent on two layers."""

    def loss(weights: Any) -> Any:
        y = x
        for i, (w1, w2) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
            with jax.named_scope(f"layer_{i}"):
                y = block(y, w1, w2)
        return lax.reduce_sum(y * y, axes=(0, 1))

    value, grads = jax.value_and_grad(loss)(weights)
    return value, *(w - 0.1 * g for w, g in zip(weights, grads, strict=True))


def scanned(x: Any, w1: Any, w2: Any) -> Any:
    """Gradients of layers in a scan."""

    def loss(weights: Any) -> Any:
        y, _ = lax.scan(lambda y, w: (block(y, *w), None), x, weights)
        return lax.reduce_sum(y * y, axes=(0, 1))

    return jax.grad(loss)((w1, w2))


def looked_up(table: Any, w: Any) -> Any:
    """Gradients of rows of a table, which another product uses."""
    rows = jnp.asarray([[0, 3], [1, 2], [3, 3], [5, 0]])

    def loss(table: Any, w: Any) -> Any:
        with jax.named_scope("embed"):
            found = table.at[rows].get(mode="promise_in_bounds")
        return lax.reduce_sum(lax.sin(found @ w), axes=(0, 1, 2))

    return jax.grad(loss, argnums=(0, 1))(table, w)


WEIGHTS = [(8, 16), (16, 8)]
FUNCTIONS: dict[str, tuple[Any, list[tuple[int, ...]], list[tuple[int, int, str]]]] = {
    "data": (train_step, [(32, 8), *WEIGHTS * 2], [(0, 0, "batch")]),
    "megatron": (
        train_step,
        [(32, 8), *WEIGHTS * 2],
        [(0, 0, "batch"), (1, 1, "model"), (3, 1, "model")],
    ),
    "scan": (scanned, [(32, 8), (3, 8, 16), (3, 16, 8)], [(0, 0, "batch"), (1, 2, "model")]),
    "table": (looked_up, [(8, 4), (4, 16)], [(0, 0, "batch"), (1, 1, "model")]),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_print_program(name: str, golden: Callable[[str], None]) -> None:
    """The text, and the partition that it shows computes what the function does."""
    function, shapes, tilings = FUNCTIONS[name]
    args = floats_of(*shapes)
    state = state_of(module_of(function, *args))
    for tiling in tilings:
        tile_arg(state, *tiling)
    partition = state.partition()
    golden(print_partition(partition))
    check_partition(partition, function, args)


def test_print_llama(golden: Callable[[str], None]) -> None:
    golden(plan_of("llama-tiny").ir("forward of layer_0"))


def test_print_layers(golden: Callable[[str], None]) -> None:
    """Equal layers once; a scope's last value bears its name."""

    def f(x: Any, *w: Any) -> Any:
        for i in range(0, len(w), 2):
            with jax.named_scope(f"layer_{i // 2}"):
                y = x - x.mean(-1, keepdims=True)
                with jax.named_scope("mlp"):
                    y = jnp.tanh(y @ w[i]) @ w[i + 1]
                x = x + y
        return x

    state = state_of(module_of(f, ones(8, 4), *[ones(4, 16), ones(16, 4)] * 4))
    tile_arg(state, 0, 0, "batch")
    for arg in range(1, 9, 2):
        tile_arg(state, arg, 1, "model")
    text = print_partition(state.partition())
    assert "layer_0 ... x 4 (layer_0 .. layer_3) {" in text
    golden(text)


def test_unlike_layers_are_all_printed() -> None:
    """Layers tiled otherwise are not equal."""

    def f(x: Any, *w: Any) -> Any:
        for i in range(0, len(w), 2):
            with jax.named_scope(f"layer_{i // 2}"):
                x = jnp.tanh(x @ w[i]) @ w[i + 1]
        return x

    state = state_of(module_of(f, ones(8, 4), *[ones(4, 16), ones(16, 4)] * 3))
    for arg in (1, 3):
        tile_arg(state, arg, 1, "model")
    text = print_partition(state.partition())
    assert "layer_0 ... x 2 (layer_0 .. layer_1) {" in text
    assert re.search(r"^  layer_2 \{$", text, re.MULTILINE)


def test_print_window(golden: Callable[[str], None]) -> None:
    """A tile with its neighbours' edges is taken at the loop's head."""

    def f(image: Any, kernel: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=dims)

    state = state_of(module_of(f, ones(2, 16, 16, 3), ones(3, 3, 3, 8)))
    tile_arg(state, 0, 1, "batch")
    golden(print_partition(state.partition()))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_lines_fit(name: str, full: bool) -> None:
    assert max(map(len, plan_of(name).ir(full=full).splitlines())) <= WIDTH


def statements(text: str) -> list[str]:
    """Lines of a body, each with its continuations."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and _depth(line) - _depth(lines[-1]) >= 4:
            lines[-1] += " " + line.lstrip()
        else:
            lines.append(line)
    return lines


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("name", ["llama-tiny", "gpt-scan-tiny", "nnx-tiny"])
def test_full_names_every_op(name: str) -> None:
    plan = plan_of(name)
    text = "\n".join(statements(plan.ir(full=True)))
    made = re.findall(r"^ *(%[^=(]*?) = (?!tile|sum|max \"|min|ring|pass)", text, re.MULTILINE)
    names = {n.strip().removeprefix("%") for names in made for n in names.split(",")}
    assert {r.name for op in plan.module.ops for r in op.results} <= names


@pytest.mark.parametrize("name", ["resnet-tiny", "nnx-tiny", "dlrm-tiny"])
def test_every_name_is_made(name: str) -> None:
    """Operands of slices and products are made in lines before."""
    head, _, body = plan_of(name).ir().partition("mesh<")
    made, looked = set[str](), 0
    for line in statements(body):
        left, equals, right = line.strip().partition(" = ")
        if equals and re.match(r"slice|window|dot_general|conv", right):
            taken = re.sub(r"\[%[^\]]*\]", "", right.split(" : ")[0])
            for used in re.findall(r"%([\w.\-]+)", taken):
                looked += 1
                assert used.split(".")[-1] in made or f"{used}:" in head or used in head, line
        names = left if equals else line.rpartition(" ops")[2]
        made.update(n.split(".")[-1] for n in re.findall(r"%([\w.\-]+)", names))
    assert looked > 10


def test_products_are_all_printed_and_small_ops_counted() -> None:
    plan = plan_of("nnx-tiny")
    lines = statements(plan.ir())
    products = sum(op.prim == "dot_general" for op in plan.module.ops)
    assert sum(" = dot_general" in line for line in lines) == products
    runs = [line.split(" ops")[0] for line in lines if " ops" in line]
    small = sum(int(n) for run in runs for n in re.findall(r"(\d+) [a-z]", run))
    loop = re.compile(r'(tile [\d,]+|sum) "|slice [\d,]+ \(?%')
    made = [line.partition(" = ")[2] for line in lines]
    shown = sum(bool(right) and not loop.match(right) for right in made)
    assert small + shown == len(plan.module.ops)


def test_scopes_of_one_pass() -> None:
    plan = plan_of("transformer-tiny")
    forward, backward = plan.ir("forward of layer_0"), plan.ir("backward of layer_0")
    assert "backward" not in forward
    assert "backward of Transformer/layer_0 {" in backward
    assert "  Transformer/layer_0 {" in forward
    assert "  Transformer/layer_0 {" not in backward
    assert len(forward.splitlines()) < len(plan.ir("layer_0").splitlines())
    with pytest.raises(ValueError, match="ir: no op was traced under 'backward of decoder'"):
        plan.ir("backward of decoder")


def test_explain_takes_printed_names() -> None:
    plan = plan_of("transformer-tiny")
    module = plan.module
    (found,) = printed_as(module, "layer_0.norm1")
    assert found[0] == "Transformer.layer_0.norm1"
    assert "norm1" in plan.explain("%layer_0.norm1")
    assert len(printed_as(module, "norm1")) == 2


@pytest.mark.parametrize("full", [False, True])
def test_slices_are_taken_once(full: bool) -> None:
    """A loop in a loop takes no slice that the outer one has taken."""

    def f(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(x @ v), jnp.tanh(x @ w)

    state = state_of(module_of(f, ones(8, 4), ones(4, 16), ones(4, 4)))
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 1, "model")
    text = print_partition(state.partition(), full=full)
    assert text.count("%a0s = slice 0 %a0[%batch]") == 1
    assert len(re.findall(r"dot_general\S* %a0s, ", text)) == 2


def test_full_form_slices_at_heads() -> None:
    """Slices have names of their own, and no operand is sliced at its use."""

    def f(x: Any, xs: Any) -> Any:
        return jnp.tanh(x @ x.T) @ (xs @ x.T)

    state = state_of(module_of(f, ones(8, 8), ones(8, 8)))
    names = {v.name for v in state.graph.module.values}
    tile_arg(state, 0, 0, "batch")
    tile_arg(state, 1, 1, "model")
    text = print_partition(state.partition(), full=True)
    made = re.findall(r"^ *(%.*) = (?:slice|window) ", text, re.MULTILINE)
    slices = {name.strip() for names in made for name in names.split(",")}
    assert len(slices) > 2
    assert not {f"%{n}" for n in names} & slices
    assert "(slice" not in text


def test_names_are_unique_in_a_block() -> None:
    def repeated(x: Any) -> Any:
        with jax.named_scope("a"):
            x = jnp.sin(x) @ x
            with jax.named_scope("a"):
                y = jnp.sin(x) @ x
            return (jnp.cos(x) @ y) @ x

    text = print_partition(state_of(module_of(repeated, ones(8, 8))).partition())
    made = re.findall(r"^ *%(\S+) = ", text, re.MULTILINE)
    assert len(made) == len(set(made)) == 7


def test_region_arguments_bear_the_names_of_what_enters() -> None:
    text = plan_of("gpt-scan-tiny").ir()
    assert "%query.kernel" in text
    entering = re.search(r"\(%arg0: (.*?)\) \{", text, re.DOTALL)
    assert entering
    assert "%state.params.layers.attention.key.kernel: f32[32,4,8]" in entering[1]


def test_demo_shows_attention_and_mlp() -> None:
    """One attention and one MLP of the demo's transformer in at most 40 lines."""
    config = transformer.TransformerConfig(4, 128, 8, 512, 256, 128)
    tx = transformer.optimizer(steps=20)
    state = jax.eval_shape(lambda: transformer.init_state(config, tx, 0))
    tokens, key = jax.ShapeDtypeStruct((16, 129), np.int32), jax.random.key(0)
    step = ps.auto_partition(AXES, machine="tpu_v5e", episodes=200, donate_argnums=0)(
        transformer.make_train_step(config)
    )
    text = step.plan(state, tokens, key).ir("forward of layer_0")
    assert len(text.splitlines()) <= 40
    assert text.count(" = dot_general") == 6
    assert "attention {" in text


def test_pages_print_the_forward_pass_of_large_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are those of the whole text, apart from results that the backward pass alone reads."""
    partition = plan_of("llama-tiny").partition
    whole = print_partition(partition).splitlines()
    assert blocks.print_beginning(partition, 10_000) == whole
    few = blocks.print_beginning(partition, 5)
    assert few == [*whole[:5], f"... {len(whole) - 5} lines more"]
    monkeypatch.setattr(blocks, "MANY_OPS", 10)
    *lines, end = blocks.print_beginning(partition, 10_000)
    assert end.endswith("ops in print(plan.ir())")
    assert 10 < len(lines) < len(whole)
    assert len(set(lines) - set(whole)) < 0.1 * len(lines)


def test_printing_is_linear() -> None:
    """Twice the layers take about twice the time, printed in full or not."""

    def seconds(layers: int, full: bool) -> float:
        def f(x: Any, *w: Any) -> Any:
            for i, a in enumerate(w):
                with jax.named_scope(f"layer_{i}"):
                    x = jnp.tanh(jnp.sin(x @ a) * 2 + 1) @ a
            return x.sum()

        grad = jax.grad(f, argnums=tuple(range(1, layers + 1)))
        module = module_of(grad, ones(8, 8), *[ones(8, 8)] * layers)
        state = state_of(module)
        tile_arg(state, 0, 0, "batch")
        partition, taken = state.partition(), []
        for _ in range(3):
            begin = time.process_time()
            print_partition(partition, full=full)
            taken.append(time.process_time() - begin)
        return min(taken)

    for full in (False, True):
        assert seconds(256, full) < 8 * max(seconds(64, full), 2e-3)


def test_attributes_that_matter() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x @ y + jnp.einsum("ab,cb->ac", x, y)
        return jnp.cumsum(z[2:6], axis=1, dtype=z.dtype)

    module = module_of(f, ones(8, 8), ones(8, 8))
    text = print_partition(state_of(module).partition())
    assert " = dot_general %a0, %a1 :" in text
    assert " = dot_general[ac,bc->ab] %a0, %a1 :" in text
    assert "slice[start_indices=(2,0)]" in text
    assert "cumsum[axis=1]" in text
    assert "reverse" not in text
    full = print_partition(state_of(module).partition(), full=True)
    assert "limit_indices=(6,8)" in full
    assert "reverse=False" in full


def test_effects_are_printed() -> None:
    def f(x: Any) -> Any:
        for i in range(4):
            x = jnp.sin(x)
            if i == 2:
                jax.debug.print("x {}", x.sum())
        return x

    module = module_of(f, ones(8))
    effects: list[Op] = [op for op in module.ops if op.effect]
    text = print_partition(state_of(module).partition())
    assert len(effects) == 1
    assert re.search(rf"^  {effects[0].prim}.* %", text, re.MULTILINE)
