"""`shard_map` regions whose mesh has other axes than the program's, on the same devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import partir_search as ps

P = jax.P
X = jnp.sin(jnp.arange(256.0)).reshape(16, 16)
Step = Callable[..., Any]


def mesh_of(sizes: Sequence[int], names: Sequence[str], devices: Any = None) -> Mesh:
    every = np.array(jax.devices()[:8] if devices is None else devices)
    types = (AxisType.Auto,) * len(sizes)
    return Mesh(every.reshape(sizes), names, axis_types=types)


def abstract(sizes: Sequence[int], names: Sequence[str]) -> AbstractMesh:
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=(AxisType.Auto,) * len(sizes))


MESH = mesh_of((4, 2), ("data", "model"))


def check(step: Step, *args: Any, mesh: Mesh = MESH, plain: Step | None = None) -> dict[str, int]:
    """Collectives by kind of the program of a search, which equals the plain one."""
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", episodes=20)(step)
    plan = partitioned.plan(*args)
    counts = plan.collective_counts
    assert ps.stablehlo_counts(partitioned.lower(*args).as_text()) == counts
    want = jax.jit(plain or step)(*args)
    for a, b in zip(jax.tree.leaves(partitioned(*args)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return {kind: n for kind, n in counts.items() if n}


def region(body: Step, mesh: Mesh, ins: Any, out: Any = None, **manual: Any) -> Step:
    specs = {"in_specs": ins, "out_specs": ins if out is None else out}
    return jax.shard_map(body, mesh=mesh, **specs, check_vma=False, **manual)


def every_collective(along: str, across: str, n: int) -> Step:
    """A body with each kind of collective along one axis, and sums over both."""

    def body(x: Any) -> Any:
        rows = lax.all_gather(x, along, axis=0, tiled=True)
        stacked = lax.all_gather(x, along)
        y = lax.psum(x, along) + 2 * lax.axis_index(along) + lax.axis_index(across)
        y += lax.ppermute(x, along, [(i, (3 * i + 1) % n) for i in range(n)])
        y += stacked[0] + lax.pmax(x, (along, across)) + lax.axis_index((across, along))
        y += lax.psum_scatter(rows, along, tiled=True)
        return y + lax.all_to_all(rows, along, 0, 0, tiled=True)[: x.shape[0]]

    return body


EVERY = {"all_gather": 2, "all_reduce": 2, "reduce_scatter": 1, "collective_permute": 1}


@pytest.mark.devices
@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((4, 2), ("y", "x")),  # other names
        ((2, 4), ("x", "y")),  # `y` lies along a sub-axis and an axis
        ((2, 4), ("model", "data")),  # the same names with other devices
        ((8, 1), ("x", "y")),  # one device along `y`
        ((1, 8), ("x", "y")),
    ],
)
@pytest.mark.parametrize("spec", [P(("x", "y")), P(("y", "x")), P("y", "x")], ids=str)
def test_every_collective(
    sizes: tuple[int, int], names: tuple[str, str], spec: PartitionSpec
) -> None:
    along, across = ("data", "model") if "data" in names else ("y", "x")
    here = {"x": across, "y": along}
    entries = [tuple(here[n] for n in (e if isinstance(e, tuple) else (e,))) for e in spec]
    mesh = mesh_of(sizes, names)
    inner = region(every_collective(along, across, mesh.shape[along]), mesh, P(*entries))
    # jax leaves out sums and exchanges among one device
    several = {"all_to_all": 1} if mesh.shape[along] > 1 else {"all_reduce": 1}
    assert check(lambda x: inner(x * 2) + 1, X) == EVERY | several


@pytest.mark.devices
def test_one_flat_axis() -> None:
    """Sums, a ring and the device's number along all axes of the program, forward and backward."""
    flat = mesh_of((8,), ("all",))

    def body(x: Any) -> Any:
        ring = lax.ppermute(x, "all", [(i, (i + 1) % 8) for i in range(8)])
        return ring * x + lax.psum(x.sum(0), "all") + lax.axis_index("all")

    inner = jax.shard_map(body, mesh=flat, in_specs=P("all"), out_specs=P("all"))
    assert check(lambda x: inner(x * 2), X) == {"all_reduce": 1, "collective_permute": 1}
    grad = jax.grad(lambda x, y: (inner(x * y) ** 2).sum())
    assert check(grad, X, X) == {"all_reduce": 2, "collective_permute": 2}


