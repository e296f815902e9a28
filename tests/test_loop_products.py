"""Products that no iteration of a scan waits for are computed before or after the scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import partir_search as ps
from partir_search.ir.core import Module, Op, walk_regions
from partir_search.ir.interpreter import evaluate
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.loop_products import with_products_outside
from partir_search.planning.stage import print_module
from partir_search.rules.registry import role_of
from tests.support import module_of, state_of

TIME, BATCH, WIDTH, HIDDEN = 6, 8, 16, 32
Cell = Callable[[Any, Any, Any], tuple[Any, Any]]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(0.2 * drawn, np.float32)


def weights() -> dict[str, np.ndarray]:
    return {
        "in": numbers(WIDTH, HIDDEN, seed=1),
        "own": numbers(HIDDEN, HIDDEN, seed=2),
        "bias": numbers(HIDDEN, seed=3),
        "out": numbers(HIDDEN, 4, seed=4),
    }


X, Y = numbers(BATCH, TIME, WIDTH, seed=5), numbers(BATCH, TIME, 4, seed=6)


def plain(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = jnp.tanh(x @ p["in"] + h @ p["own"] + p["bias"])
    return h, h


def narrow(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell in bf16 with weights and states in f32."""
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (p, h, x))
    return jax.tree.map(lambda a: a.astype(jnp.float32), plain(*half))


