"""Ring attention: forward and all gradients are the plain ones, in the bytes of the formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import partir_search as ps
from models import training
from models.catalog import MODELS
from partir_search.ir.axis_options import Modes
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.printer import print_partition
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import AttentionTurn, ChunkedOp, RingReshard
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import Permute
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import argument_specs, sharded
from partir_search.lowering.traits import NEUTRAL
from partir_search.lowering.zigzag import owner_of
from partir_search.passes.attention import with_attention
from partir_search.rules.registry import RuleTable
from partir_search.simulator.target.traits import XlaTraits
from tests.attention import FORMS, Attention, by_hand, full, gradients, heads, in_flax
from tests.lowering.test_rings import plain_optimizer
from tests.support import assert_same, check_partition, device_mesh, module_of, state_of, tile_arg


def partitioned(fun: Attention, args: Any, n: int, stream: bool, zigzag: bool) -> Partition:
    """The function with sequences on an axis of n devices."""
    module, reasons = with_attention(module_of(fun, *args), RuleTable())
    assert not reasons
    state = state_of(module, MeshShape(("seq",), (n,)))
    for arg in range(3):
        if state.tiles[0][state.graph.class_of[module.body.args[arg].id]] < 0:
            tile_arg(state, arg, 1, "seq")
    if stream:
        state.modes = Modes(windowed_einsums={0: zigzag})
    return state.partition()


@pytest.mark.devices
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """On two devices, in zigzag where they are causal."""
    args = heads(2, 8)
    causal = not form.startswith("full")
    fun = gradients(FORMS[form])
    check_partition(partitioned(fun, args, 2, True, causal), fun, args)


@pytest.mark.devices
@pytest.mark.parametrize("n, zigzag", [(3, False), (4, True)])
def test_bytes(n: int, zigzag: bool) -> None:
    """2(n-1) blocks of keys and values forward and backward, 2n of their gradients; zigzag takes
    half of the products, and a permute of each half of what goes in and comes out. What is left at
    the program's edge are gathers of gradients whose layout nobody asked for.
    """
    args = heads(2, 4 * n)
    fun = gradients(in_flax)
    partition = partitioned(fun, args, n, True, zigzag)
    program = localize(partition)
    check_partition(partition, fun, args)
    moves = [m for m, _ in program.reshards() if m.step.kind == "collective_permute"]
    block = 4 * args[0].size // n
    ring = [m for m in moves if isinstance(m.step, Permute)]
    assert len(ring) == 2 * (n - 1) + 2 * (n - 1) + 2 * n
    assert sum(m.payload_bytes for m in ring) == (6 * n - 4) * block
    assert not zigzag or len(moves) > len(ring)
    assert {m.step.kind for m, _ in program.reshards()} <= {
        "collective_permute",
        "halo",
        "all_gather",
    }
    mesh = device_mesh(partition.mesh)
    placed = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(args, argument_specs(program), strict=True)
    ]
    compiled = jax.jit(sharded(schedule_for(program, NEUTRAL), mesh)).lower(*placed)
    counts = ps.stablehlo_counts(compiled.as_text())
    assert counts["collective_permute"] == len(moves)
    assert not counts.get("reduce_scatter")
    assert not counts.get("all_to_all")


def test_zigzag_is_for_causal_attention() -> None:
    """Asked for, attention that looks at all positions goes in order, and says so."""
    partition = partitioned(full, heads(2, 8), 4, True, True)
    assert 'pass "seq"' in print_partition(partition)
    turns = [i for i, _ in localize(partition).instructions() if isinstance(i, AttentionTurn)]
    assert [turn.zigzag for turn in turns] == [False] * 4


@pytest.mark.parametrize("zigzag", [False, True])
def test_print(zigzag: bool, golden: Callable[[str], None]) -> None:
    """Time, and whose block a device works on."""
    golden(print_partition(partitioned(in_flax, heads(2, 8), 4, True, zigzag)))


def test_zigzag_is_balanced() -> None:
    """Each device has a chunk of the first half and its mirror image."""
    for n in (2, 3, 4, 8):
        owned = [[c for c in range(2 * n) if owner_of(c, n) == d] for d in range(n)]
        assert owned == [[d, 2 * n - 1 - d] for d in range(n)]


@pytest.mark.devices
def test_parts_of_blocks() -> None:
    """Where scores of a block are many, they are there in parts; also on one device."""
    traits = XlaTraits(attention_scratch_bytes=256)
    args, fun = heads(2, 16), gradients(by_hand)
    for stream in (True, False):
        partition = partitioned(fun, args, 2, stream, True)
        program = localize(partition, LocalCache(traits))
        kind = AttentionTurn if stream else ChunkedOp
        chunks = [i.chunks for i, _ in program.instructions() if isinstance(i, kind)]
        assert min(chunks) >= 4
        check_partition(partition, fun, args, traits=traits)


@pytest.mark.parametrize(("dtype", "width"), [(jnp.bfloat16, 2), (jnp.float32, 4)])
def test_scores_are_stored_in_their_own_type(dtype: Any, width: int) -> None:
    """Those of a forward pass; of a backward pass their cotangents as well."""
    args, table = [x.astype(dtype) for x in heads(2, 8)], RuleTable()
    module, _ = with_attention(module_of(gradients(by_hand), *args), table)
    found = [table(op).blockwise for op in module.ops]
    assert [form.stored for form in found if form] == [width, 2 * width]


@pytest.mark.devices
def test_gathered() -> None:
    """Without a ring keys and values are gathered, their gradients reduced (Llama 3.1)."""
    args, fun = heads(2, 8), gradients(full)
    partition = partitioned(fun, args, 2, False, False)
    check_partition(partition, fun, args)
    kinds = [m.step.kind for m, _ in localize(partition).reshards()]
    assert kinds.count("all_gather") == 4
    assert "collective_permute" not in kinds


@pytest.mark.devices
def test_sums_are_added_in_32_bits() -> None:
    """Blocks come to what the plain function does in 16 bits, and no worse."""
    args = [a.astype(jnp.bfloat16) for a in heads(2, 32)]
    partition = partitioned(in_flax, args, 4, True, True)
    want = in_flax(*(jnp.asarray(a, jnp.float32) for a in args))
    program, mesh = localize(partition), device_mesh(partition.mesh)
    placed = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(args, argument_specs(program), strict=True)
    ]
    (got,) = jax.jit(sharded(schedule_for(program, NEUTRAL), mesh))(*placed)

    def error(x: Any) -> float:
        return float(jnp.sqrt(jnp.mean((x.astype(jnp.float32) - want) ** 2)))

    assert error(got) < 1.2 * error(in_flax(*args))


@pytest.mark.devices
@pytest.mark.parametrize(
    "name, sizes, data",
    [
        ("llama-tiny", {}, "tokens"),  # kv heads fewer than devices: the axis is in two parts
        pytest.param("gpt-scan-tiny", {"remat": "full"}, "batch", marks=pytest.mark.long),
    ],
)
def test_train_step(
    name: str, sizes: dict[str, Any], data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in a model, with sequences on 4 and the batch on 2 devices; replayed from a file."""
    monkeypatch.setattr(training, "optimizer", plain_optimizer)
    entry = MODELS[name].resized(layers=1, **sizes)
    args = jax.jit(lambda: entry.args(4))()
    mesh = jax.make_mesh((2, 4), ("data", "seq"), devices=jax.devices()[:8])
    schedule = [
        ps.ManualPartition({data: 0}, axis="data"),
        ps.ContextParallel("seq", zigzag=True),
    ]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(entry.step)
    plan = step.plan(*args)
    assert any(isinstance(m, RingReshard) for m, _ in plan.program.reshards())
    lowered = step.lower(*args)
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    got = jax.block_until_ready(lowered.compile()(*args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(jax.jit(entry.step)(*args)), 2e-4)


def test_saved_plans(tmp_path: Any) -> None:
    entry = MODELS["gpt-tiny"]
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "seq"))

    def plan_of(schedule: Any) -> ps.Plan:
        step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(entry.step)
        return step.plan(*entry.abstract_args(8))

    plan = plan_of([ps.ContextParallel("seq", zigzag=True)])
    plan.save(tmp_path / "plan.json")
    again = plan_of(ps.load_plan(tmp_path / "plan.json"))
    assert (again.actions, again.cost, again.attention) == (plan.actions, plan.cost, True)
    assert str(plan.actions[-1]) == "WindowedEinsum(axis='seq', zigzag=True)"