@pytest.mark.devices
def test_products_under_grad_and_scan() -> None:
    """A product whose summands lie along a sub-axis and an axis, as it is and in a loop."""
    turned = mesh_of((2, 4), ("x", "y"))
    specs = P("x", "y"), P("y", None)
    matmul = jax.shard_map(
        lambda x, w: lax.psum(x @ w, "y"), mesh=turned, in_specs=specs, out_specs=P("x")
    )

    def loss(w: Any, x: Any) -> Any:
        return (matmul(jnp.sin(x), w) ** 2).sum()

    assert check(jax.grad(loss), X, X) == {"all_reduce": 2}

    def steps(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (matmul(jnp.sin(x), w) / 4, x.sum()), x, None, length=3)

    check(steps, X, X)
    check(jax.grad(lambda w, x: steps(w, x)[0].sum()), X, X)


@pytest.mark.devices
def test_regions_that_leave_axes() -> None:
    """Axes that a region leaves to the compiler, and a region inside of a region."""
    turned = mesh_of((2, 4), ("x", "y"))

    def body(a: Any) -> Any:
        a = lax.with_sharding_constraint(a * 2, P(None, "x"))
        return a @ jnp.ones((16, 16)) + lax.axis_index("y")

    partly = region(body, turned, P("y"), axis_names={"y"})
    assert check(lambda x: partly(x * 2), X) == {}

    def around(a: Any) -> Any:
        inner = jax.shard_map(
            lambda a: a * 2 + lax.axis_index("y") + 10 * lax.axis_index("x"),
            in_specs=P("y"),
            out_specs=P("y"),
            axis_names={"y"},
        )
        return inner(a) + lax.axis_index("x")

    nested = region(around, turned, P("x"), axis_names={"x"})
    assert check(lambda x: nested(x * 2), X) == {"all_gather": 1}


@pytest.mark.devices
def test_an_abstract_mesh() -> None:
    """A mesh without devices has the program's, in their order."""
    inner = region(lambda a: a * 2 + lax.axis_index("y"), abstract((2, 4), ("x", "y")), P("y", "x"))
    check(inner, X, plain=lambda x: x * 2 + jnp.arange(16.0)[:, None] // 4)


@pytest.mark.devices
def test_regions_over_several_meshes() -> None:
    """One axis of the program in three sub-axes; a region that names the axis whole lies beside."""
    mesh = mesh_of((8,), ("data",))
    number = {"y": lambda a: a + lax.axis_index("y"), "data": lambda a: a + lax.axis_index("data")}
    one = region(number["y"], mesh_of((2, 4), ("x", "y")), P("x", "y"))
    two = region(number["y"], mesh_of((4, 2), ("x", "y")), P("x", "y"))
    whole = region(number["data"], mesh, P("data"))
    check(lambda x: one(x) + two(2 * x) + whole(x * 3), X, mesh=mesh)
    check(lambda x: jax.vmap(one)(x.reshape(2, 8, 16)), X, mesh=mesh)


@pytest.mark.devices
def test_transposed_devices() -> None:
    """Devices in the order of the transposed mesh lie along the program's axes, too."""
    other = mesh_of((8,), ("all",), np.array(jax.devices()[:8]).reshape(4, 2).T)
    inner = region(lambda a: a * 2 + lax.axis_index("all"), other, P("all"))
    check(inner, X, plain=lambda x: x * 2 + jnp.arange(16.0)[:, None] // 2)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            mesh_of((8,), ("all",), np.array(jax.devices()[:8])[[0, 1, 2, 4, 3, 5, 6, 7]]),
            r"test_regions.*over axes <all:8> .* in an order .* mesh<data:4, model:2>.*; pass",
        ),
        (mesh_of((2, 2), ("x", "y"), jax.devices()[:4]), r"test_regions.*<x:2, y:2>.* number of"),
    ],
    ids=["order", "number"],
)
def test_refused(mesh: Mesh, message: str) -> None:
    inner = region(lambda a: a * 2, mesh, P(mesh.axis_names))
    step = ps.auto_partition(MESH, machine="cpu")(lambda x: inner(x * 2))
    with pytest.raises(ValueError, match=message):
        step.plan(X)


def test_parts_that_do_not_nest() -> None:
    mesh = abstract((12,), ("data",))
    one = region(lambda a: a * 2, abstract((3, 4), ("x", "y")), P("x"))
    two = region(lambda a: a * 2, abstract((4, 3), ("x", "y")), P("x"))
    step = ps.auto_partition(mesh, machine="cpu")(lambda x: one(x) + two(x))
    with pytest.raises(
        ValueError, match=r"test_regions.* lies along data:\(1\)4 .* in sub-axes of"
    ):
        step.plan(jnp.ones((12, 12)))
