"""Random chains of products on meshes with diagonals, some as collective matmuls: oracle, emitted
program and jax agree, and so do all copies of a result, bit for bit.

`pytest tests/lowering/test_ring_programs.py --programs=1000` runs longer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.axis_options import Modes
from partir_search.ir.mesh import MeshShape
from partir_search.propagation.state import State
from tests.support import check_partition, floats_of, module_of, state_of

MESHES = (
    MeshShape(("r", "c"), (2, 2)).with_diagonals(["r~c"]),
    MeshShape(("r", "c"), (3, 3)).with_diagonals(["r~c"]),
    MeshShape(("r", "s", "c"), (2, 2, 2)).with_diagonals(["r~c"]),
)


def build(rng: random.Random) -> tuple[Callable[..., Any], list[jax.Array]]:
    """One to three products, forward alone or with gradients."""
    widths = [rng.choice([6, 12, 18]) for _ in range(rng.randint(2, 4))]
    batched, residual, norm, transposed, gradient = (rng.random() < 0.5 for _ in range(5))

    def forward(x: Any, *weights: Any) -> Any:
        h = x
        for i, w in enumerate(weights):
            h = jnp.tanh(jnp.einsum("...n,kn->...k", h, w) if transposed and i % 2 else h @ w)
            if norm:
                h = h - h.mean(-1, keepdims=True)
            if residual and h.shape == x.shape:
                h = h + x
        return h

    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.sin(forward(*args)))

    shapes: list[tuple[int, ...]] = [(6, 4, widths[0]) if batched else (12, widths[0])]
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        shapes.append((b, a) if transposed and i % 2 else (a, b))
    fn = jax.grad(loss, tuple(range(len(shapes)))) if gradient else forward
    return fn, floats_of(*shapes)


def act(state: State, rng: random.Random) -> None:
    """Random legal tilings, most of arguments."""
    graph = state.graph
    for _ in range(rng.randint(3, 10)):
        cls = rng.randrange(len(graph.shapes))
        if rng.random() < 0.6:
            cls = graph.class_of[rng.choice(graph.module.body.args).id]
        if graph.shapes[cls]:
            dim, axis = rng.randrange(len(graph.shapes[cls])), rng.randrange(len(state.mesh.names))
            if state.may_tile(cls, dim, (axis,)):
                state.tile(cls, dim, (axis,))


@pytest.mark.devices
def test_random_chains(request: pytest.FixtureRequest) -> None:
    rings = 0
    for seed in range(request.config.getoption("--programs") // 2):
        rng = random.Random(seed)
        fn, args = build(rng)
        mesh = rng.choice(MESHES)
        state = state_of(module_of(fn, *args), mesh, contract=rng.random() < 0.5)
        act(state, rng)
        if rng.random() < 0.5:
            streams = dict.fromkeys(range(len(mesh.device_names)), False)
            state.modes = Modes(windowed_einsums=streams)
        partition = state.partition()
        rings += sum(partition.ring(op) is not None for op in partition.module.ops)
        check_partition(partition, fn, args)
    assert rings
