"""Rings: tables and permutes against PrimePar's formulas, redistribution on diagonals, and train
steps that run them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

import partir_search as ps
from models import training
from models.catalog import MODELS
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.ir.skewed_schedule import HOME, OUTPUT_STATIONARY, Ring, ring_of
from partir_search.ir.verify import InvalidIR, verify_partition
from partir_search.lowering.local_ir import RingReshard, SkewedTurn
from partir_search.lowering.localize import localize
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import argument_specs, sharded
from partir_search.lowering.traits import NEUTRAL
from partir_search.propagation.contradictions import IllegalAction
from partir_search.rules.registry import RuleTable
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.rings import mlp, mlp_state, square
from tests.support import (
    assert_same,
    check_partition,
    device_mesh,
    floats_of,
    module_of,
    state_of,
    tile_arg,
)

# Tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_table(n: int) -> None:
    """PrimePar's forward phase (I from the right, W from below), and its dual."""
    module = module_of(jnp.matmul, *floats_of((n, n), (n, n)))
    rule = RuleTable()(module.ops[0])
    m, k, summed = 0, 1, 2

    def sources(ring: Ring, operand: int) -> set[tuple[int, int]]:
        """Where, from a device, lies what it is sent."""
        assert ring.faults(rule) == []
        at = ring.devices()
        pairs = ring.pairs(ring.indices(rule, rule.operands[operand]), HOME, 1 % n)
        return {((at[s][0] - at[t][0]) % n, (at[s][1] - at[t][1]) % n) for s, t in pairs if n > 1}

    away = {(0, 1)} if n > 1 else set()
    below = {(1, 0)} if n > 1 else set()
    skewed = ring_of(
        rule, (0, 1, 2), n, (m, k, summed), OUTPUT_STATIONARY, ()
    )  # I (r, r+c+t), W (r+c+t, c), O (r, c)
    assert (sources(skewed, 0), sources(skewed, 1)) == (away, below)
    dual = ring_of(
        rule, (0, 1, 2), n, (m, summed, k), OUTPUT_STATIONARY, ()
    )  # I (r, c+t), W (c+t, r+c), O (r, r+c)
    aslant = {((-1) % n, 1 % n)} if n > 1 else set()
    assert (sources(dual, 0), sources(dual, 1)) == (away, aslant)


def test_wrong_tables_are_found() -> None:
    module = module_of(jnp.matmul, *floats_of((4, 4), (4, 4)))
    rule = RuleTable()(module.ops[0])
    walk = ((0, 0, 0), (0, 0, 1))
    stays = Ring((0, 1, 2), 2, (0, 1, 2), 2, ((0, 0, 0), (0, 0, 0)))
    assert any("more than once" in f for f in stays.faults(rule))
    assert any("result" in f for f in Ring((0, 1, 2), 2, (0, 1, 2), 0, walk).faults(rule))
    assert any("replicated" in f for f in Ring((0, 1, 2), 2, (0, 0, 2), 2, walk).faults(rule))
    mesh = square(2)
    state = state_of(module, mesh)
    for arg, dim, axis in ((0, 0, "r"), (0, 1, "c"), (1, 1, "r~c")):
        tile_arg(state, arg, dim, axis)
    partition = state.partition()
    verify_partition(partition)
    partition.axes[2].tiles[module.body.args[0].id] = 0
    with pytest.raises(InvalidIR, match="two axes and their diagonal"):
        verify_partition(partition)


# Train steps -----------------------------------------------------------------------------------


def test_print(golden: Callable[[str], None]) -> None:
    """The two types of rings, and elementwise ops on the diagonal between them."""

    def forward(w1: Any, w2: Any, x: Any) -> Any:
        return jnp.tanh(x @ w1) @ w2

    state = state_of(module_of(forward, *floats_of((4, 6), (6, 4), (8, 4))), square(2))
    for arg, dim, axis in ((2, 0, "r"), (2, 1, "c"), (0, 1, "r~c"), (1, 1, "c")):
        tile_arg(state, arg, dim, axis)
    golden(print_partition(state.partition()))