def test_zigzag_spares_half() -> None:
    """Of n^2 blocks of scores in a causal mask, 2n + 1 of 4n chunks are worked on."""
    args = [jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)] * 3
    mesh = jax.sharding.AbstractMesh((4,), ("seq",))

    def flops(zigzag: bool) -> float:
        schedule = [ps.ContextParallel("seq", zigzag=zigzag)]
        step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(in_flax)
        return step.plan(*args).cost.flops

    assert flops(True) / flops(False) == pytest.approx(9 / 16, rel=0.01)


def test_search_finds_it() -> None:
    """A sequence too long for a device, and one example: nothing else divides."""
    entry = MODELS["gpt-tiny"].resized(layers=2, d_model=512, heads=1, seq=65536)
    mesh = jax.sharding.AbstractMesh((8,), ("x",))
    step = ps.auto_partition(mesh, machine="tpu_v5e", rings=True, episodes=40)(entry.step)
    plan = step.plan(*entry.abstract_args(1))
    assert plan.attention
    assert plan.fits
    assert any(isinstance(m, RingReshard) for m, _ in plan.program.reshards())


# Bad input -------------------------------------------------------------------------------------


def test_no_attention() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("seq",))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[ps.ContextParallel("seq")])
    with pytest.raises(ValueError, match="the program has no attention that can go over its keys"):
        step(jnp.matmul).plan(np.ones((4, 4)), np.ones((4, 4)))


def test_sequence_that_does_not_divide() -> None:
    mesh = jax.sharding.AbstractMesh((3,), ("seq",))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[ps.ContextParallel("seq")])
    with pytest.raises(ValueError, match=r"sequence of 8 .* does not divide by axis 'seq'"):
        step(in_flax).plan(*heads(2, 8))


@pytest.mark.parametrize(
    "fun, seq, reason",
    [(full, 8, "looks at later positions"), (in_flax, 12, r"of 12, .* cuts into 8 chunks")],
    ids=["not causal", "too short"],
)
def test_no_zigzag(fun: Attention, seq: int, reason: str) -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("seq",))
    schedule = [ps.ContextParallel("seq", zigzag=True)]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)
    with pytest.raises(ValueError, match=reason):
        step(fun).plan(*heads(2, seq))
