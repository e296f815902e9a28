"""Rolls, differences, padded stencils and updates of an interior on a tiled grid: halos move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import COLLECTIVES
from partir_search.passes.align import aligned
from partir_search.passes.views import with_views
from partir_search.propagation.state import State
from partir_search.rules import windowed
from tests.support import assert_same, module_of, run_emitted, run_evaluator, state_of, tile_arg

ROWS = ps.ManualPartition({"x": 0}, axis="x")
N, M, C = 32, 16, 2
ROW = M * C * 4  # bytes
MESHES = {"8": MeshShape(("r",), (8,)), "4x2": MeshShape(("r", "c"), (4, 2))}
Form = Callable[[Any], Any]

rng = np.random.default_rng(0)
KERNEL = rng.normal(size=(3, 3, C, C)).astype(np.float32)
INNER = rng.normal(size=(1, N - 2, M, C)).astype(np.float32)


def conv(x: Any, padding: Any = "VALID", stride: int = 1) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, KERNEL, (stride, 1), padding, dimension_numbers=layout)


def padded(x: Any, mode: str, width: int = 1, columns: int = 0) -> Any:
    config = ((0, 0), (width, width), (columns, columns), (0, 0))
    return jnp.pad(x, config, mode=mode)  # type: ignore[call-overload]


def nine_points(x: Any, mode: str) -> Any:
    p = padded(x, mode, columns=1)
    return sum(
        p[:, i : i + N, j : j + M] * (i + 1.0) * (j - 0.3) for i in range(3) for j in range(3)
    )


def rollout(x: Any) -> Any:
    def step(u: Any, _: Any) -> tuple[Any, None]:
        return u + 0.1 * (jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 2 * u), None

    return lax.scan(step, x, None, 3)[0]


def heat(x: Any) -> Any:
    """Steps of diffusion with boundary rows set after each; places are constants of the loop."""

    def step(u: Any, _: Any) -> tuple[Any, None]:
        p = padded(u, "edge")
        u = u.at[:, 1:-1].add(0.1 * (p[:, 2:] - 2 * u + p[:, :-2])[:, 1:-1])
        return u.at[:, 0].set(u[:, 1]).at[:, -1].set(u[:, -2]), None

    return lax.scan(jax.checkpoint(step), x, None, 2)[0]


def staggered(x: Any) -> Any:
    """Fluxes through faces between cells, none through the outermost."""
    faces = jnp.pad(x[:, 1:] * x[:, :-1], ((0, 0), (1, 1), (0, 0), (0, 0)))
    return faces[:, 1:] - faces[:, :-1]


def boundary_rows(x: Any) -> Any:
    return jnp.concatenate([x[:, :1] * 2, (x[:, 2:] + x[:, :-2]) / 2, x[:, -1:] * 3], 1)


def flux(x: Any, mode: str, width: int = 1, of: Form = lambda p: p**2 * jnp.tanh(p)) -> Any:
    """Differences of a flux computed with ghost cells."""
    q = 0.5 * of(padded(x, mode, width))
    return q[:, 2 * width :] - q[:, : -2 * width]


def resized(x: Any, rows: int, method: str) -> Any:
    return jax.image.resize(x, (1, rows, M, C), method)


FORMS: dict[str, tuple[Form, int, int]] = {  # function, rows that move forward and in all
    "roll": (lambda x: jnp.roll(x, 1, 1) * x, 1, 2),
    "roll far": (lambda x: jnp.roll(x, 3, 1) * x, 3, 6),
    "roll both dims": (lambda x: jnp.roll(x, (2, -1), (1, 2)) * x, 2, 4),
    "differences": (lambda x: (x[:, 1:] - x[:, :-1]) ** 2, 1, 2),
    "differences of differences": (lambda x: jnp.sin(jnp.diff(x, n=2, axis=1)), 2, 6),
    "gradient": (lambda x: jnp.gradient(x, axis=1), 5, 12),
    "zeros": (lambda x: conv(padded(x, "constant")), 2, 4),
    "zeros, every second": (lambda x: conv(padded(x, "constant"), stride=2), 1, 2),
    "wrapped": (lambda x: conv(padded(x, "wrap")), 2, 4),
    "wrapped both dims": (lambda x: conv(padded(x, "wrap", columns=1)), 2, 4),
    "edges": (lambda x: conv(padded(x, "edge")), 2, 8),
    "reflected": (lambda x: conv(padded(x, "reflect")), 2, 8),
    "symmetric": (lambda x: conv(padded(x, "symmetric")), 2, 8),
    "pooled": (
        lambda x: lax.reduce_window(
            padded(x, "constant"), 0.0, lax.add, (1, 3, 1, 1), (1, 1, 1, 1), "VALID"
        ),
        2,
        4,
    ),
    "no padding": (lambda x: jnp.sin(conv(x)), 2, 6),
    "add inside": (lambda x: x.at[:, 1:-1].add(INNER * x[:, 1:-1]), 2, 4),
    "set inside": (lambda x: x.at[:, 1:-1].set(INNER * x[:, 2:]), 3, 6),
    "multiply inside": (lambda x: x.at[:, 1:-1].multiply(INNER), 0, 0),
    "set both dims": (lambda x: x.at[:, 1:-1, 1:-1].set(x[:, :-2, 2:] * 2), 3, 6),
    "add inside a channel": (lambda x: x.at[:, 1:-1, :, :1].add(x[:, 2:, :, 1:] * 2), 3, 6),
    "set inside a channel": (lambda x: x.at[:, 1:-1, 1:, 1:].set(x[:, 2:, 1:, :1] * 2), 3, 6),
    "flux, wrapped": (lambda x: flux(x, "wrap"), 2, 16),
    "flux, edges": (lambda x: flux(x, "edge"), 2, 16),
    "diffusion, edges": (lambda x: flux(x, "edge", 2, jnp.positive), 4, 10),
    "flux, less an element": (
        lambda x: flux(x, "edge", 1, lambda p: p * p - lax.stop_gradient(x[0, 0, 0, 0])),
        3,
        9,
    ),
    "flux, reflected": (lambda x: flux(x, "reflect"), 2, 22),
    "set a row": (lambda x: x.at[:, 0].set(0.0), 0, 0),
    "set a row by another": (lambda x: x.at[:, :1].set(x[:, -1:] * 2), 1, 3),
    "set shifted": (lambda x: x.at[:, 1:].set(x[:, :-1]), 1, 2),
    "token shift": (
        lambda x: jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1] * x,
        1,
        2,
    ),
    "zeros before": (
        lambda x: jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1) * x,
        1,
        2,
    ),
    "nine points": (lambda x: nine_points(x, "constant"), 2, 8),
    "nine points, wrapped": (lambda x: nine_points(x, "wrap"), 2, 8),
    "rollout": (rollout, 2, 4),
    "staggered": (staggered, 2, 4),
    "boundary rows": (boundary_rows, 5, 12),
    "resized, twice as large": (lambda x: resized(x, 2 * N, "bilinear"), 2, 4),
    "resized, half as large": (lambda x: resized(x, N // 2, "bilinear"), 2, 4),
    "resized, cubic": (lambda x: resized(x, 2 * N, "cubic"), 6, 14),
    "resized, nearest": (lambda x: resized(x, 2 * N, "nearest"), 0, 0),
    "resized, nearest, half": (lambda x: resized(x, N // 2, "nearest"), 0, 0),
    "first and last row": (lambda x: x - x[:, 0:1] + x[:, -1:], 2, 5),
}


def planned(fn: Callable[..., Any], mesh: MeshShape, x: Any) -> State:
    """The function's program with rows tiled along `r`."""
    module, _ = aligned(with_views(module_of(fn, x)), mesh)
    verify(module)
    state = state_of(module, mesh, contract=True)
    tile_arg(state, 0, 1, "r")
    return state


