"""Trip counts of loops in the text of compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.aot.computations import computations
from partir_search.aot.hlo import hlo_collectives
from partir_search.aot.judge import judge
from partir_search.aot.loops import Loops, runs

X = jax.ShapeDtypeStruct((16, 16), jnp.float32)
W = jax.ShapeDtypeStruct((7, 16, 16), jnp.float32)
Step = Callable[[jax.Array, jax.Array], jax.Array]


def scan(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]


def nested(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 5, lambda _, c: scan(c, w), x)


def from_three(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(3, 11, lambda i, c: jnp.tanh(c @ w[i % 7]), x)


def downwards(x: jax.Array, w: jax.Array) -> jax.Array:
    def body(carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, c = carried
        return i - 3, jnp.tanh(c @ w[i % 7])

    return jax.lax.while_loop(lambda t: t[0] > 0, body, (jnp.int32(20), x))[1]


def by_data(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: c.sum() < 5, lambda c: c @ w[0], x)


def by_argument(x: jax.Array, w: jax.Array) -> jax.Array:
    n = x[0, 0].astype(jnp.int32)
    return jax.lax.fori_loop(0, n, lambda _, c: jnp.tanh(c @ w[0]), x)


def trips(text: str) -> list[int | None]:
    parts = computations(text)
    loops = Loops(parts)
    return [loops.trips(line) for p in parts for line in p.lines if " while(" in line]


@pytest.mark.parametrize(
    "step, expected",
    [
        (scan, [7]),
        (nested, [5, 7]),
        (from_three, [8]),
        (downwards, [7]),
        (by_data, [None]),
        (by_argument, [None]),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_conditions_tell_as_much_as_xla(step: Step, expected: list[int | None]) -> None:
    """XLA:CPU writes the counts; the conditions tell the same without them."""
    text = jax.jit(step).lower(X, W).compile().as_text()
    bare = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", text)
    assert "known_trip_count" not in bare
    assert sorted(map(str, trips(bare))) == sorted(map(str, expected))
    assert trips(text) == trips(bare)


def test_runs_multiply() -> None:
    parts = computations(jax.jit(nested).lower(X, W).compile().as_text())
    counted = runs(parts)
    dots = {counted[p.name] for p in parts if any(" dot(" in line for line in p.lines)}
    assert dots == {35}


# As XLA:TPU (libtpu 0.0.52) writes a scan of 7 steps in a fori_loop of 5, shortened. The inner
# loop's first value and limit are elements that the outer loop carries unchanged.
# ruff: noqa: E501
TPU = """
%inner_body (p: (s32[], bf16[512,1024], s32[])) -> (s32[], bf16[512,1024], s32[]) {
  %p = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %copy.8 = s32[]{:T(128)S(6)} copy(%i), backend_config={"flag_configs":[],"aliasing_operands":{"lists":[]}}
  %one.sunk = s32[]{:T(128)} constant(1)
  %add.25 = s32[]{:T(128)} add(%copy.8, %one.sunk), metadata={op_name="jit(f)/while/body/add" stack_frame_id=10}
  %limit.1 = s32[]{:T(128)} get-tuple-element(%p), index=2
  %c = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%p), index=1
  %all-reduce.4 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} all-reduce(%c), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add.clone
  ROOT %tuple.46 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) tuple(%add.25, %all-reduce.4, %limit.1)
}

%inner_condition (p.1: (s32[], bf16[512,1024], s32[])) -> pred[] {
  %p.1 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  %limit = s32[]{:T(128)} get-tuple-element(%p.1), index=2
  ROOT %lt.10 = pred[]{:T(512)} compare(%i.1, %limit), direction=LT, metadata={op_name="jit(f)/while/cond/lt"}
}

