"""The printed IR: goldens of partitioned programs, what a line may hold, what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from models import transformer
from partir_search.ir.core import Op
from partir_search.ir.printer import print_partition
from partir_search.ir.printing import blocks
from partir_search.ir.printing.text import WIDTH
from tests.calls import calls_of
from tests.ir.printed import AXES, PROGRAMS, plan_of
from tests.support import (
    check_partition,
    floats_of,
    module_of,
    ones,
    state_of,
    tile_arg,
)


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
    """Four times the layers take about four times the calls, printed in full or not."""

    def calls(layers: int, full: bool) -> int:
        def f(x: Any, *w: Any) -> Any:
            for i, a in enumerate(w):
                with jax.named_scope(f"layer_{i}"):
                    x = jnp.tanh(jnp.sin(x @ a) * 2 + 1) @ a
            return x.sum()

        grad = jax.grad(f, argnums=tuple(range(1, layers + 1)))
        module = module_of(grad, ones(8, 8), *[ones(8, 8)] * layers)
        state = state_of(module)
        tile_arg(state, 0, 0, "batch")
        partition = state.partition()
        return calls_of(lambda: print_partition(partition, full=full))

    for full in (False, True):
        assert calls(64, full) < 5 * calls(16, full)


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