def twice(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell with two uses of each weight."""
    h, _ = plain(p, h, x)
    return plain(p, h, 0.5 * x)


def masked(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    new, _ = plain(p, h, x)
    h = jnp.where(x[:, :1] > 0, new, h)
    return h, h


def with_head(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell whose output no later iteration reads."""
    h, _ = plain(p, h, x)
    return h, jnp.tanh(h) @ p["own"]


def normalised(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A cell with weights computed in each iteration."""
    own = p["own"] / jnp.linalg.norm(p["own"], axis=0)
    h = jnp.tanh(x @ p["in"] + h @ own)
    return h, h


def convolved(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A product of rows with a constant by a convolution, [batch, width, 1]."""
    window = p["in"].reshape(WIDTH, 1, HIDDEN)
    dims = ("NWC", "WIO", "NWC")
    seen = jax.lax.conv_general_dilated(x[..., None], window, (1,), "VALID", dimension_numbers=dims)
    h = jnp.tanh(seen.reshape(BATCH, HIDDEN) + h @ p["own"])
    return h, h


CELLS: dict[str, Cell] = {
    f.__name__: f for f in (plain, narrow, twice, masked, with_head, normalised, convolved)
}


def step_of(cell: Cell, first: float = 0.0, **options: Any) -> Any:
    """A train step of a loop over time; `first` fills the first state."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jnp.full((BATCH, HIDDEN), first)
        _, rows = jax.lax.scan(lambda c, r: cell(p, c, r), h, x.swapaxes(0, 1), **options)
        return jnp.mean((rows.swapaxes(0, 1) @ p["out"] - y) ** 2)

    def step(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, grads), value

    return step


def read(fn: Any, *args: Any) -> Module:
    """The module of a function of trees of arrays."""
    leaves, tree = jax.tree.flatten(args)
    return module_of(lambda *flat: fn(*jax.tree.unflatten(tree, flat)), *leaves)


def assert_equal(new: Module, step: Any, *args: Any, narrow: bool = False) -> None:
    """The module computes what the step does, in one pass of its interpreter."""
    expected = jax.tree.leaves(jax.jit(step)(*args))
    result = evaluate(state_of(new).partition(), jax.tree.leaves(args))
    for a, b in zip(expected, result, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-5 if narrow else 1e-6)


def scans(module: Module) -> list[Op]:
    return [op for op in module.ops if role_of(op) is Role.SCAN]


def products(module: Module) -> int:
    """Number of products inside of all scans."""
    bodies = [x for op in scans(module) for r in op.regions for x in walk_regions(r)]
    contractions = (Role.DOT, Role.CONVOLUTION)
    return sum(role_of(op) in contractions for body in bodies for op in body.ops)


@pytest.mark.parametrize(
    ("cell", "before", "after"),
    [
        ("plain", 5, 2),  # the products with the state, forward and backward
        ("narrow", 5, 2),
        ("twice", 10, 4),
        ("masked", 5, 2),
        ("with_head", 8, 2),
        ("normalised", 5, 2),
        ("convolved", 5, 3),  # the gradient of a window is no product of two rows
    ],
)
def test_moved(cell: str, before: int, after: int) -> None:
    """`before` and `after` are the products in loops."""
    step = step_of(CELLS[cell])
    module = read(step, weights(), X, Y)
    new = with_products_outside(module)
    verify(new)
    assert (products(module), products(new)) == (before, after)
    assert_equal(new, step, weights(), X, Y, narrow=cell == "narrow")


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 3}, {}])
@pytest.mark.parametrize("first", [0.0, 0.5])
def test_options_of_scans(options: Any, first: float) -> None:
    step = step_of(plain, first, **options)
    new = with_products_outside(read(step, weights(), X, Y))
    assert products(new) == 2
    assert_equal(new, step, weights(), X, Y)


def test_gradients_of_constants_are_no_carries() -> None:
    """Nothing is left to reduce over devices in the loop."""
    module = read(step_of(plain), weights(), X, Y)
    backward = [op for op in scans(module) if op.backward]
    assert [op.params["num_carry"] for op in backward] == [4]  # state, two weights, bias
    backward = [op for op in scans(with_products_outside(module)) if op.backward]
    assert [op.params["num_carry"] for op in backward] == [1]


def many_rows(p: Any, x: Any, y: Any) -> Any:
    """Stacks of an iteration's rows would take more bytes than the products in the loop."""
    wide = jnp.repeat(x, 64, axis=0)

    def cell(h: Any, row: Any) -> tuple[Any, Any]:
        h = jnp.tanh(row @ p["in"] + h @ p["own"])
        return h, jnp.mean(h)

    first = jnp.zeros((len(wide), HIDDEN))
    return jnp.mean(jax.lax.scan(cell, first, wide.swapaxes(0, 1))[1])


def chunks(p: Any, x: Any, y: Any) -> Any:
    """No iteration depends on an earlier one: the passes of such loops take these."""
    rows = jax.lax.map(lambda row: jnp.tanh(row @ p["in"]), x)
    return jnp.mean((rows @ p["out"] - y) ** 2)


def recomputed(p: Any, x: Any, y: Any) -> Any:
    """An iteration is computed again, as the user wants."""
    cell = jax.checkpoint(lambda h, row: plain(p, h, row))
    _, rows = jax.lax.scan(cell, jnp.zeros((BATCH, HIDDEN)), x.swapaxes(0, 1))
    return jnp.mean((rows.swapaxes(0, 1) @ p["out"] - y) ** 2)


@pytest.mark.parametrize("loss", [many_rows, chunks])
def test_left_in_place(loss: Any) -> None:
    module = read(jax.grad(loss), weights(), X, Y)
    assert with_products_outside(module) is module


def with_noise(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Weights that are drawn, or made by a branch, in each iteration: equal in all."""
    noise = jax.random.normal(jax.random.key(1), p["own"].shape)
    own = jax.lax.cond(p["bias"][0] > 0, jnp.sin, jnp.cos, p["own"])
    h = jnp.tanh(x @ p["in"] + h @ p["own"])
    return h, jnp.tanh(h @ (0.1 * noise)) @ own


def named(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A product with a name, by which a user may tile the result."""
    seen = checkpoint_name(x @ p["in"], "seen")
    h = jnp.tanh(seen + h @ p["own"])
    return h, h


@pytest.mark.parametrize("cell", [with_noise, named])
@pytest.mark.parametrize("length", [1, 0, TIME])
def test_further_cells(cell: Cell, length: int) -> None:
    def fn(p: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, r: cell(p, c, r), jnp.ones((BATCH, HIDDEN)), x)

    x = X.swapaxes(0, 1)[:length]
    module = read(fn, weights(), x)
    new = with_products_outside(module)
    assert length > 1 or new is module
    assert [v for v in new.values if "seen" in v.name and len(v.type.shape) > 2] == []
    verify(new)
    assert_equal(new, fn, weights(), x)


def test_recomputed_cells_keep_their_gradients() -> None:
    """The sums of a recomputed cell need values that the user does not want to store."""
    module = read(jax.grad(recomputed), weights(), X, Y)
    new = with_products_outside(module)
    assert [op.params["num_carry"] for op in scans(new) if op.backward] == [4]


def test_narrow_sums_stay() -> None:
    """A sum in bf16 is rounded in each iteration, as the user wrote it."""
    half = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), (weights(), X, Y))

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jnp.zeros((BATCH, HIDDEN), jnp.bfloat16)
        _, rows = jax.lax.scan(lambda c, r: plain(p, c, r), h, x.swapaxes(0, 1))
        return jnp.mean((rows.swapaxes(0, 1) @ p["out"] - y) ** 2)

    new = with_products_outside(read(jax.grad(loss), *half))
    assert [op.params["num_carry"] for op in scans(new) if op.backward] == [4]


def test_layers_of_loops() -> None:
    """A loop over time within a scan over layers."""
    layers = jax.tree.map(lambda a: np.stack([a, 0.5 * a]), weights() | {"in": weights()["own"]})
    x = numbers(BATCH, TIME, HIDDEN)

    def loss(p: Any, x: Any) -> Any:
        def layer(rows: Any, q: Any) -> tuple[Any, None]:
            return jax.lax.scan(lambda c, r: plain(q, c, r), rows[0], rows)[1] + rows, None

        return jnp.mean(jax.lax.scan(layer, x.swapaxes(0, 1), p)[0] ** 2)

    module = read(jax.grad(loss), layers, x)
    new = with_products_outside(module)
    verify(new)
    assert_equal(new, jax.grad(loss), layers, x)
    inner = [op for op in scans(new) if op.backward and op.params["num_carry"] == 1]
    assert inner


@pytest.mark.parametrize("cell", ["plain", "narrow", "with_head"])
def test_executed(cell: str) -> None:
    """Data, tensor and mixed partitions compute the plain step; sums are reduced once."""
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    step = step_of(CELLS[cell])
    expected = jax.tree.leaves(step(weights(), X, Y))
    data = [ps.ManualPartition({"x": 0, "y": 0}, axis="data")]
    model = [ps.ManualPartition({"p/own": 1, "p/in": 1}, axis="model")]
    for schedule in (data, model, data + model):
        found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)
        result = jax.tree.leaves(found(weights(), X, Y))
        for a, b in zip(expected, result, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-5 if cell == "narrow" else 1e-6)
        if schedule is data:
            collectives = found.plan(weights(), X, Y).collectives
            assert {(c.kind, c.times) for c in collectives} == {("all_reduce", 1)}


