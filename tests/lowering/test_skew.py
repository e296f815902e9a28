"""Redistribution on diagonals: every block arrives, by collectives along axes of devices only."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.lowering.diagonals import redistribute, without_diagonals
from partir_search.lowering.emit_steps import run_step
from partir_search.lowering.reshard_steps import ReshardStep
from partir_search.lowering.shard_map import partition_spec
from tests.support import device_mesh

SQUARE = MeshShape(("r", "c"), (4, 4)).with_diagonals(["r~c"])


def layouts(axes: Sequence[int], rank: int) -> list[Layout]:
    """All that tile by at most two of the first two axes and the last, their diagonal."""
    found = []
    for dims in itertools.product(range(-1, rank), repeat=len(axes)):
        held = [a for a, d in zip(axes, dims, strict=True) if d >= 0]
        if len({0, 1, axes[-1]} & set(held)) == 3:
            continue
        for order in itertools.permutations(range(len(axes))):
            layout = tuple(tuple(axes[i] for i in order if dims[i] == d) for d in range(rank))
            found.append(layout)
    return list(dict.fromkeys(found))


@pytest.mark.devices
@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), pytest.param((3, 3), marks=pytest.mark.long)], ids=str
)
def test_redistribution_moves_every_block(sizes: tuple[int, ...]) -> None:
    """Any layout to any other, by what devices hold afterwards; nothing along a diagonal."""
    shape = MeshShape(("r", "c", "s")[: len(sizes)], sizes).with_diagonals(["r~c"])
    every = layouts(range(len(shape.names)), 2)
    rng = random.Random(0)
    side = sizes[0] ** 3
    x = jnp.arange(float(side**2)).reshape(side, side)
    kinds = set()
    for _ in range(12):
        way = rng.sample(every, 4)
        way = [without_diagonals(shape, way[0]), *way, without_diagonals(shape, way[-1])]
        steps = [step for a, b in itertools.pairwise(way) for step in redistribute(shape, a, (), b)]
        kinds.update(s.kind for s in steps)
        for step in steps:
            if step.kind not in ("slice", "collective_permute"):
                assert max(step.axes) < len(shape.device_names)
        moved = jax.shard_map(
            functools.partial(_run, shape, steps),
            mesh=device_mesh(shape),
            in_specs=partition_spec(shape, way[0]),
            out_specs=partition_spec(shape, way[-1]),
            check_vma=False,
        )
        placed = NamedSharding(device_mesh(shape), partition_spec(shape, way[0]))
        got = jax.jit(moved)(jax.device_put(x, placed))
        np.testing.assert_array_equal(got, x, err_msg=str(way))
    assert {"slice", "collective_permute", "all_gather", "all_to_all"} <= kinds


@pytest.mark.devices
def test_sums_are_finished_on_the_way() -> None:
    """Any sums that are partial on other axes than a value is tiled by, from any layout to any."""
    shape = MeshShape(("r", "c", "s"), (2, 2, 2)).with_diagonals(["r~c"])
    every = layouts(range(len(shape.names)), 2)
    rng = random.Random(0)
    x = jnp.arange(64.0**2).reshape(64, 64)
    for i in range(20):
        source, target = rng.sample(every, 2)
        sums = rng.sample(range(4), 2)
        if i % 2:  # the same dims are tiled, on others of the three axes; the sum is on none
            source = rng.choice([t for t in every if 2 not in t[0] + t[1] and any(t)])
            target = rng.choice([t for t in every if _masked(t) == _masked(source)])
            sums = [2]
        used = {a for axes in source for a in axes}
        sums = sorted(set(sums) - used)
        while len({0, 1, 3} & (used | set(sums))) == 3:
            sums.pop()
        partial = tuple((a, "sum") for a in sums)
        way = [*redistribute(shape, without_diagonals(shape, source), (), source)]
        steps = redistribute(shape, source, partial, target)
        assert not steps or (steps[-1].layout, steps[-1].partial) == (target, ())
        back = [*redistribute(shape, target, (), without_diagonals(shape, target))]

        def run(block: Any, way: Any = way, sums: Any = sums, steps: Any = (*steps, *back)) -> Any:
            block = _run(shape, way, block)
            r, c, s = (jax.lax.axis_index(name) for name in ("r", "c", "s"))
            places = jnp.stack([r, c, s, (r + c) % 2])
            block *= jnp.all(places[jnp.array(sums, int)] == 0)  # one device's share is all
            return _run(shape, steps, block)

        moved = jax.shard_map(
            run,
            mesh=device_mesh(shape),
            in_specs=partition_spec(shape, without_diagonals(shape, source)),
            out_specs=partition_spec(shape, without_diagonals(shape, target)),
            check_vma=False,
        )
        placed = NamedSharding(
            device_mesh(shape), partition_spec(shape, without_diagonals(shape, source))
        )
        got = jax.jit(moved)(jax.device_put(x, placed))
        np.testing.assert_array_equal(got, x, err_msg=f"{source} {partial} {target}")


@pytest.mark.parametrize("held", ["rc", "rd", "cd"])
def test_the_same_blocks_elsewhere_are_one_permute(held: str) -> None:
    axes = {"r": 0, "c": 1, "d": 2}
    source = tuple((axes[h],) for h in held)
    for other in itertools.permutations(axes.values(), 2):
        target = tuple((a,) for a in other)
        steps = redistribute(SQUARE, source, (), target)
        skew = source != target and (2 in other or "d" in held)
        if skew:
            assert [s.kind for s in steps] == ["collective_permute"]
            assert len(set(steps[0].pairs)) == 16


@pytest.mark.parametrize("on, along", [("r", 1), ("c", 0)])
def test_a_sum_on_the_diagonal_is_one_on_the_free_axis(on: str, along: int) -> None:
    mesh = SQUARE
    source = ((mesh.index(on),), ())
    (step,) = redistribute(mesh, source, ((2, "sum"),), source)
    assert (step.kind, step.axes) == ("all_reduce", (along,))


def _masked(layout: Layout) -> list[list[int]]:
    """The layout with r, c and their diagonal taken for one another."""
    return [[2 if a == 2 else -1 for a in axes] for axes in layout]


def _run(shape: MeshShape, steps: Sequence[ReshardStep], block: Any) -> Any:
    for step in steps:
        block = run_step(shape, step, block)
    return block


def test_a_lone_sum_on_the_diagonal_is_permuted_first() -> None:
    """Rows of devices would else add the same up in different orders, and copies would differ."""
    permute, reduce = redistribute(SQUARE, ((),), ((2, "sum"),), ((),))
    assert [permute.kind, reduce.kind] == ["collective_permute", "all_reduce"]
    assert permute.partial == tuple((a, "sum") for a in reduce.axes)