@pytest.mark.devices
@pytest.mark.parametrize("n", [2, 3, 4])
def test_mlp(n: int) -> None:
    """Five products in rings: 2(n-1) permutes each, (n-1)(blocks of what moves) bytes, and two
    permutes for each matrix at the program's edge; compiled as planned, and nothing else.
    """
    rows, width, hidden = 4 * n, 2 * n, 3 * n
    args = floats_of((width, hidden), (hidden, width), (rows, width))
    partition = mlp_state(square(n), args).partition()
    check_partition(partition, mlp, args)
    program = schedule_for(localize(partition), NEUTRAL)
    moves = [m for m, _ in program.reshards()]
    turns = [m for m in moves if isinstance(m, RingReshard)]
    assert len(turns) == 5 * 2 * (n - 1)
    x, h, w = rows * width, rows * hidden, width * hidden
    moved = (x + w) + (h + w) + (x + h) + (x + w) + (x + h)  # two of the three of each product
    assert sum(m.payload_bytes for m in turns) == 4 * (n - 1) * moved // n**2
    assert [m.step.kind for m in moves if not isinstance(m, RingReshard)] == [
        "collective_permute"
    ] * 4
    mesh = device_mesh(partition.mesh)
    placed = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(args, argument_specs(program), strict=True)
    ]
    text = jax.jit(sharded(program, mesh)).lower(*placed).compile().as_text()
    counts = ps.hlo_counts(text)
    assert counts.pop("collective_permute") == len(moves)
    assert not any(counts.values())


def test_two_copies_of_what_moves() -> None:
    """A turn's operands are what has moved on; the first turn's are where they rest."""
    n = 3
    args = floats_of((2 * n, 3 * n), (3 * n, 2 * n), (4 * n, 2 * n))
    program = localize(mlp_state(square(n), args).partition())
    for op in {m.op.id for m, _ in program.reshards() if isinstance(m, RingReshard)}:
        steps = [i for i, _ in program.instructions() if i.op is not None and i.op.id == op]
        turns = [s for s in steps if isinstance(s, SkewedTurn)]
        assert [t.turn for t in turns] == list(range(n))
        sent = {s.target.id for s in steps if isinstance(s, RingReshard)}
        assert not sent & {x.id for x in turns[0].ins}
        for turn in turns[1:]:
            assert all(x.id in sent for x in turn.ins)


@pytest.mark.devices
def test_rings_wait_for_the_one_before_the_last() -> None:
    """So that what gradients of weights read is not held while many others run."""
    args = floats_of((4, 6), (6, 4), (8, 4))
    program = schedule_for(localize(mlp_state(square(2), args).partition()), NEUTRAL)
    steps = program.body.steps
    last = [s for s in steps if isinstance(s, SkewedTurn) and s.last]
    queue = {
        at: item.scheduling.operands_after
        for at, item in enumerate(steps)
        if item.scheduling.operands_after
    }
    assert len(queue) == len(last) - 2 == 3
    for (at, waits), ring, before in zip(queue.items(), last[2:], last, strict=False):
        assert steps[at].op is ring.op
        assert all(s.op is not ring.op for s in steps[:at])
        assert waits == before.outs
    mesh = device_mesh(program.partition.mesh)
    specs = argument_specs(program)
    placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(args, specs, strict=True)]
    tied = str(jax.make_jaxpr(sharded(program, mesh))(*placed)).count("optimization_barrier")
    assert tied == len(queue) + len(last), "and one between the two turns of each"


def test_what_passes_around_is_a_value() -> None:
    """The activation between the two products is made in them elsewhere; rings keep it, from the
    forward pass to the gradient of the second matrix.
    """
    args = floats_of((4, 6), (6, 4), (8, 4))
    state = mlp_state(square(2), args)
    partition = state.partition()
    model = CostModel(partition.module, list(partition.rules), MACHINES["tpu_v3"])
    program = localize(partition)
    found = model.simulate(program)
    live = found.live
    products = [op for op in partition.module.ops if partition.ring(op)]
    (hidden,) = {v for _, v in products[1].inputs()} - set(partition.module.body.args)
    assert hidden.id not in model.memory.stored
    static = found.cost.argument_bytes + model.load(partition).live
    between = range(partition.def_use.position[products[1].id] + 1, len(live))
    uses = [op for op in products[2:] if any(v is hidden for _, v in op.inputs())]
    until = partition.def_use.position[uses[-1].id]
    size = hidden.type.nbytes / 4 / 2  # a fourth, in bf16
    extra = (live - static).tolist()
    rows = [
        i for i, p in enumerate(model.memory.curve.position.tolist()) if p in between and p <= until
    ]
    assert rows
    assert all(extra[i] >= size for i in rows)


