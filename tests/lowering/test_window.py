"""Windows of tiled dims: senders and receivers, and ops that read windows on several meshes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.boundaries import MODES, Beyond
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Window
from partir_search.lowering.halo import crossed, window_steps
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Halo, HaloGather, HaloPermute, ReshardStep
from tests.support import check_partition, floats_of, module_of, state_of


def simulate(x: np.ndarray[Any, Any], tiles: int, steps: tuple[ReshardStep, ...]) -> list[Any]:
    """What each device holds after the steps, of a vector tiled by all."""
    held = [[tile] for tile in np.split(x, tiles)]
    for step in steps:
        if isinstance(step, HaloPermute):
            got = [np.zeros(step.length)] * tiles
            for source, target in step.pairs:
                got[target] = held[source][0][step.start :][: step.length]
            assert len({s for s, _ in step.pairs}) == len({t for _, t in step.pairs})
            for blocks, block in zip(held, got, strict=True):
                blocks.append(block)
        elif isinstance(step, Halo):
            held = [[put_together(blocks, step, i)] for i, blocks in enumerate(held)]
        else:
            assert isinstance(step, HaloGather)
            held = [[x]] * tiles
    return [blocks[0] for blocks in held]


def put_together(blocks: list[Any], step: Halo, device: int) -> Any:
    out = np.zeros(step.size)
    filled = 0
    for piece in step.pieces:
        at, to, n = piece.spans[device]
        assert at + n <= len(blocks[piece.block])
        out[to : to + n] = blocks[piece.block][at:][:n]
        filled += n
    single = len({p.spans[device][1] for p in step.pieces}) == len(step.pieces)
    assert not (step.uniform and single) or filled == step.size
    return out


def test_every_stretch_is_put_together() -> None:
    rng = random.Random(0)
    kinds = set()
    for _ in range(400):
        tiles, tile = rng.choice([2, 3, 4, 8]), rng.choice([1, 2, 5])
        size = rng.randrange(1, 2 * tile + 3)
        step, first = rng.choice([tile, size, -size, 0, 1]), rng.randrange(-3, 5)
        starts = tuple(step * i + first + (tile * (tiles - 1)) * (step < 0) for i in range(tiles))
        window = Window(0, (0,), starts, size)
        x = np.arange(1.0, tiles * tile + 1)
        steps = window_steps(window, tiles * tile, True, ((0,),), ())
        around = np.pad(x, 100)
        wanted = [around[100 + s :][:size] for s in starts]
        for got, want in zip(simulate(x, tiles, steps), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        whole = window_steps(window, tiles * tile, False, ((),), ())
        assert [s.kind for s in whole] == ["halo"]
        for i, want in enumerate(wanted):
            np.testing.assert_array_equal(put_together([x], whole[0], i), want)
        kinds.update(s.kind for s in steps)
    assert kinds == {"halo", "collective_permute", "all_gather"}


def test_every_stretch_with_boundaries_is_put_together() -> None:
    rng = random.Random(1)
    uniform = 0
    for _ in range(600):
        tiles, tile = rng.choice([2, 3, 4, 8]), rng.choice([1, 2, 5])
        n = tiles * tile
        below, above = rng.choice(MODES), rng.choice(MODES)
        extent = n - rng.choice([0, 0, 0, 1])
        beyond = Beyond(extent, below, above)
        size = rng.choice([tile, tile + 1, tile + 2, tile + 3])
        first = rng.randrange(-3, 4) if rng.random() < 0.8 else rng.randrange(n)
        starts = tuple(tile * i + first for i in range(tiles))
        window = Window(0, (0,), starts, size, beyond)
        x = np.arange(1.0, n + 1)
        sources = [beyond.sources(s, size) for s in starts]
        wanted = [np.where(s < 0, 0.0, x[s]) for s in sources]
        steps = window_steps(window, n, True, ((0,),), ())
        for got, want in zip(simulate(x, tiles, steps), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        for i, want in enumerate(wanted):
            whole = window_steps(window, n, False, ((),), ())
            np.testing.assert_array_equal(put_together([x], whole[0], i), want)
        uniform += bool(steps) and steps[-1].kind == "halo" and steps[-1].uniform
    assert uniform > 100


def test_boundaries_are_those_of_numpy() -> None:
    x = np.arange(1, 8)
    for mode in MODES:
        wanted = np.pad(x, 3, mode=mode or "constant")  # type: ignore[call-overload]
        sources = Beyond(7, mode, mode).sources(-3, 13)
        np.testing.assert_array_equal(np.where(sources < 0, 0, x[sources]), wanted)


def test_a_ring_is_one_permute_a_side() -> None:
    window = Window(0, (0,), (-1, 9, 19, 29), 12, Beyond(40, "wrap", "wrap"))
    left, right, last = window_steps(window, 40, True, ((0,),), ())
    assert left.pairs == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert right.pairs == ((0, 3), (1, 0), (2, 1), (3, 2))
    assert (left.length, right.length) == (1, 1)
    assert last.uniform


def test_a_halo_is_two_permutes_of_its_width() -> None:
    window = Window(0, (0,), (-1, 9, 19, 29), 13)
    left, right, last = window_steps(window, 40, True, ((0,),), ())
    assert {s.kind for s in (left, right)} == {"collective_permute"}
    assert (left.length, right.length) == (1, 2)
    assert left.pairs == ((0, 1), (1, 2), (2, 3))
    assert right.pairs == ((1, 0), (2, 1), (3, 2))
    assert last.uniform


def test_nothing_moves_where_the_stretch_is_the_tile() -> None:
    assert window_steps(Window(0, (0,), (0, 10, 20), 10), 30, True, ((0,),), ()) == ()


def test_axes_that_pairs_cross() -> None:
    assert crossed([(0, 1), (2, 3)], {"a": 2, "b": 2}) == ("b",)
    assert crossed([(0, 1), (1, 2)], {"a": 2, "b": 2}) == ("a", "b")


def conv(strides: tuple[int, int], padding: str) -> Callable[..., Any]:
    def f(x: Any, k: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=layout)
        return jnp.tanh(y)

    return f


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def training(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: jax.value_and_grad(
        lambda *ys: (f(*ys) ** 2).mean(), argnums=tuple(range(len(xs)))
    )(*xs)


IMAGE, KERNEL = (2, 16, 24, 3), (3, 3, 3, 4)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "same": (training(conv((1, 1), "SAME")), (IMAGE, KERNEL)),
    "strided": (training(conv((2, 2), "SAME")), (IMAGE, KERNEL)),
    "valid": (conv((1, 1), "VALID"), (IMAGE, (5, 3, 3, 4))),
    "wide_kernel": (training(conv((1, 1), "SAME")), (IMAGE, (9, 7, 3, 4))),
    "pool": (training(pool), (IMAGE,)),
    "roll": (training(lambda x: jnp.roll(x, (5, -3), (1, 2)) * x), (IMAGE,)),
    "halves": (
        training(lambda x: jnp.concatenate([x[:, 8:], -x[:, :8]], 1) * x[:, ::-1]),
        (IMAGE,),
    ),
}
MESHES = {
    "8": (MeshShape(("x",), (8,)), {"x": 1}),
    "2x2": (MeshShape(("x", "y"), (2, 2)), {"x": 1, "y": 2}),
    "2x4": (MeshShape(("x", "y"), (2, 4)), {"x": 1, "y": 1}),
    "3x2": (MeshShape(("x", "y"), (3, 2)), {"x": 2, "y": 1}),
    "2x2x2": (MeshShape(("x", "y", "z"), (2, 2, 2)), {"x": 1, "z": 1, "y": 2}),
}


def tiled_image(module: Module, mesh: MeshShape, dims: dict[str, int]) -> Any:
    state = state_of(module, mesh)
    image = state.graph.class_of[module.body.args[0].id]
    for axis, dim in dims.items():
        state.tile(image, dim, mesh.axes(axis))
    return state.partition()


# Every program on two meshes, every mesh under several programs.
PAIRS = [
    (program, mesh)
    for i, program in enumerate(PROGRAMS)
    for j, mesh in enumerate(MESHES)
    if (i + j) % len(MESHES) in (0, 2)
]


@pytest.mark.devices
@pytest.mark.parametrize(("program", "mesh"), PAIRS)
def test_tiled_images(program: str, mesh: str) -> None:
    fn, shapes = PROGRAMS[program]
    args = floats_of(*shapes)
    partition = tiled_image(module_of(fn, *args), *MESHES[mesh])
    check_partition(partition, fn, args)
    kinds = {m.step.kind for m, _ in localize(partition).reshards()}
    if program in ("same", "strided", "pool"):  # elsewhere sizes do not divide
        assert "collective_permute" in kinds
        assert "all_gather" not in kinds


@pytest.mark.devices
@pytest.mark.parametrize("program", ["same", "strided", "halves"])
def test_axes_out_of_order(program: str) -> None:
    """A dim tiled by two axes whose major one is the mesh's last, also around one between them."""
    fn, shapes = PROGRAMS[program]
    args = floats_of(*shapes)
    mesh = MeshShape(("x", "y", "z"), (2, 2, 2))
    state = state_of(module_of(fn, *args), mesh)
    image = state.graph.class_of[state.graph.module.body.args[0].id]
    for axis, dim in (("z", 1), ("x", 1), ("y", 2)):
        state.tile(image, dim, mesh.axes(axis))
    partition = state.partition()
    partition.order = (2, 0, 1)
    check_partition(partition, fn, args)


