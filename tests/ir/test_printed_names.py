"""Names, slices and counts in the printed IR."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.printer import print_partition
from partir_search.ir.printing.names import printed_as
from tests.ir.printed import plan_of
from tests.support import (
    module_of,
    ones,
    state_of,
    tile_arg,
)


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