%outer_body (q: (s32[], bf16[512,1024], s32[], s32[])) -> (s32[], bf16[512,1024], s32[], s32[]) {
  %q = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}, /*index=3*/s32[]{:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  %two = s32[]{:T(128)} constant(2)
  %add.27 = s32[]{:T(128)} add(%j, %two)
  %zero.1 = s32[]{:T(128)} get-tuple-element(%q), index=2
  %seven.1 = s32[]{:T(128)} get-tuple-element(%q), index=3
  %x.1 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%q), index=1
  %tuple.41 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) tuple(%zero.1, %x.1, %seven.1)
  %while.34 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}) while(%tuple.41), condition=%inner_condition, body=%inner_body
  %x.2 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%while.34), index=1
  %seven.2 = s32[]{:T(128)} get-tuple-element(%while.34), index=2
  ROOT %tuple.49 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}, /*index=3*/s32[]{:T(128)}) tuple(%add.27, %x.2, %zero.1, /*index=3*/%seven.2)
}

%outer_condition (q.1: (s32[], bf16[512,1024], s32[], s32[])) -> pred[] {
  %ten = s32[]{:T(128)} constant(10)
  %q.1 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}, /*index=3*/s32[]{:T(128)}) parameter(0)
  %j.1 = s32[]{:T(128)} get-tuple-element(%q.1), index=0
  ROOT %lt.11 = pred[]{:T(512)} compare(%j.1, %ten), direction=LT
}

ENTRY %main.7_spmd (param.6: bf16[512,1024]) -> bf16[512,1024] {
  %constant.21.clone = s32[]{:T(128)} constant(0)
  %constant.7 = s32[]{:T(128)} constant(7)
  %param.6 = bf16[512,1024]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="x"}
  %copy.20 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} copy(%param.6), backend_config={"estimated_cycles":"1500"}
  %copy.12 = s32[]{:T(128)} copy(%constant.21.clone)
  %tuple.51 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}, /*index=3*/s32[]{:T(128)}) tuple(%copy.12, %copy.20, %constant.21.clone, /*index=3*/%constant.7)
  %while.33 = (s32[]{:T(128)}, bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, s32[]{:T(128)}, /*index=3*/s32[]{:T(128)}) while(%tuple.51), condition=%outer_condition, body=%outer_body
  ROOT %gte = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%while.33), index=1
}
"""


def test_xla_tpu_tells_no_counts() -> None:
    assert trips(TPU) == [7, 5]
    assert [c.times for c in hlo_collectives(TPU)] == [35]


def test_elements_in_short_form() -> None:
    """As newer versions print elements of tuples: `%p#0` in place of an instruction."""
    found = re.compile(r"  (%\S+) = \S+ get-tuple-element\((%\S+)\), index=(\d)\n")
    text = found.sub("", TPU)
    for name, element, index in found.findall(TPU):
        text = re.sub(re.escape(name) + r"(?=[,)])", f"{element}#{index}", text)
    assert "#0" in text
    assert trips(text) == [7, 5]


@pytest.mark.parametrize(
    "old, new",
    [
        ("constant(10)", "parameter(1)"),  # the limit is not known
        ("add(%j, %two)", "multiply(%j, %two)"),  # no constant step
        ("tuple(%copy.12,", "tuple(%param.6,"),  # nor the first value
        ("direction=LT\n", "direction=GT\n"),  # no run at all: that is known
        ("constant(2)", "constant(-2)"),  # no end
    ],
)
def test_what_is_not_known_is_none(old: str, new: str) -> None:
    text = TPU.replace(old, new)
    assert text != TPU
    inner, outer = trips(text)
    assert inner == 7
    assert outer == (0 if "GT" in new else None)


def test_a_limit_that_the_outer_loop_changes() -> None:
    text = TPU.replace("tuple(%add.27, %x.2, %zero.1, ", "tuple(%add.27, %x.2, %j, ")
    assert trips(text) == [None, 5]
    assert [c.times for c in hlo_collectives(text)] == [None]


def test_the_judge_counts_runs() -> None:
    """35 all_reduces of 1 MiB over 4 devices of 8; of an unknown loop one run, and it is said."""
    mesh = ps.MeshShape(("data", "model"), (2, 4))
    machine = ps.MACHINES["tpu_v5e"]
    full = judge(TPU, mesh, machine)
    once = judge(TPU.replace("constant(10)", "parameter(1)"), mesh, machine)
    assert (full.unknown, once.unknown) == (0, 1)
    assert full.total - full.compute == pytest.approx(5 * (once.total - once.compute))
    assert full.total > full.compute > 0