def test_a_convolutional_layer_exchanges_its_halos_and_nothing_else() -> None:
    """Forward: the image's two sides; backward: the cotangent's two, for the image's gradient.
    The kernel's gradient reads the image with the halo that the forward pass fetched.
    """
    args = floats_of(IMAGE, KERNEL)
    module = module_of(training(conv((1, 1), "SAME")), *args)
    moves = [m for m, _ in localize(tiled_image(module, *MESHES["8"])).reshards()]
    kinds = [m.step.kind for m in moves if m.step.kind not in ("slice", "halo")]
    assert kinds.count("collective_permute") == 4
    assert set(kinds) == {"collective_permute", "all_reduce"}
    row = 2 * 1 * 24 * 4  # batch, one row, columns, bytes
    sent = [m.payload_bytes for m in moves if m.step.kind == "collective_permute"]
    assert sent == [row * 3, row * 3, row * 4, row * 4]


@pytest.mark.devices
def test_windows_that_xla_takes_for_groups() -> None:
    """The gradient of a transposed convolution's kernel, on tiles of two rows: XLA:CPU aborts on
    the convolution as it would be written (jaxlib 0.10 and 0.12).
    """

    def fn(image: Any, kernel: Any, out: Any) -> Any:
        def up(kernel: Any) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            return lax.conv_general_dilated(
                image, kernel, (1, 1), [(2, 2)] * 2, (2, 2), dimension_numbers=numbers
            )

        return jax.vjp(up, kernel)[1](out)[0]

    args = floats_of((8, 4, 4, 8), (4, 4, 8, 4), (8, 8, 8, 4))
    state = state_of(module_of(fn, *args), MeshShape(("x",), (4,)))
    cls = state.graph.class_of[state.graph.module.body.args[2].id]
    state.tile(cls, 1, (0,))
    check_partition(state.partition(), fn, args)