def test_products_read_outside() -> None:
    """A product before the scan is stacked by the scan, and read by a sum after it."""

    def fn(p: Any, x: Any) -> Any:
        def cell(carry: Any, row: Any) -> tuple[Any, Any]:
            h, total = carry
            seen = row @ p["in"]
            new = jnp.tanh(seen + h @ p["own"])
            return (new, total + h.T @ seen), (seen, new, h)

        first = jnp.zeros((BATCH, HIDDEN)), jnp.zeros((HIDDEN, HIDDEN))
        return jax.lax.scan(cell, first, x.swapaxes(0, 1))

    new = with_products_outside(read(fn, weights(), X))
    verify(new)
    assert products(new) == 1
    assert_equal(new, fn, weights(), X)


def test_stacks_are_read_in_order() -> None:
    """On TPUs the stacks made outside have their rows in order; on GPUs nothing is pinned."""
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    data = [ps.ManualPartition({"x": 0, "y": 0}, axis="data")]
    pinned: dict[str, list[str]] = {}
    for machine in ("tpu_v5e", "h100"):
        found = ps.auto_partition(mesh, machine=machine, schedule=data)(step_of(plain))
        lines = found.plan(weights(), X, Y).local_ir().splitlines()
        pinned[machine] = [line.strip().split("[")[0] for line in lines if "in_order" in line]
    assert pinned == {"tpu_v5e": ["%dot_general_stacked", "%d_transpose_1"], "h100": []}


def by_hand(p: Any, x: Any) -> Any:
    """All three kinds of products: before the scan, after the scan, and summed."""

    def cell(carry: Any, row: Any) -> tuple[Any, Any]:
        h, total = carry
        new = jnp.tanh(row @ p["in"] + h @ p["own"])
        return (new, total + h.T @ row), (new, new @ p["own"])

    first = jnp.zeros((BATCH, HIDDEN)), jnp.ones((HIDDEN, WIDTH))
    (_, total), rows = jax.lax.scan(cell, first, x.swapaxes(0, 1))
    return total, rows


def test_print(golden: Any) -> None:
    new = with_products_outside(read(by_hand, weights(), X))
    assert_equal(new, by_hand, weights(), X)
    golden(print_module(new))
