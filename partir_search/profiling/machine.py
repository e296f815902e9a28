"""Measured figures of a machine: collectives by group, products by shape, rates of the memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from partir_search.ir.mesh import MeshShape
from partir_search.profile.entries import Group, MeasuredCollective, MeasuredProduct
from partir_search.profiling.clocks import ClockName, clock_of, seconds_of
from partir_search.simulator.time.collectives import grouping

Axes = tuple[str, ...]
Body = Callable[[Any], Any]

KIBIBYTES = (16, 64, 256, 1024, 4096)
SIDES = {"cpu": (64, 256, 1024), "wall": (256, 1024, 4096)}  # by clock
SMALLEST = (1, 16, 16, 16)
BATCHED = ((16, 128, 128, 64), (16, 128, 64, 128), (64, 64, 64, 32))
HEADS = ((128, 1024, 1024, 64), (128, 1024, 64, 1024), (64, 2048, 2048, 128))
CHAIN = 200  # small kernels one after the other
ELEMENTS = {"cpu": 4 * 2**20, "wall": 2**26}  # of an elementwise pass, beyond all caches, by clock


def _permute(x: Any, axes: Axes, n: int) -> Any:
    return lax.ppermute(x, axes, [(i, (i + 1) % n) for i in range(n)])


COLLECTIVES: Mapping[str, Callable[..., Any]] = {  # of x, axes and their size n
    "all_gather": lambda x, axes, n: lax.all_gather(x, axes, tiled=True),
    "all_reduce": lambda x, axes, n: lax.psum(x, axes),
    "reduce_scatter": lambda x, axes, n: lax.psum_scatter(x, axes, tiled=True),
    "all_to_all": lambda x, axes, n: lax.all_to_all(x, axes, 0, 0, tiled=True),
    "collective_permute": _permute,
}


def groups_of(mesh: MeshShape) -> dict[Group, Axes]:
    """Grouping patterns of all sets of a mesh's axes, each with its axes."""
    axes = [a for a, size in enumerate(mesh.device_sizes) if size > 1]
    sets = itertools.chain(*(itertools.combinations(axes, n + 1) for n in range(len(axes))))
    return {grouping(each, mesh): tuple(mesh.names[a] for a in each) for each in sets}


def measured_collectives(
    mesh: Mesh,
    *,
    kibibytes: Sequence[int] = KIBIBYTES,
    repeats: int = 7,
    clock: ClockName | None = None,
) -> Iterator[MeasuredCollective]:
    """Measures every kind of collective on every grouping pattern of a mesh.

    Args:
      kibibytes: payloads, the larger side on one device.
      repeats: runs of each; the median counts.
      clock: see `clock_of`.
    """
    clock = clock or clock_of(mesh)
    shape = MeshShape(tuple(mesh.axis_names), tuple(mesh.axis_sizes))
    for group, axes in groups_of(shape).items():
        n = shape.size([shape.index(name) for name in axes])
        for kind, collective in COLLECTIVES.items():
            body: Body = functools.partial(collective, axes=axes, n=n)
            nbytes, seconds = [], []
            for size in kibibytes:
                elements = size * 1024 // 4 // (n if kind == "all_gather" else 1) // n * n
                nbytes.append(elements * 4 * (n if kind == "all_gather" else 1))
                seconds.append(
                    seconds_of(body, [(elements,)], mesh, jnp.float32, repeats=repeats, clock=clock)
                )
            yield MeasuredCollective.fitted(kind, group, nbytes, seconds)


def product_shapes(clock: ClockName = "cpu") -> list[tuple[int, int, int, int]]:
    """(batch, m, n, k) of products to measure, larger ones for the wall clock of accelerators; m
    and n exchanged are the same product.
    """
    found = [(1, m, n, k) for m, n, k in itertools.product(SIDES[clock], repeat=3) if m >= n]
    return [*found, *BATCHED, *(HEADS if clock == "wall" else ())]


def measured_products(
    mesh: Mesh,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    *,
    shapes: Sequence[tuple[int, int, int, int]] | None = None,
    repeats: int = 5,
    clock: ClockName | None = None,
) -> Iterator[MeasuredProduct]:
    """Measures products of matrices on all devices at once.

    By the wall clock the seconds of a product of 16 x 16 are the start of a call, and are
    subtracted; products that do not take three times as long are left out, as they say more about
    the host than about the device.

    Args:
      dtypes: types of the operands.
      shapes: (batch, m, n, k); default: `product_shapes(clock)`.
      repeats: runs of each; the median counts.
      clock: see `clock_of`.
    """
    clock = clock or clock_of(mesh)

    def spent(dtype: str, shape: tuple[int, int, int, int]) -> float:
        batch, m, n, k = shape
        operands = [(batch, m, k), (batch, k, n)]
        return seconds_of(jnp.matmul, operands, mesh, dtype, repeats=repeats, clock=clock)

    for dtype in dtypes:
        start = spent(dtype, SMALLEST) if clock == "wall" else 0.0
        for shape in shapes or product_shapes(clock):
            seconds = spent(dtype, shape)
            if seconds >= 3 * start:
                yield MeasuredProduct(dtype, shape, 2 * math.prod(shape) / (seconds - start))


def measured_rates(
    mesh: Mesh, *, repeats: int = 7, clock: ClockName | None = None
) -> dict[str, float]:
    """Attained bytes per second of an elementwise pass, and seconds to start a kernel."""
    clock = clock or clock_of(mesh)

    def seconds(body: Body, elements: int) -> float:
        return seconds_of(body, [(elements,)], mesh, jnp.float32, repeats=repeats, clock=clock)

    elements = ELEMENTS[clock]
    spent = seconds(lambda x: x * 2 + 1, elements)
    small = seconds(_chain, 8)
    return {"hbm_bytes_per_s": 8 * elements / spent, "kernel_seconds": small / CHAIN}


def _chain(x: Any) -> Any:
    for _ in range(CHAIN):
        x = lax.optimization_barrier(jnp.sin(x))  # not fused
    return x
