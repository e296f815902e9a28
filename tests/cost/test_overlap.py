"""Collectives behind products that nothing waits for, against hand arithmetic."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.analysis.critical_path import off_critical_path
from partir_search.ir.core import Module
from partir_search.lowering.localize import localize
from partir_search.rules.registry import RuleTable
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.latency_hiding import InFlightCollective, OverlapWindow
from tests.support import ROUND, module_of, ones, state_of, tile_arg

N = 64
MACHINE = dataclasses.replace(ROUND, hbm_bytes_per_s=1e15, link_bytes_per_s=1e8).with_traits(
    defers_weight_gradients=True
)


def step(x: Any, *weights: Any) -> Any:
    """Gradient descent on a chain of products."""

    def loss(*w: Any) -> Any:
        h = x
        for each in w:
            h = jnp.tanh(h @ each)
        return jnp.sum(h)

    gradients = jax.grad(loss, tuple(range(len(weights))))(*weights)
    return [w - g for w, g in zip(weights, gradients, strict=True)]


def scanned(x: Any, weights: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, each: (jnp.tanh(h @ each), None), x, w)[0])

    return weights - jax.grad(loss)(weights)


def products(module: Module) -> list[tuple[tuple[int, ...], bool]]:
    """Shape of each product's result, and whether another product waits for it."""
    late = off_critical_path(module, [RuleTable()(op) for op in module.ops])
    found = [op.results[0] for op in module.ops if op.prim == "dot_general"]
    return [(v.type.shape, v.id not in late) for v in found]


def test_products_wait_for_all_but_gradients_of_parameters() -> None:
    found = products(module_of(step, ones(32, 8), ones(8, 8), ones(8, 8), ones(8, 8)))
    assert found == [
        *[((32, 8), True)] * 3,  # forward
        *[((8, 8), False), ((32, 8), True)] * 2,
        ((8, 8), False),
    ]


def test_what_a_loop_carries_is_waited_for() -> None:
    """In a scan's body as well: activations and their gradients are carried, those of parameters
    are stacked.
    """
    found = products(module_of(scanned, ones(32, 8), ones(3, 8, 8)))
    assert sorted(found) == [((8, 8), False), ((32, 8), True), ((32, 8), True)]


def test_reductions_wait_for_products_to_hide_behind() -> None:
    """Three gradients are reduced in 0.16 ms each and made in 1.05 ms each; links ten times slower
    keep on when all three products are done.
    """
    args = (ones(256, N), *[ones(N, N)] * 3)
    state = state_of(module_of(step, *args))
    tile_arg(state, 0, 0, "batch")
    n = state.mesh.sizes[state.mesh.index("batch")]
    reduced = 2 * (n - 1) / n * 4 * N * N / MACHINE.link_bytes_per_s
    made = 2 * 256 * N * N / n / 1e9

    def exposed(machine: Machine) -> float:
        model = CostModel(state.graph.module, state.graph.rules, machine)
        return model.evaluate(localize(state.partition())).collective_seconds

    assert exposed(MACHINE.with_traits(defers_weight_gradients=False)) == pytest.approx(3 * reduced)
    assert exposed(MACHINE) == 0.0
    slow = dataclasses.replace(MACHINE, link_bytes_per_s=MACHINE.link_bytes_per_s / 10)
    assert exposed(slow) == pytest.approx(30 * reduced - 3 * made, rel=0.01)


def sending(seconds: float) -> InFlightCollective:
    return InFlightCollective("all_reduce", "x", seconds, seconds, None, 0)


def test_what_waits_is_hidden_first() -> None:
    behind = OverlapWindow()
    late = [sending(3.0), sending(2.0)]
    behind.work(1.0)
    for each in late:
        behind.begin(each, deferrable=True)
    assert [s.exposed for s in late] == [2.0, 2.0]
    behind.work(3.0)
    assert [s.exposed for s in late] == [0.0, 1.0]
    behind.work(2.0)
    awaited = sending(4.0)
    behind.begin(awaited, deferrable=False)
    behind.work(9.0)
    behind.end()
    assert [s.exposed for s in behind.begun] == [0.0, 0.0, 3.0]
    behind.begin(after := sending(1.0), deferrable=False)
    assert after.exposed == 1.0


def test_layers_of_a_fold_hide_in_the_next() -> None:
    """Four layers of a collective of 2 s each, and then of a product of 1 s: only the first layer
    has no product before it; three products hide 1 s each.
    """
    whole, folded = OverlapWindow(), OverlapWindow()
    for _ in range(4):
        whole.begin(sending(2.0), deferrable=False)
        whole.work(1.0)
    whole.end()
    assert sum(s.exposed for s in whole.begun) == 5.0
    folded.begin(sending(8.0), deferrable=False, layers=4)
    folded.work(4.0)
    folded.end()
    # As if the last layer's product hid some too.
    assert sum(s.exposed for s in folded.begun) == 4.0
