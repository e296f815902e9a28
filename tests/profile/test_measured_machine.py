"""Measured figures of a machine, on CPU devices; no test of their sizes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import partir_search as ps
from partir_search.profiling import machine as measure


def pair() -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])


def test_groups_of_a_mesh() -> None:
    """All sets of axes; two that are the same devices are one."""
    mesh = ps.MeshShape(("a", "b", "c"), (4, 1, 2))
    assert measure.groups_of(mesh) == {((4, 2),): ("a",), ((2, 1),): ("c",), ((8, 1),): ("a", "c")}


@pytest.mark.parametrize("kind", measure.COLLECTIVES)
def test_collectives_that_are_timed(kind: str) -> None:
    """Each of the kind that its name says, on all axes of a group."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])
    spec = PartitionSpec(("a", "b"))
    run = jax.shard_map(
        lambda x: measure.COLLECTIVES[kind](x, ("a", "b"), 4),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    x = np.arange(16 * 4, dtype=np.float32)
    found, parts = np.array(jax.jit(run)(x)), x.reshape(4, 16)
    wanted = {
        "all_gather": np.tile(x, 4),
        "all_reduce": np.tile(parts.sum(axis=0), 4),
        "reduce_scatter": parts.sum(axis=0),
        "all_to_all": parts.reshape(4, 4, 4).swapaxes(0, 1).ravel(),
        "collective_permute": np.roll(parts, 1, axis=0).ravel(),
    }
    np.testing.assert_array_equal(found, wanted[kind])


def test_entries() -> None:
    mesh = pair()
    links = list(measure.measured_collectives(mesh, kibibytes=(4, 16), repeats=1))
    assert {c.kind for c in links} == set(measure.COLLECTIVES)
    assert all(c.group == ((2, 1),) and c.nbytes == (4096, 16384) for c in links)
    assert all(min(c.seconds) > 0 and min(c.alpha, c.beta) >= 0 for c in links)
    shapes = [(1, 64, 32, 16), (2, 8, 8, 8)]
    products = list(measure.measured_products(mesh, ["float32"], shapes=shapes, repeats=1))
    assert [p.key for p in products] == [("float32", s) for s in shapes]
    rates = measure.measured_rates(mesh, repeats=1)
    assert rates.keys() == {"hbm_bytes_per_s", "kernel_seconds"}
    assert all(figure > 0 for figure in (*rates.values(), *(p.flops_per_s for p in products)))
