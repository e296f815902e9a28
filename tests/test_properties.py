"""Random small programs under random legal actions: oracle, emitted program and jax agree.

`pytest tests/test_properties.py --programs=5000` runs longer.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import partir_search as ps
from partir_search.constraints.ends import without_ties
from partir_search.constraints.region_axes import region_axes
from partir_search.constraints.shardings import constraint_layouts, fixed_actions, fixed_mesh
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE
from partir_search.ir.verify import verify
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.lowering.shard_map import argument_specs, result_specs
from partir_search.passes.align import aligned
from partir_search.passes.block_scans import with_block_scans
from partir_search.passes.block_selections import with_block_selections
from partir_search.passes.early_lookups import with_early_lookups
from partir_search.passes.loop_products import with_products_outside
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad
from partir_search.passes.parallel_iterations import with_parallel_iterations
from partir_search.passes.row_lookups import with_row_lookups
from partir_search.passes.unread import without_unread
from partir_search.passes.views import with_views
from partir_search.planning.assignments import decisions_to
from partir_search.propagation.actions import action_from_json
from partir_search.propagation.apply import apply_fixed
from partir_search.propagation.state import State
from partir_search.rules import RuleTable
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.variables import variables_of
from partir_search.simulator.target.machine import MACHINES
from tests.generated.constrained import constrained, random_spec
from tests.generated.stencils import stencil
from tests.programs import build
from tests.support import check_partition, device_mesh, module_of, state_of

MESHES = (
    MeshShape(("x",), (2,)),
    MeshShape(("x",), (4,)),
    MeshShape(("x", "y"), (2, 2)),
    MeshShape(("x", "y"), (2, 4)),
    MeshShape(("x", "y", "z"), (2, 2, 2)),
    MeshShape(("x",), (3,)),
    MeshShape(("x", "y"), (3, 2)),
    MeshShape(("x", "y"), (2, 3)),
    MeshShape(("x", "y"), (2, 2)).with_diagonals(["x~y"]),
    MeshShape(("x", "y", "z"), (2, 2, 2)).with_diagonals(["x~z"]),
)


def act(state: State, rng: random.Random, count: int) -> None:
    """Random legal tile and keep decisions on arguments and interior values."""
    for _ in range(count):
        axis = rng.randrange(len(state.mesh.names))
        cls = rng.randrange(len(state.graph.shapes))
        shape = state.graph.shapes[cls]
        if not shape:
            continue
        if rng.random() < 0.1 and state.tiles[axis][cls] == -1:
            state.replicate(cls, (axis,))
            continue
        dim = rng.randrange(len(shape))
        if state.may_tile(cls, dim, (axis,)):
            state.tile(cls, dim, (axis,))


def check(seed: int) -> None:
    fn, args = build(seed)
    module = module_of(fn, *args)
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    if rng.random() < 0.5:
        module = without_unread(module, RuleTable())
        module = with_early_lookups(with_row_lookups(module))
        module = with_views(with_products_outside(module))
        verify(module)
    if rng.random() < 0.5:
        module = with_parallel_iterations(module, mesh.devices)
        verify(module)
    state = state_of(module, mesh, contract=rng.random() < 0.5)
    act(state, rng, rng.randint(1, 6))
    partition = state.partition()
    if rng.random() < 0.3:  # axes in another order
        order = list(partition.order)
        rng.shuffle(order)
        partition = dataclasses.replace(partition, order=tuple(order))
    check_partition(partition, fn, args)


def check_padded(seed: int) -> None:
    """Some dims padded, then random actions: arguments and results are those of the program."""
    fn, args = build(seed)
    module = module_of(fn, *args)
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    values = [v for v in module.values if v.type.shape]
    pads = []
    for value in rng.sample(values, min(3, len(values))):
        dim = rng.randrange(len(value.type.shape))
        tiles = rng.choice([2, 3, 4])
        pads.append(Pad(value.name, dim, -(-(value.type.shape[dim] + 1) // tiles) * tiles))
    padded = pad_module(module, list(map(RuleTable(), module.ops)), pads)
    verify(padded)
    state = state_of(padded, mesh, contract=rng.random() < 0.5)
    act(state, rng, rng.randint(1, 6))
    check_partition(state.partition(), fn, args)


def check_constrained(seed: int) -> None:
    """Random shardings fixed inside and at the ends, then random actions: each one is kept."""
    rng = random.Random(seed)
    mesh = rng.choice([m for m in MESHES if not m.diagonals])
    devices = device_mesh(mesh, jax.sharding.AxisType.Auto)
    fn, args = constrained(seed, devices)
    plain, _ = constrained(seed, devices, plainly=True)
    own = functools.partial(region_axes, mesh=mesh, devices=devices)
    module = module_of(fn, *args, region_axes=own)
    mesh = fixed_mesh(module, mesh, devices, ())
    ties = [
        (i, r)
        for i, a in enumerate(module.body.args)
        for r, b in enumerate(module.body.results)
        if a.type == b.type and rng.random() < 0.5
    ]
    module.ties = tuple({r: (i, r) for i, r in {i: (i, r) for i, r in ties}.values()}.values())
    verify(module)
    ends = [
        [
            random_spec(rng, devices, x.type.shape, even=True, loose=False)
            if x.type.shape and rng.random() < 0.6
            else None
            for x in values
        ]
        for values in (module.body.args, module.body.results)
    ]
    tree = jax.tree.structure(ends[1], is_leaf=lambda x: x is None or isinstance(x, PartitionSpec))
    fixed = fixed_actions(module, mesh, devices, (args, ends[0]), (tree, ends[1]))
    state = state_of(without_ties(module, fixed), mesh, contract=rng.random() < 0.5)
    apply_fixed(state, fixed)
    act(state, rng, rng.randint(0, 4))
    partition = state.partition()
    program = localize(partition)
    said = constraint_layouts(module, mesh, devices)
    for fixed in said:
        layout = partition.layout(module.value_names()[fixed.value])
        for dim, axes in enumerate(fixed.layout):
            assert set(axes) <= set(layout[dim])
            assert not set(fixed.replicated) & set(layout[dim])
            assert not {(dim, axis) for axis in layout[dim]} & set(fixed.closed)
    specs = argument_specs(program, user=True), result_specs(program, user=True)
    for wanted, found in zip(ends, specs, strict=True):
        for want, spec in zip(wanted, found, strict=True):
            assert want is None or _same_spec(want, spec)
    check_partition(partition, fn, args, plain)


def _same_spec(one: PartitionSpec, other: PartitionSpec) -> bool:
    def entries(spec: PartitionSpec) -> list[tuple[str, ...]]:
        found = [e if isinstance(e, tuple) else (e,) if e else () for e in spec]
        while found and not found[-1]:
            found.pop()
        return found

    return entries(one) == entries(other)


def check_stencil(seed: int) -> None:
    """Shifted reads of a grid, as a plan has them: dims aligned with it, and tiled."""
    fn, args = stencil(seed)
    rng = random.Random(seed)
    mesh = rng.choice([m for m in MESHES if not m.diagonals])
    module = with_block_scans(with_views(module_of(fn, *args)), mesh, 2)
    module = with_block_selections(module, mesh, 2, 1)
    module, _ = aligned(module, mesh)
    verify(module)
    state = state_of(module, mesh, contract=rng.random() < 0.5)
    for axis in range(len(mesh.names)):
        dim = rng.randrange(2)
        if state.may_tile(state.graph.class_of[module.body.args[0].id], dim, (axis,)):
            state.tile(state.graph.class_of[module.body.args[0].id], dim, (axis,))
    act(state, rng, rng.randint(0, 3))
    check_partition(state.partition(), fn, args)


def check_assigned(seed: int) -> None:
    """Random tilings of classes and loops of ops: actions lead there, and the program is right."""
    fn, args = build(seed)
    rng = random.Random(seed)
    mesh = rng.choice([m for m in MESHES if not m.diagonals])
    state = state_of(module_of(fn, *args), mesh, contract=True)
    variables = variables_of(state.graph, mesh)
    labels = np.zeros(len(variables.sets), dtype=np.int64)
    for x, labelled in enumerate(variables.sets):
        if rng.random() < 0.6:
            labels[x] = rng.randrange(len(labelled))
    variables.assign(labels, state)
    tiles, loops = ([row[:] for row in rows] for rows in (state.tiles, state.loops))
    played = state_of(module_of(fn, *args), mesh, contract=True)
    values = state.graph.module.values
    for decision in decisions_to(played, tiles, loops):
        name, *also = (values[v].name for v in decision.values(state.graph))
        barriers = tuple(values[state.graph.members[c][0]].name for c in decision.barrier_classes)
        action = decision.action(name, mesh.label(decision.axes), tuple(also), barriers)
        action_from_json(action.to_json()).apply(played)
    assert played.tiles == tiles
    nodes = [n for n in state.graph.node_of if n >= 0]
    for now, wanted in zip(played.loops, loops, strict=True):
        assert [max(now[n], NONE) for n in nodes] == [wanted[n] for n in nodes]
    check_partition(played.partition(), fn, args)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31 - 1))
def test_sparse_programs(seed: int) -> None:
    """A search's view of a program, rows of axes shared, costs and moves what the whole does."""
    fn, args = build(seed)
    rng = random.Random(seed)
    state = state_of(module_of(fn, *args), rng.choice(MESHES), contract=rng.random() < 0.5)
    model = CostModel(state.graph.module, state.graph.rules, MACHINES["tpu_v5e"])
    cache = LocalCache()
    for _ in range(3):
        act(state, rng, 2)
        whole = localize(state.partition())
        sparse = localize(state.partition(cache.rows), cache, sparse=True)
        assert [m.step for m, _ in sparse.reshards()] == [m.step for m, _ in whole.reshards()]
        assert [s.layout for s in sparse.body.args] == [s.layout for s in whole.body.args]
        a, b = model.evaluate(sparse), model.evaluate(whole)
        assert dataclasses.astuple(a)[:6] == pytest.approx(dataclasses.astuple(b)[:6], rel=1e-12)
        assert a.bytes_by_axis == b.bytes_by_axis
        least = model.lower_bound(model.load(state.partition()))
        assert 0 <= least.seconds <= a.seconds
        assert least.seconds > 0 or a.seconds == 0  # a program may return its arguments alone
        assert least.argument_bytes == a.argument_bytes
        assert least.argument_bytes <= least.peak_bytes <= a.peak_bytes


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31 - 1))
def test_states_come_back_by_their_keys(seed: int) -> None:
    """Whatever was decided before or since."""
    fn, args = build(seed)
    rng = random.Random(seed)
    state = state_of(module_of(fn, *args), rng.choice(MESHES), contract=True)
    met = []
    for _ in range(4):
        act(state, rng, 2)
        partition = state.partition()
        met.append((state.key(), partition.tiles, partition.loops))
    rng.shuffle(met)
    for key, tiles, loops in met:
        state.restore(key)
        partition = state.partition()
        assert (state.key(), partition.tiles, partition.loops) == (key, tiles, loops)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31 - 1))
