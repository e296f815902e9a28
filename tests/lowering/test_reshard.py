"""Redistribution: normal form, and every pair of small layouts executed on devices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.aot.hlo import hlo_counts, stablehlo_counts
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.lowering.diagonals import redistribute
from partir_search.lowering.emit_steps import run_step
from partir_search.lowering.reorder import crosses, reorder
from partir_search.lowering.reshard import reshard
from partir_search.lowering.reshard_steps import ReduceScatter, ReshardStep
from partir_search.lowering.shard_map import partition_spec
from tests.support import device_mesh

MESH = MeshShape(("x", "y", "z"), (2, 2, 2))


def layouts() -> list[Layout]:
    """All layouts of a matrix on three axes."""
    found: list[Layout] = []
    for places in itertools.product((None, 0, 1), repeat=3):
        for order in itertools.permutations(range(3)):
            dims: list[tuple[int, ...]] = [(), ()]
            for axis in order:
                d = places[axis]
                if d is not None:
                    dims[d] = (*dims[d], axis)
            if tuple(dims) not in found:
                found.append(tuple(dims))
    return found


def test_every_pair_arrives() -> None:
    for a, b in itertools.product(layouts(), repeat=2):
        steps = reshard(a, (), b)
        assert (steps[-1].layout if steps else a) == b


def test_normal_form() -> None:
    """With at most one axis on a dim and no axis changing places with another.

    Slices, then all_to_alls, then gathers: never more than the larger side in memory.
    """
    order = ["slice", "all_to_all", "all_gather"]

    def tiles(layout: Layout) -> int:
        return len([axis for axes in layout for axis in axes])

    simple = [a for a in layouts() if all(len(axes) <= 1 for axes in a)]
    looked = 0
    for a, b in itertools.product(simple, repeat=2):
        if a[0] + a[1] == b[1] + b[0] and len(a[0] + a[1]) == 2:
            continue
        steps = reshard(a, (), b)
        if any(x and y and x != y for x, y in zip(a, b, strict=True)):
            continue
        looked += 1
        kinds = [order.index(s.kind) for s in steps]
        assert kinds == sorted(kinds), (a, b)
        assert all(tiles(s.layout) >= min(tiles(a), tiles(b)) for s in steps), (a, b)
    assert looked > 20


@pytest.mark.parametrize(
    "source,partial,target,kinds",
    [
        (((0,), ()), (), ((0,), ()), []),
        (((), ()), (), ((0,), ()), ["slice"]),
        (((0,), ()), (), ((), ()), ["all_gather"]),
        (((0,), ()), (), ((), (0,)), ["all_to_all"]),
        (((0, 1), ()), (), ((), ()), ["all_gather"]),
        (((0, 1), ()), (), ((), (0, 1)), ["all_to_all"]),
        (((2, 0, 1), ()), (), ((2,), (0, 1)), ["all_to_all"]),
        (((0, 1), ()), (), ((), (1, 0)), ["all_to_all"] * 2),
        (((), ()), ((0, "sum"),), ((), ()), ["all_reduce"]),
        (((), ()), ((0, "sum"), (1, "sum")), ((), ()), ["all_reduce"]),
        (((), ()), ((0, "sum"),), ((0,), ()), ["reduce_scatter"]),
        (((), ()), ((0, "max"),), ((0,), ()), ["all_reduce", "slice"]),
        (((1,), ()), ((0, "sum"),), ((1,), (0,)), ["reduce_scatter"]),
        (((1,), ()), ((0, "sum"), (2, "max")), ((), ()), ["all_reduce"] * 2 + ["all_gather"]),
    ],
)
def test_steps(source: Layout, partial: Any, target: Layout, kinds: list[str]) -> None:
    assert [s.kind for s in reshard(source, partial, target)] == kinds


@pytest.mark.devices
def test_every_pair_on_devices() -> None:
    """One program per source redistributes to every target; all equal the original."""
    mesh = device_mesh(MESH)
    x = jnp.arange(64.0).reshape(8, 8)
    targets = layouts()
    for source in targets[::7]:
        plans = [reshard(source, (), t) for t in targets]

        def body(tile: Any, plans: Any = plans) -> Any:
            out = []
            for steps in plans:
                y = tile
                for step in steps:
                    y = run_step(MESH, step, y)
                out.append(y)
            return tuple(out)

        spec = partition_spec(MESH, source)
        outs = tuple(partition_spec(MESH, t) for t in targets)
        f = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=outs, check_vma=False)
        for y in jax.jit(f)(jax.device_put(x, NamedSharding(mesh, spec))):
            np.testing.assert_array_equal(y, x)


SIZES = (2, 3, 2)


def orders() -> list[tuple[Layout, Layout]]:
    """Pairs of layouts that have axes of one dim in different orders."""
    return [(a, b) for a, b in itertools.product(layouts(), repeat=2) if crosses(a, b)]


def test_orders_by_permutes() -> None:
    """Where the order alone differs one permute does; else no more moves than by gathers."""

    def moved(source: Layout, steps: tuple[ReshardStep, ...]) -> float:
        shares = [1 / math.prod(SIZES[a] for axes in x for a in axes) for x in (source,)]
        for step in steps:
            shares.append(1 / math.prod(SIZES[a] for axes in step.layout for a in axes))
        sent = zip(steps, itertools.pairwise(shares), strict=True)
        return sum(max(pair) for step, pair in sent if step.kind != "slice")

    pairs = orders()
    assert len(pairs) > 100
    for a, b in pairs:
        steps = reorder(SIZES, a, (), b, ())
        assert steps[-1].layout == b
        if all(set(x) == set(y) for x, y in zip(a, b, strict=True)):
            assert [s.kind for s in steps] == ["collective_permute"]
        assert moved(a, steps) <= moved(a, reshard(a, (), b))
    one = reorder((2, 1, 2), ((0, 1), ()), (), ((1, 0), ()), ())
    assert [s.kind for s in one] == ["slice"]  # an axis of one device: nothing moves
    partial = reorder(SIZES, ((0, 1), ()), ((2, "sum"),), ((1, 0, 2), ()), ())
    assert [s.kind for s in partial] == ["reduce_scatter", "collective_permute"]
    entering = reorder(SIZES, ((0,), (1,)), (), ((), (0, 1)), ())
    assert [s.kind for s in entering] == ["all_to_all", "collective_permute"]
    leaving = reorder(SIZES, ((), (0, 1)), (), ((0,), (1,)), ())
    assert [s.kind for s in leaving] == ["collective_permute", "all_to_all"]
    held = reorder(SIZES, ((0, 1), ()), ((2, "sum"),), ((1, 0), ()), ((2, "sum"),))
    assert [s.partial for s in held] == [((2, "sum"),)]


@pytest.mark.devices
def test_orders_on_devices() -> None:
    shape = MeshShape(("x", "y", "z"), SIZES)
    mesh, x = device_mesh(shape), jnp.arange(144.0).reshape(12, 12)
    pairs = orders()[::20]
    for source, each in itertools.groupby(pairs, key=lambda pair: pair[0]):
        targets = [b for _, b in each]

        def body(tile: Any, source: Layout = source, targets: Any = targets) -> Any:
            out = []
            for target in targets:
                y = tile
                for step in redistribute(shape, source, (), target):
                    y = run_step(shape, step, y)
                out.append(y)
            return tuple(out)

        spec = partition_spec(shape, source)
        outs = tuple(partition_spec(shape, t) for t in targets)
        f = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=outs, check_vma=False)
        for y in jax.jit(f)(jax.device_put(x, NamedSharding(mesh, spec))):
            np.testing.assert_array_equal(y, x)


@pytest.mark.devices
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(("axes", "dtype"), [((0,), np.float32), ((1, 0), np.complex64)])
def test_reduce_scatter_with_tiles_in_front(dim: int, axes: tuple[int, ...], dtype: Any) -> None:
    """Both forms give each device the same tile of the sum, by one collective of real numbers."""
    step = ReduceScatter(axes=axes, dim=dim, monoid="sum", layout=((), (), ()), partial=())
    x = jnp.arange(8.0 * 8 * 8).reshape(8, 8, 8).astype(dtype)
    x = x * (1 - 2j) if dtype is np.complex64 else x
    names = tuple(MESH.names[a] for a in axes)
    n = math.prod(MESH.sizes[a] for a in axes)

    def body(tile: Any) -> Any:
        mine = tile * (1 + lax.axis_index(names))
        return run_step(MESH, step, mine), run_step(MESH, step, mine, tiles_first=True)

    spec = PartitionSpec(*[None] * dim, names)
    f = jax.shard_map(
        body,
        mesh=device_mesh(MESH),
        in_specs=PartitionSpec(),
        out_specs=(spec, spec),
        check_vma=False,
    )
    scatters = [s for s in str(jax.make_jaxpr(f)(x)).splitlines() if "= reduce_scatter" in s]
    assert len(scatters) == 2
    assert not any("c64" in scatter for scatter in scatters)
    plain, front = jax.jit(f)(x)
    np.testing.assert_array_equal(plain, x * sum(range(1, n + 1)))
    np.testing.assert_array_equal(front, plain)


def test_counting_text() -> None:
    """Combined collectives count their operands; old and new forms of replica groups parse."""
    hlo = """
ENTRY %main (a: f32[4], b: f32[]) -> f32[2] {
      %ar = (f32[4]{0}, f32[]) all-reduce(%a, %b), replica_groups={{0,1}}, to_apply=%add
      %ag = f32[8,4]{1,0} all-gather(%c), replica_groups=mesh['x'=2] {'x'}, dimensions={0}
      %s = (f32[2]{0}, f32[2]{0}) all-reduce-start(%d), to_apply=%add
      %t = (f32[1]{0}, f32[1]{0}) all-to-all(%e, %f), dimensions={0}
      ROOT %u = f32[2]{0} add(%g, %all-reduce.7)
    """
    counts = hlo_counts(hlo)
    assert (counts["all_reduce"], counts["all_gather"], counts["all_to_all"]) == (3, 1, 1)
    text = '"stablehlo.all_reduce"(%1) stablehlo.all_gather(%2) "stablehlo.add"(%3)'
    assert stablehlo_counts(text)["all_reduce"] == 1