def sent(state: State) -> tuple[int, int]:
    """Bytes of all collectives and of the largest, but for those that only make results whole."""
    sizes = [0]
    for move, _ in localize(state.partition()).reshards():
        if move.step.kind in COLLECTIVES and not (move.op and move.op.prim == "slice"):
            sizes.append(move.payload_bytes)
    return sum(sizes), max(sizes)


@pytest.mark.devices
@pytest.mark.parametrize("form", FORMS)
def test_halos_move(form: str) -> None:
    fn, forward, both = FORMS[form]
    x = jax.random.normal(jax.random.key(1), (1, N, M, C))

    def f(x: Any) -> Any:
        return (fn(x),)

    def g(x: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sin(fn(x)).sum())(x)

    for mesh, step, rows in ((MESHES["8"], g, both), (MESHES["4x2"], f, forward)):
        state = planned(step, mesh, x)
        total, most = sent(state)
        assert total <= rows * ROW + 8, (form, total / ROW)
        assert most <= 3 * ROW
        want = jax.tree.leaves(jax.jit(step)(x))
        assert_same(run_emitted(state.partition(), [x]), want)
        if step is f:
            assert_same(run_evaluator(state.partition(), [x]), want)


@pytest.mark.devices
def test_steps_with_boundary_rows_gather_nothing() -> None:
    x = jax.random.normal(jax.random.key(1), (1, 128, 8, 1))

    def step(x: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sin(heat(x)).sum())(x)

    state = planned(step, MESHES["8"], x)
    for move, _ in localize(state.partition()).reshards():
        assert move.step.kind != "all_gather"
        assert move.step.kind not in COLLECTIVES or move.payload_bytes <= 12 * 8 * 4
    assert_same(run_emitted(state.partition(), [x]), jax.tree.leaves(jax.jit(step)(x)))