@pytest.mark.devices
def test_hybrid() -> None:
    """fc1 = {K, P_2x2}, fc2 = {N, P_2x2} on 8 devices: one all_reduce forward of size(O)/4 and one
    backward of size(I)/4 (PrimePar's example), and permutes.
    """
    mesh = MeshShape(("s", "r", "c"), (2, 2, 2)).with_diagonals(["r~c"])
    rows, width, hidden = 8, 8, 16
    args = floats_of((width, hidden), (hidden, width), (rows, width))

    def step(w1: Any, w2: Any, x: Any) -> tuple[Any, Any, Any]:
        y, back = jax.vjp(lambda *a: jnp.tanh(a[2] @ a[0]) @ a[1], w1, w2, x)
        return back(jnp.cos(y))

    state = state_of(module_of(step, *args), mesh)
    tile_arg(state, 0, 1, "s")
    for arg, dim, axis in ((2, 0, "r"), (2, 1, "c"), (0, 1, "r~c"), (1, 1, "c")):
        tile_arg(state, arg, dim, axis)
    partition = state.partition()
    check_partition(partition, step, args)
    moves = [m for m, _ in localize(partition).reshards() if m.step.kind != "collective_permute"]
    assert [(m.step.kind, m.step.axes) for m in moves] == [("all_reduce", (0,))] * 2
    assert [m.payload_bytes for m in moves] == [4 * rows * width // 4] * 2


@pytest.mark.devices
def test_sums_are_added_in_32_bits() -> None:
    """bf16 products of a ring are no less exact than one product."""
    n, size = 4, 512
    mesh = square(n)
    args = [x.astype(jnp.bfloat16) for x in floats_of((8 * n, size), (size, 8 * n))]
    state = state_of(module_of(jnp.matmul, *args), mesh)
    for arg, dim, axis in ((0, 0, "r"), (0, 1, "c"), (1, 1, "r~c")):
        tile_arg(state, arg, dim, axis)
    partition = state.partition()
    assert partition.ring(partition.module.ops[0])
    want = np.matmul(*(np.asarray(a, np.float64) for a in args))
    program, devices = schedule_for(localize(partition), NEUTRAL), device_mesh(mesh)
    placed = [
        jax.device_put(a, NamedSharding(devices, s))
        for a, s in zip(args, argument_specs(program), strict=True)
    ]
    (got,) = jax.jit(sharded(program, devices))(*placed)
    error = np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2) / np.mean(want**2))
    assert error < 2e-3


def plain_optimizer() -> optax.GradientTransformation:
    """Its state is the gradient, whose zeros are not blown up."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2, momentum=0.9))


@pytest.mark.devices
@pytest.mark.parametrize(
    "name, n, linears, form",
    [
        pytest.param("llama-tiny", 2, 8, "output_stationary", marks=pytest.mark.long),
        ("gpt-scan-tiny", 2, 8, "min_traffic"),
        ("gpt-tiny", 4, 7, "output_stationary"),
    ],
)
def test_train_step(
    name: str, n: int, linears: int, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product with a parameter is a ring in all three phases, 6(n-1) permutes; no activation
    is gathered; the step is the plain one.
    """
    monkeypatch.setattr(training, "optimizer", plain_optimizer)
    entry = MODELS[name].resized(layers=1)
    args = jax.jit(lambda: entry.args(4 * n))()
    mesh = jax.make_mesh((n, n), ("r", "c"), devices=jax.devices()[: n * n])
    schedule = [ps.SpatialTemporal(("r", "c"), form)]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(entry.step)
    plan = step.plan(*args)
    turns = [m for m, _ in plan.program.reshards() if isinstance(m, RingReshard)]
    assert len(turns) >= 6 * (n - 1) * linears
    big = [c for c in plan.collectives if c.kind in ("all_gather", "all_to_all")]
    assert all(c.op in ("gather", "dot_general") and "embed" in c.value for c in big)
    lowered = step.lower(*args)
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    got = jax.block_until_ready(lowered.compile()(*args))
    want = jax.jit(entry.step)(*args)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4)
    assert 'ring "r" "c" (%r, %c, %t: steps<' in plan.ir()


