"""Permutes by the busiest link, and what of a ring stays exposed."""

from __future__ import annotations

import collections
import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.axis_options import Modes
from partir_search.ir.mesh import MeshShape
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.localize import localize
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES, Machine
from partir_search.simulator.time.permutes import link_loads, permute_seconds
from tests.support import module_of, state_of, tile_arg

N = 4
MESH = MeshShape(("r", "c"), (N, N)).with_diagonals(["r~c"])
V5E = MACHINES["tpu_v5e"]


def shift(r: int, c: int) -> tuple[Edge, ...]:
    """Every device receives from (r, c) further on."""
    return tuple((((i + r) % N) * N + (j + c) % N, i * N + j) for i in range(N) for j in range(N))


def test_loads() -> None:
    assert link_loads(shift(0, 1), (N, N)) == {(1, -1): (1, 1)}
    assert link_loads(shift(-1, 1), (N, N)) == {(0, 1): (1, 1), (1, -1): (1, 1)}
    assert link_loads(shift(2, 0), (N, N)) == {(0, 1): (2, 2)}
    assert link_loads(((0, 0), (1, 1)), (N,)) == {}


def test_loads_hop_by_hop() -> None:
    """Blocks of a random permutation on each link, walked one hop after the other."""
    sizes, rng = (3, 4, 2), random.Random(0)
    targets = rng.sample(range(24), 24)
    links, hops = collections.Counter[tuple[int, int, tuple[int, ...]]](), {}
    for source, target in enumerate(targets):
        at, goal = ([int(x) for x in np.unravel_index(i, sizes)] for i in (source, target))
        for axis, n in enumerate(sizes):
            ahead = (goal[axis] - at[axis]) % n
            sign, count = (1, ahead) if 2 * ahead <= n else (-1, n - ahead)
            for _ in range(count):
                links[axis, sign, tuple(at)] += 1
                at[axis] = (at[axis] + sign) % n
                hops[axis, sign] = max(count, hops.get((axis, sign), 0))
    busiest = {key: max(c for (*way, _), c in links.items() if tuple(way) == key) for key in hops}
    wanted = {key: (busiest[key], hops[key]) for key in hops}
    assert link_loads(tuple(enumerate(targets)), sizes) == wanted


@pytest.mark.parametrize("machine, together", [("tpu_v5e", 1.0), ("h100", 2.0)])
def test_two_at_once(machine: str, together: float) -> None:
    """On a torus two axes have their own links; a switch's link is shared."""
    m, nbytes = MACHINES[machine], 1e9
    one = permute_seconds([(shift(0, 1), (0, 1), nbytes)], MESH, m)
    both = [(shift(0, 1), (0, 1), nbytes), (shift(1, 0), (0, 1), nbytes)]
    assert permute_seconds(both, MESH, m) == pytest.approx(together * one, rel=1e-3)
    if m.torus:  # a direction has half of the axis's bandwidth
        assert one == pytest.approx(2 * nbytes / m.link_bytes_per_s, rel=1e-3)
        there_and_back = [(shift(0, s), (0, 1), nbytes) for s in (1, -1)]
        assert permute_seconds(there_and_back, MESH, m) == pytest.approx(one, rel=1e-3)


def ring_cost(size: int, machine: Machine) -> Cost:
    """A square product on the ring."""
    x = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    state = state_of(module_of(jnp.matmul, x, x), MESH)
    for arg, dim, axis in ((0, 0, "r"), (0, 1, "c"), (1, 1, "r~c")):
        tile_arg(state, arg, dim, axis)
    model = CostModel(state.graph.module, state.graph.rules, machine)
    return model.evaluate(localize(state.partition()))


def test_large_blocks_hide_their_permutes() -> None:
    """What is exposed of a large product is the permutes at the program's edge; the work is one
    part of n^2, and a device sends (n - 1) blocks of each operand besides.
    """
    size = 65536
    edge = dataclasses.replace(V5E, link_bytes_per_s=1e30, hop_seconds=0.0)
    fast = ring_cost(size, edge)
    cost = ring_cost(size, V5E)
    assert cost.flops == 2 * size**3 / N**2
    block = 2 * size**2 / N**2
    assert cost.bytes_by_kind == {"collective_permute": (2 * (N - 1) + 2) * block}
    assert fast.collective_seconds < 1e-15
    moved = cost.collective_seconds * V5E.link_bytes_per_s / 2 / block
    assert 2 <= moved <= 4.1  # in and out of the ring, over as many links as lie between
    small = ring_cost(4096, V5E)
    assert small.collective_seconds > 0.5 * small.seconds


def test_what_turns_move_beside_one_product() -> None:
    """Collective matmul: a gathered operand is not read as a copy, but what is put together
    from blocks is read again. Sums that arrive are read instead of the partial sums that one
    product writes.
    """
    machine = dataclasses.replace(V5E, vmem_bytes=0).with_traits(
        f32_dot_operand_bytes=4,
        keeps_dots_wide=False,
        fuses_one_hot_updates=False,
        fuses_weight_casts=False,
        recomputes_dot_operands=False,
    )
    rows, inner, columns = 64, 256, 32
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, inner), (inner, columns)))

    def bytes_saved(result: bool) -> float:
        state = state_of(module_of(jnp.matmul, x, w), MeshShape(("a",), (N,)))
        product = state.graph.module.body.ops[0].results[0]
        if result:  # sums are scattered over rows
            tile_arg(state, 0, 1, "a")
            state.tile(state.graph.class_of[product.id], 0, (0,))
        else:  # rows are gathered
            tile_arg(state, 1, 1, "a")
            tile_arg(state, 0, 0, "a")
        model = CostModel(state.graph.module, state.graph.rules, machine)
        before = model.evaluate(localize(state.partition())).compute_seconds
        state.modes = Modes(windowed_einsums={0: False})
        after = model.evaluate(localize(state.partition())).compute_seconds
        return (before - after) * machine.attained_hbm_bytes_per_s

    gathered, assembled = 4 * rows * inner, 4 * rows * columns / N
    assert bytes_saved(False) == pytest.approx(gathered - assembled)
    assert bytes_saved(True) == pytest.approx(0.0, abs=1e-6)