def test_a_periodic_stencil_moves_two_permutes_a_step() -> None:
    x = jnp.ones((1, N, M, C))
    state = planned(lambda x: (rollout(x),), MESHES["8"], x)
    moves = [move for move, _ in localize(state.partition()).reshards()]
    permutes = [m for m in moves if m.step.kind == "collective_permute"]
    assert [m.payload_bytes for m in permutes] == [ROW, ROW]
    assert {m.step.kind for m in moves} == {"collective_permute", "halo"}


def test_multiples_are_counted_without_a_loop() -> None:
    """Products of a convolution over 16 million elements, with strides, dilations and padding."""
    for _ in range(500):
        first, step, count, period, limit = (
            int(rng.integers(*ends)) for ends in ((-20, 20), (1, 8), (0, 16), (1, 7), (0, 10))
        )
        numbers = (first + i * step for i in range(count))
        want = sum(n % period == 0 and 0 <= n < limit * period for n in numbers)
        assert windowed._multiples(first, step, count, period, limit) == want


def test_a_search_finds_rows() -> None:
    """Of a rollout whose step is a periodic convolution over few channels, and its gradient."""
    grid = jax.ShapeDtypeStruct((1, 2048, 2048), jnp.float32)
    kernels = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 3, 1, 8), (3, 3, 8, 1))]

    def step(kernels: Any, u: Any, target: Any) -> Any:
        def layer(x: Any, k: Any) -> Any:
            p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="wrap")
            layout = ("NHWC", "HWIO", "NHWC")
            return lax.conv_general_dilated(p, k, (1, 1), "VALID", dimension_numbers=layout)

        def loss(kernels: Any) -> Any:
            def one(u: Any, _: Any) -> tuple[Any, None]:
                moved = jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 2 * u
                learned = layer(jax.nn.gelu(layer(u[..., None], kernels[0])), kernels[1])
                return (u + 0.1 * moved + learned[..., 0]).at[:, 0].set(0.0), None

            end = lax.scan(jax.checkpoint(one), u, None, 4)[0]
            return jnp.mean((end - target) ** 2) + jnp.mean(jnp.diff(end, axis=1) ** 2)

        return jax.value_and_grad(loss)(kernels)

    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    args = (kernels, grid, grid)

    def plan(**options: Any) -> ps.Plan:
        auto = ps.auto_partition(mesh, machine="tpu_v5e", progress=False, **options)
        return auto(step).plan(*args)

    found, whole = plan(episodes=60), plan(schedule=[])
    assert whole.cost.seconds / found.cost.seconds > 3.5
    row = 2048 * 8 * 4  # of the channels in between
    for collective in found.collectives:
        assert collective.bytes <= row
    assert found.collective_counts["collective_permute"]


def test_padding_is_said_and_can_be_left() -> None:
    def step(x: Any) -> Any:
        return (jnp.diff(x, axis=0) ** 2).sum()

    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    x = jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    options: dict[str, Any] = {"machine": "tpu_v5e", "progress": False}
    plan = ps.auto_partition(mesh, schedule=[ROWS], **options)(step).plan(x)
    assert [(p.dim, p.size) for p in plan.padding] == [(0, 4096)]
    assert plan.collective_counts["all_gather"] == 0
    again = ps.auto_partition(mesh, schedule=plan, **options)(step).plan(x)
    assert again.cost == plan.cost
    left = ps.auto_partition(mesh, schedule=[ROWS], pad=False, **options)(step).plan(x)
    assert not left.padding
