"""Plans of another batch shape with the tilings of the first plan, without propagation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.analysis.deferred_reductions import same_growth
from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.same_structure import SameStructure
from partir_search.rules.registry import RuleTable
from partir_search.shapes import adapt
from partir_search.simulator.simulator import CostModel
from tests.reported.test_other_shapes import SLOW, assert_close, batch_of, counted, new_state, step
from tests.support import module_of, ones

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(("name", "options"), [("gan-tiny", {}), ("dlrm-tiny", {"remat": True})])
def test_tilings_are_those_of_propagation(name: str, options: Any) -> None:
    """The tilings, partial sums, costs and actions of a plan made by propagation."""
    entry = MODELS[name]
    f = ps.auto_partition(MESH, machine=SLOW, progress=False, episodes=2, **options)(entry.step)
    first = f.plan(*entry.abstract_args(16))
    with mock.patch.object(adapt, "_transferred", wraps=adapt._transferred) as called:
        fast = f.plan(*entry.abstract_args(8)).planned
    with mock.patch.object(adapt, "_transferred", return_value=None):
        found = adapt.adapt(*called.call_args.args)
    assert found is not None
    one, other = fast.sketch.partition, found.planned.sketch.partition
    assert one.axes[0] is first.partition.axes[0]
    assert any(tile >= 0 for tiles in one.tiles for tile in tiles)
    assert (one.tiles, one.loops, one.order) == (other.tiles, other.loops, other.order)
    assert one.partials == other.partials
    assert fast.actions == found.planned.actions
    assert fast.cost == found.planned.cost
    assert fast.cost.peak_bytes <= first.cost.peak_bytes
    assert bool(found.remat) == bool(options)


def test_costs_wait_for_a_reader(mesh: Mesh) -> None:
    """No simulation to plan a smaller batch; the cost is that of the same actions afterwards."""
    f, _ = counted(mesh)
    f.plan(new_state(), batch_of(32))
    with mock.patch.object(CostModel, "evaluate", side_effect=AssertionError):
        plan = f.plan(new_state(), batch_of(16))
        assert plan.fits
    replayed = counted(mesh, schedule=plan)[0].plan(new_state(), batch_of(16))
    assert plan.cost == replayed.cost
    assert plan.explain("batch/x") == replayed.explain("batch/x")
    assert_close(f(new_state(), batch_of(16)), step(new_state(), batch_of(16)))


def test_a_larger_batch_is_costed(mesh: Mesh) -> None:
    """Values with more bytes may exceed the memory: the peak is simulated before the plan is."""
    f, _ = counted(mesh)
    f.plan(new_state(), batch_of(64))
    costed = mock.patch.object(CostModel, "evaluate", side_effect=ArithmeticError)
    with costed, pytest.raises(ArithmeticError):
        f.plan(new_state(), batch_of(96))


def same(one: Callable[..., Any], other: Callable[..., Any], *shapes: tuple[int, ...]) -> bool:
    """Whether two functions of arrays of two shapes have one structure, on 4 devices."""
    modules = [module_of(f, ones(*s)) for f, s in zip((one, other), shapes, strict=True)]
    rules = tuple(list(map(RuleTable(), m.ops)) for m in modules)
    return SameStructure(modules[0], modules[1], (rules[0], rules[1]), 4).holds


@pytest.mark.parametrize(
    ("other", "shape", "holds"),
    [
        (jnp.sin, (12, 8), True),
        (jnp.sin, (8, 8), True),
        (jnp.sin, (6, 8), False),  # 4 devices divide 16 and not 6
        (jnp.cos, (8, 8), False),
        (lambda x: jnp.sin(x.T).T, (8, 8), False),
        (lambda x: jnp.sin(x.astype(jnp.bfloat16)), (8, 8), False),
    ],
)
def test_structure(other: Callable[..., Any], shape: tuple[int, ...], holds: bool) -> None:
    assert same(jnp.sin, other, (16, 8), shape) is holds


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 2.0, lambda x: x * 0.0),  # zeros join partial sums
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: (x + 1.0) + x, lambda x: (x + 1.0) + (x + 1.0)),
        (lambda x: jnp.roll(x, 1, 0), lambda x: jnp.roll(x, 2, 0)),
    ],
)
def test_structures_apart(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert same(one, one, (8, 8), (8, 8))
    assert not same(one, other, (8, 8), (8, 8))


def test_major_factors_keep_their_extents() -> None:
    """Whether axes divide `h` of `h g` completely depends on more than on what divides it."""

    def merged(x: Any) -> Any:
        return jnp.sin(x.reshape(x.shape[0] * 4, 4))

    assert not same(merged, merged, (8, 4, 4), (16, 4, 4))


def test_growth() -> None:
    """A sum is finished before an op that makes it larger, wherever that is so in both programs."""

    def f(x: Any, y: Any) -> Any:
        return (x @ y) * jnp.ones((1, 8))

    modules = [module_of(f, ones(n, 8), ones(8, 8)) for n in (8, 4)]
    analysis = ModuleAnalysis(modules[0], list(map(RuleTable(), modules[0].ops)))
    product = next(op for op in modules[0].ops if op.prim == "mul")
    inputs = tuple(v.id for _, v in product.inputs())[:1]
    for asked, equal in ((0, True), (64, False), (None, True)):
        analysis.growth = {(product.id, "sum", inputs): asked}
        assert same_growth(analysis, modules[1]) is equal
    assert np.all(jax.jit(f)(ones(4, 8), ones(8, 8)) == 8)