@pytest.mark.devices
def test_state_rests_skewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves at the program's edge; what comes out of two steps is the plain state. Any
    optimizer will do: the program knows where blocks lie.
    """
    monkeypatch.setattr(training, "optimizer", lambda: optax.adafactor(1e-3))
    entry = MODELS["gpt-tiny"]
    args = jax.jit(lambda: entry.args(8))()
    mesh = jax.make_mesh((2, 2), ("r", "c"), devices=jax.devices()[:4])
    schedule = [ps.SpatialTemporal(("r", "c"))]

    def step_of(skewed: bool) -> Any:
        options = {"machine": "tpu_v5e", "schedule": schedule, "skewed_state": skewed}
        return ps.auto_partition(mesh, **options)(entry.step)

    step = step_of(True)
    plan = step.plan(*args)
    whole = step_of(False).plan(*args)
    assert (
        plan.collective_counts["collective_permute"]
        < (whole.collective_counts["collective_permute"])
    )
    state = plan.skew(args[0])
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(args[0]), strict=True)
        if a.ndim == 2
    ]
    assert any(moved)
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(args[0]), 0)
    plain = args[0]
    for _ in range(2):
        state, *_ = jax.block_until_ready(step(state, *args[1:]))
        plain, *_ = jax.jit(entry.step)(plain, *args[1:])
    assert_same(jax.tree.leaves(plan.unskew(state)), jax.tree.leaves(plain), 2e-4)
    with pytest.raises(ValueError, match="pass a whole argument"):
        plan.skew(args[0].params)


# Bad input -------------------------------------------------------------------------------------


def test_unequal_axes() -> None:
    mesh = jax.sharding.AbstractMesh((2, 4), ("r", "c"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[ps.SpatialTemporal(("r", "c"))])
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 8), (8, 8))]
    with pytest.raises(ValueError, match=re.escape("'r' has size 2 and 'c' has 4")):
        step(mlp).plan(*args)


def test_no_such_form() -> None:
    with pytest.raises(ValueError, match=r"form is one of output_stationary.* not 'short'"):
        ps.SpatialTemporal(("r", "c"), form="short")  # type: ignore[arg-type]


def test_dims_that_do_not_divide() -> None:
    mesh = jax.sharding.AbstractMesh((4, 4), ("r", "c"))
    schedule = [ps.ManualPartition({"w1": 1}, axis="r~c")]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(mlp)
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 18), (18, 8), (8, 8))]
    with pytest.raises(ValueError, match=re.escape("does not divide by axis 'r~c' of size 4")):
        step.plan(*args)


def test_a_value_has_no_third_axis() -> None:
    args = floats_of((4, 4, 4))
    state = state_of(module_of(jnp.tanh, *args), square(2))
    tile_arg(state, 0, 0, "r")
    tile_arg(state, 0, 1, "c")
    with pytest.raises(IllegalAction):
        tile_arg(state, 0, 2, "r~c")


@pytest.mark.devices
def test_a_product_walks_one_ring() -> None:
    """On two diagonals a product may walk one of them; on the other something is moved for it."""
    mesh = MeshShape(("a", "b", "c", "d"), (2, 2, 2, 2)).with_diagonals(["a~b", "c~d"])
    args = floats_of((8, 8), (8, 8))
    state = state_of(module_of(jnp.matmul, *args), mesh)
    for arg, dim, axis in ((0, 0, "a"), (0, 1, "b"), (1, 1, "a~b"), (0, 0, "c"), (0, 1, "d")):
        tile_arg(state, arg, dim, axis)
    tile_arg(state, 1, 1, "c~d")
    partition = state.partition()
    ring = partition.ring(state.graph.module.ops[0])
    assert ring
    assert ring.axes == (0, 1, 4)
    check_partition(partition, jnp.matmul, args)


def test_saved_plans_keep_their_diagonals(tmp_path: Any) -> None:
    entry = MODELS["transformer-tiny"]
    mesh = jax.sharding.AbstractMesh((2, 2), ("r", "c"))

    def plan_of(schedule: Any) -> ps.Plan:
        step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(entry.step)
        return step.plan(*entry.abstract_args(8))

    plan = plan_of([ps.SpatialTemporal(("r", "c"), form="min_traffic")])
    assert ps.RingSchedule("r~c", "min_traffic") in plan.actions
    assert any(isinstance(m, RingReshard) for m, _ in plan.program.reshards())
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert '"min_traffic"' in text
    (tmp_path / "former.json").write_text(text.replace('"min_traffic"', '"least"'))
    for name in ("plan.json", "former.json"):  # schedules had other names in earlier files
        again = plan_of(ps.load_plan(tmp_path / name))
        assert (again.actions, again.cost) == (plan.actions, plan.cost)
        assert again.mesh_shape.diagonal_names == ("r~c",)