def test_random_programs_are_planned(seed: int) -> None:
    """By short and long searches, for every kind of machine, with a report that can be printed."""
    rng = random.Random(seed)
    fn, args = rng.choice([build, build, stencil])(seed)
    shape = rng.choice([m for m in MESHES if not m.diagonals])
    mesh = jax.sharding.AbstractMesh(shape.sizes, shape.names)
    machine, episodes = rng.choice(["tpu_v5e", "h100", "cpu"]), rng.choice([20, 300, 300])
    step = ps.auto_partition(mesh, machine=machine, episodes=episodes, progress=False)(fn)
    plan = step.plan(*args)
    assert plan.cost.seconds <= min(a.cost.seconds for a in plan.alternatives) * (1 + 1e-9)
    assert plan.bound is None or plan.bound.without or plan.bound.gap > -1e-6
    assert str(plan)


@pytest.mark.devices
@pytest.mark.parametrize(
    "checked",
    [check, check_padded, check_constrained, check_stencil, check_assigned],
    ids=["as_is", "padded", "constrained", "stencils", "assigned"],
)
def test_random_programs(checked: Callable[[int], None], request: pytest.FixtureRequest) -> None:
    examples = request.config.getoption("--programs")

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # a seed does not shrink
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**31 - 1))
    def run(seed: int) -> None:
        checked(seed)

    run()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31 - 1))
def test_undo_and_order(seed: int) -> None:
    """Undo restores the state, and the local program of a state does not depend on a cache."""
    fn, args = build(seed)
    state = state_of(module_of(fn, *args), MESHES[3])
    before = state.key()
    act(state, random.Random(seed), 4)
    program = localize(state.partition())
    after = state.key()
    state.restore(before)
    assert state.key() == before
    act(state, random.Random(seed), 4)
    assert state.key() == after
    again = localize(state.partition())
    assert [m.step for m, _ in program.reshards()] == [m.step for m, _ in again.reshards()]
