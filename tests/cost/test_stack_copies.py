"""Stacks of scans on a target with memory on the chip."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.core import Module
from partir_search.lowering.localize import localize
from partir_search.simulator.memory.stacks import stack_rows
from partir_search.simulator.simulator import CostModel
from tests.support import ROUND, module_of, state_of

ROWS, N = 5, 64
CHIP = dataclasses.replace(
    ROUND,
    vector_bytes=4,
    vmem_bytes=N * N * 4 * 8.0,  # holds all values of an iteration, and no stack
    vmem_bytes_per_s=2.0 * ROUND.attained_hbm_bytes_per_s,
).with_traits(copies_reduced_rows=True)


def stacking(*, carry: bool = False, sums: bool = False, dtype: Any = np.float32) -> Module:
    """A scan that stacks a product in each iteration.

    Args:
      carry: the carry is stacked as well.
      sums: a sum is fused into the product.
      dtype: of all values.
    """

    def body(x: Any, a: Any) -> Any:
        product = x @ a
        total = product.sum(axis=1) if sums else product[:, 0]
        return lax.cumsum(product) + total[:, None], (product, x) if carry else (product,)

    args = jnp.ones((N, N), dtype), jnp.ones((ROWS, N, N), dtype)
    return module_of(lambda x, rows: lax.scan(body, x, rows), *args)


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({}, ()),
        ({"carry": True}, ("x",)),
        ({"sums": True}, ("product",)),
        ({"carry": True, "sums": True}, ("product", "x")),
    ],
)
def test_copied_rows(options: dict[str, bool], copied: tuple[str, ...]) -> None:
    """A carry, and a product with a sum; the kernel of a product alone writes into the stack."""
    module = stacking(**options)
    (scan,) = (op for op in module.ops if op.regions)
    _, *rows = scan.regions[0].results
    expected = {"product": rows[0].id, "x": rows[-1].id}
    state = state_of(module)
    model = CostModel(state.graph.module, state.graph.rules, CHIP)
    assert sorted(model.time.stacks.value.tolist()) == sorted(expected[name] for name in copied)
    without = CHIP.with_traits(copies_reduced_rows=False)
    assert not len(CostModel(state.graph.module, state.graph.rules, without).time.stacks.value)


@pytest.mark.parametrize(("dtype", "moved"), [(np.float32, 1.5), (jnp.bfloat16, 3.5)])
def test_seconds_of_a_copy(dtype: Any, moved: float) -> None:
    """A row is read on the chip and written to main memory; vector units take as long for a narrow
    element as main memory for four bytes.
    """
    state = state_of(stacking(sums=True, dtype=dtype))
    model = CostModel(state.graph.module, state.graph.rules, CHIP)
    found = model.load(state.partition()).roofline
    parts, (k,) = found.components, model.time.stacks.kernel
    leader = model.time.kernels.leader[k]
    kernel = max(parts.dots[leader], parts.vectors[leader] + parts.moves[leader])
    size = np.dtype(dtype).itemsize
    row = N * N * size / ROUND.attained_hbm_bytes_per_s
    assert found.seconds[leader] - kernel == pytest.approx(ROWS * moved * row)


def test_the_breakdown_has_copies() -> None:
    state = state_of(stacking(carry=True, sums=True))
    model = CostModel(state.graph.module, state.graph.rules, CHIP)
    program = localize(state.partition())
    rows = model.breakdown(program)
    assert sum(r.seconds for r in rows) == pytest.approx(model.evaluate(program).seconds)
    copying = [r.kind for r in rows if "copies_reduced_rows" in r.traits]
    assert copying == ["dot_general"]


def test_stacks_of_a_loop_lie_together() -> None:
    """Rows count with all stacks of their loop: three here, of rows as large."""
    module = stacking(carry=True)
    (scan,) = (op for op in module.ops if op.regions)
    found = stack_rows(module, state_of(module).graph.rules)
    rows = scan.regions[0].args[-1], *scan.regions[0].results[1:]
    assert [found[v.id] for v in rows] == [3.0 * ROWS] * 3
    assert found[scan.regions[0].results[0].id] == 1.0
