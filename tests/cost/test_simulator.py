"""The simulator against hand arithmetic, against itself unfolded, and against XLA's flops."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.schedules import schedule
from models.transformer import TransformerConfig, example_args, make_train_step, optimizer
from partir_search.cost.collectives import collective_seconds, sent_bytes
from partir_search.cost.simulator import Cost, CostModel
from partir_search.cost.storage import stored_widths, usage_of
from partir_search.cost.traffic import analyse
from partir_search.ir.fold import fold
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.local import localize
from partir_search.machine import MACHINES, Machine, find_machine, machine_of_kind
from partir_search.planner import Planner
from partir_search.propagation.graph import Graph
from partir_search.propagation.propagate import State
from partir_search.propagation.rules.registry import RuleTable, rule_key
from partir_search.signature import split_call, trace_call
from tests.support import ROUND, module_of, state_of, tile_arg

OVERLAPPING = dataclasses.replace(
    ROUND, name="overlapping", link_bytes_per_s=1e7, prefetches=True, puts_off=True
)


def cost_of(state: State, machine: Machine = ROUND) -> Cost:
    graph = state.graph
    return CostModel(graph.module, graph.rules, machine).evaluate(localize(state.partition()))


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def matmul(x: Any, w: Any) -> Any:
    return x @ w


def test_matmul_by_hand() -> None:
    """2 * 64 * 128 * 32 flops at 1 GFLOP/s take longer than reading and writing 57 KB at 1 GB/s."""
    state = state_of(module_of(matmul, ones(64, 128), ones(128, 32)))
    cost = cost_of(state)
    assert cost.flops == 2 * 64 * 128 * 32
    assert cost.seconds == pytest.approx(cost.flops / 1e9)
    assert cost.argument_bytes == 4 * (64 * 128 + 128 * 32)
    assert cost.peak_bytes == cost.argument_bytes + 4 * 64 * 32
    slow = dataclasses.replace(ROUND, hbm_bytes_per_s=1e6)
    traffic = 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert cost_of(state, slow).seconds == pytest.approx(traffic / 1e6)


def test_contracted_dim_by_hand() -> None:
    """K on model:4: a quarter of the flops, one all_reduce of 8 KB: 2 * 3/4 * 8192 / 1e6 s."""
    state = state_of(module_of(matmul, ones(64, 128), ones(128, 32)))
    tile_arg(state, 0, 1, "model")
    cost = cost_of(state)
    assert cost.flops == 2 * 64 * 32 * 32
    sent = 2 * 3 / 4 * 4 * 64 * 32
    assert cost.bytes_by_axis == {"model": sent}
    assert cost.bytes_by_kind == {"all_reduce": sent}
    assert cost.collective_seconds == pytest.approx(sent / 1e6)


def test_breakdown_adds_up() -> None:
    state = state_of(module_of(matmul, ones(64, 128), ones(128, 32)))
    tile_arg(state, 0, 1, "model")
    graph = state.graph
    model = CostModel(graph.module, graph.rules, ROUND)
    program = localize(state.partition())
    cost, rows = model.evaluate(program), model.breakdown(program)
    assert [r.kind for r in rows] == ["all_reduce", "dot_general"]
    assert sum(r.seconds for r in rows) == pytest.approx(cost.seconds)
    assert sum(r.flops for r in rows) == cost.flops
    assert all("test_simulator.py" in r.source for r in rows)


@pytest.mark.parametrize(
    "kind,rounds", [("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1), ("all_reduce", 2)]
)
@pytest.mark.parametrize("torus, hops", [(True, (3, 3 + 1)), (False, (2, 3))])
def test_alpha_beta(kind: str, rounds: int, torus: bool, hops: tuple[int, int]) -> None:
    """On a torus rings along one axis after the other, behind a switch doubling."""
    mesh = MeshShape(("a", "b"), (4, 2))
    machine = dataclasses.replace(ROUND, hop_seconds=1.0, torus=torus, axis_bytes_per_s={"b": 5e5})
    one = collective_seconds(kind, 1e6, (0,), mesh, machine)
    assert one == pytest.approx(rounds * (3 / 4 * 1.0 + hops[0] * 1.0))
    both = collective_seconds(kind, 1e6, (0, 1), mesh, machine)
    assert both == pytest.approx(rounds * (7 / 8 * 2.0 + hops[1] * 1.0))
    assert sent_bytes(kind, 8.0, 4) == rounds * 6.0
    assert collective_seconds("slice", 1e6, (0,), mesh, machine) == 0.0


def test_loops_multiply() -> None:
    """A scan of n steps costs n bodies; jax's own roofline counts one."""

    def f(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (c @ w, None), x, ws)[0]

    costs = [cost_of(state_of(module_of(f, ones(8, 8), ones(n, 8, 8)))) for n in (1, 10)]
    assert costs[0].flops == 2 * 8**3
    assert costs[1].flops == 10 * costs[0].flops
    assert costs[1].compute_seconds == pytest.approx(10 * costs[0].compute_seconds)


def test_collectives_in_loops_multiply() -> None:
    def f(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (c @ w, None), x, ws)[0]

    state = state_of(module_of(f, ones(8, 8), ones(10, 8, 8)))
    tile_arg(state, 1, 1, "model")
    # The carry is tiled on its columns: ten reduce_scatters of 8 x 8 partial sums.
    assert cost_of(state).bytes_by_kind == {"reduce_scatter": 10 * 3 / 4 * 4 * 64}


def test_live_memory_by_hand() -> None:
    """Two products live at once, the third replaces them; elementwise values are not stored."""

    def f(x: Any, w: Any) -> Any:
        a = x @ w
        b = jnp.tanh(a) @ w
        return jnp.sin(a) @ b

    n = 4 * 32 * 32
    assert cost_of(state_of(module_of(f, ones(32, 32), ones(32, 32)))).peak_bytes == 5 * n


def test_donation_saves_the_result() -> None:
    def f(p: Any, g: Any) -> Any:
        return p - g

    args = (ones(32, 32), ones(32, 32))
    plain = module_of(f, *args, ties=((0, 0),))
    donated = dataclasses.replace(plain, donated=frozenset({0}))
    n = 4 * 32 * 32
    assert cost_of(state_of(plain)).peak_bytes == 3 * n
    assert cost_of(state_of(donated)).peak_bytes == 2 * n


def test_flops_agree_with_xla() -> None:
    """Unrolled, unpartitioned: within 5 % (XLA counts elementwise operations too)."""
    config = TransformerConfig(layers=1, d_model=64, heads=4, d_ff=256, vocab=64, seq=32)
    args = example_args(config, optimizer(), 8)
    step = make_train_step(config)
    call = split_call(step, args, {}, (), ())
    module = trace_call(jax.jit(step), call, args, {}, "step").module
    ours = cost_of(state_of(module, MeshShape(("x",), (1,)))).flops
    xla = jax.jit(step).lower(*args).compile().cost_analysis()["flops"]
    assert ours == pytest.approx(xla, rel=0.05)


@pytest.mark.parametrize("name", ["bp", "bp+mp", "bp+mp+z2", "bp+mp+z3"])
@pytest.mark.parametrize("machine", [MACHINES["tpu_v5e"], OVERLAPPING], ids=lambda m: m.name)
@pytest.mark.parametrize("remat", [False, True])
def test_fold_costs_what_the_whole_costs(name: str, remat: bool, machine: Machine) -> None:
    """Memory exactly; seconds at most 8 % too high, and 3 % too low (prefetch at the ends)."""
    config = TransformerConfig(layers=6, d_model=64, heads=4, d_ff=256, seq=32, remat=remat)
    args = example_args(config, optimizer(clip=None), 16)
    step = jax.jit(make_train_step(config), donate_argnums=0)
    module = trace_call(step, split_call(step, args, {}, (), ()), args, {}, "step").module
    mesh = MeshShape(("batch", "model"), (4, 2))
    on = dataclasses.replace(machine, kernel_seconds=0.0)
    planned = Planner(module, mesh, on).run(schedule(name))
    folded = fold(module, rule_key)
    graph = Graph(folded.module, RuleTable(), contract=True, alike=folded.alike)
    whole_rules = [RuleTable()(op) for op in module.ops]
    model = CostModel(folded.module, graph.rules, on, folded=folded, original_rules=whole_rules)
    state = State(graph, mesh)
    names = {v.name: v.id for v in module.values}
    for action in planned.actions:
        axes = mesh.axes(action.axis)
        for cls in {graph.class_of[folded.class_of[names[name]]]: 0 for name in action.values}:
            if hasattr(action, "dim"):
                if state.may_tile(cls, action.dim, axes):
                    state.tile(cls, action.dim, axes)
            elif state.free(cls, axes):
                state.keep(cls, axes)
    cost = model.evaluate(localize(state.partition()))
    assert cost.peak_bytes == pytest.approx(planned.cost.peak_bytes, rel=1e-9)
    assert cost.argument_bytes == planned.cost.argument_bytes
    assert 0.97 <= cost.seconds / planned.cost.seconds <= 1.08


def test_machines_name_their_sources() -> None:
    wanted = {*("tpu_v3", "tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e"), "cpu"}
    wanted |= {"a100", "h100", "h200", "v100"}
    assert set(MACHINES) == wanted
    for machine in MACHINES.values():
        assert machine.sources
        assert machine.matmul_flops_per_s("bfloat16") > 0
        assert find_machine(machine.name) is machine
    assert machine_of_kind("TPU v5 lite").name == "tpu_v5e"
    assert machine_of_kind("NVIDIA H100 80GB HBM3").name == "h100"
    assert machine_of_kind("cpu").name == "cpu"
    with pytest.raises(ValueError, match="no figures for device kind 'Gaudi'"):
        machine_of_kind("Gaudi")


TPU = dataclasses.replace(ROUND, bf16_products=True)


def peaks(fn: Any, *args: Any) -> tuple[float, float]:
    """Peak bytes beyond the arguments: as the program is written, and as XLA:TPU stores it."""
    state = state_of(module_of(fn, *args))
    a, b = cost_of(state), cost_of(state, TPU)
    return a.peak_bytes - a.argument_bytes, b.peak_bytes - b.argument_bytes


def test_operands_of_products_are_stored_narrow() -> None:
    """The hidden f32 [64, 512] is read by a product only: half of its bytes."""
    written, stored = peaks(lambda x, a, b: (x @ a) @ b, ones(64, 32), ones(32, 512), ones(512, 32))
    result = 64 * 32 * 4
    assert written == 64 * 512 * 4 + result
    assert stored == 64 * 512 * 2 + result


def test_operands_of_products_are_stored_where_products_do_not_make_them() -> None:
    """The activation between two products, whose input is needed later too: beside that on
    machines whose products read stored operands, made inside of the product on others.
    """

    def f(x: Any, a: Any, b: Any) -> Any:
        hidden = x @ a
        return jnp.tanh(hidden).T.T @ b + hidden.max()

    state = state_of(module_of(f, ones(64, 32), ones(32, 512), ones(512, 32)))
    fused, stored = cost_of(state), cost_of(state, dataclasses.replace(ROUND, fuses_operands=False))
    assert stored.peak_bytes - fused.peak_bytes == pytest.approx(64 * 512 * 4, abs=8)
    assert not MACHINES["h100"].fuses_operands
    assert MACHINES["tpu_v5e"].fuses_operands


@pytest.mark.parametrize(
    "queries, masked, wide",
    [("bhgqd", True, True), ("bhgqd", False, False), ("bqhgd", True, False)],
)
def test_masked_scores_are_stored_wide(queries: str, masked: bool, wide: bool) -> None:
    """Rounding to bf16 before the softmax is left out where a mask lies between. Groups of heads
    that lie apart from the positions make no product of matrices: with that nothing is fused.
    """
    sizes = {"b": 2, "q": 64, "h": 4, "g": 2, "d": 16}

    def f(q: Any, k: Any, mask: Any) -> Any:
        scores = (jnp.einsum(f"{queries},bkhd->bhgqk", q, k) / 8).astype(jnp.float32)
        scores = jnp.where(mask, scores, -1e9) if masked else scores
        weights = jax.nn.softmax(scores)
        return jnp.sort(scores, axis=0).sum() + jax.lax.cumsum(weights, axis=4).sum()

    q, k = (np.ones([sizes[c] for c in dims], jnp.bfloat16) for dims in (queries, "bqhd"))
    module = module_of(f, q, k, np.ones((64, 64), bool))
    widths = stored_widths(module, state_of(module).graph.rules)
    (scores,) = (op.results[0].id for op in module.ops if op.prim == "dot_general")
    assert widths.width[scores] == (2.0 if wide else 1.0)


def test_logits_are_stored_wide_until_labels_are_looked_up() -> None:
    def f(x: Any, w: Any, labels: Any) -> Any:
        logits = (x @ w).astype(jnp.float32)
        found = jnp.take_along_axis(logits, labels, axis=1)
        return (jax.nn.logsumexp(logits, axis=1) - found[:, 0]).sum()

    x, w = (np.ones(s, jnp.bfloat16) for s in ((64, 32), (32, 512)))
    module = module_of(f, x, w, np.zeros((64, 1), np.int32))
    widths = stored_widths(module, state_of(module).graph.rules)
    (logits,) = (op.results[0].id for op in module.ops if op.prim == "dot_general")
    assert widths.width[logits] == 1.0
    assert widths.storage.wide == {logits}


@pytest.mark.parametrize("masked", [True, False])
def test_a_masked_softmax_is_stored_for_v5p(masked: bool) -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.T).astype(jnp.float32)
        mask = jnp.tril(jnp.ones(scores.shape, bool))
        scores = jnp.where(mask, scores, -1e9) if masked else scores
        return jax.nn.softmax(scores).astype(jnp.bfloat16) @ v

    module = module_of(f, *(np.ones((64, 32), jnp.bfloat16) for _ in range(3)))
    rules = state_of(module).graph.rules
    weights = module.ops[-1].operands[0]
    for name, stored in (("tpu_v5p", masked), ("tpu_v5e", False)):
        traffic = usage_of(module, rules, MACHINES[name]).traffic
        assert (weights.id in traffic.value.tolist()) == stored


@pytest.mark.parametrize("read_later", [True, False])
def test_what_is_kept_anyway_is_multiplied_again(read_later: bool) -> None:
    """A product of two stored values is stored if only it keeps them, but not if both are read
    after its last use.
    """

    def f(x: Any, a: Any, b: Any) -> Any:
        gate, up = jnp.sort(x, axis=0), jnp.sort(x, axis=1)
        hidden = gate * up
        first = hidden @ a
        second = jnp.sort(jnp.sort(first, axis=0), axis=1) + hidden @ b
        if read_later:
            return jnp.sort(second, axis=0) @ gate + jnp.sort(second, axis=1) @ up
        return second

    module = module_of(f, ones(64, 64), ones(64, 64), ones(64, 64))
    rules = state_of(module).graph.rules
    stored = {module.values[v].name for v in analyse(module, rules).value.tolist()}
    assert ("mul" in stored) != read_later


def test_one_hot_updates_are_not_stored() -> None:
    """The gradient of taking one logit of each row is made where it is used."""

    def f(logits: Any, ids: Any) -> Any:
        def loss(x: Any) -> Any:
            return jnp.take_along_axis(x, ids[:, None], axis=1).sum()

        return (jax.grad(loss)(logits) * logits).sum()

    written, stored = peaks(f, ones(64, 512), np.zeros(64, np.int32))
    assert written - stored == 64 * 512 * 4


def test_epilogues_join_their_product() -> None:
    """X @ w, its relu (used twice, so stored) and the relu's sum over rows are one kernel."""

    def f(x: Any, w: Any) -> Any:
        y = jnp.maximum(x @ w, 0.0)
        return y, y.sum(0), jnp.sin(y) @ w.T

    state = state_of(module_of(f, ones(64, 128), ones(128, 32)))
    model = CostModel(state.graph.module, state.graph.rules, ROUND)
    kernels = model.kernels
    names = [state.graph.module.ops[op].prim for op in kernels.op.tolist()]
    product, relu, total = names.index("dot_general"), names.index("max"), names.index("reduce_sum")
    assert kernels.leader[relu] == kernels.leader[total] == product
    second = len(names) - 1 - names[::-1].index("dot_general")
    assert kernels.leader[second] == second
    touched = [kernels.touched[a:b] for a, b in itertools.pairwise(kernels.offsets.tolist())]
    y = state.graph.module.ops[int(kernels.op[relu])].results[0].id
    before = state.graph.module.ops[int(kernels.op[product])].results[0].id
    assert before not in np.concatenate(touched)  # what only the epilogue reads never leaves
    assert y in touched[relu]
    assert y not in touched[total]
    assert y in touched[second]


def test_narrow_elements_take_vector_units_as_long() -> None:
    """Tanh of bf16 moves half the bytes of f32 and takes as long where vectors are 4 bytes wide."""
    wide = dataclasses.replace(ROUND, vector_bytes=4)
    seconds = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        state = state_of(module_of(jnp.tanh, jnp.ones((64, 128), dtype)))
        seconds[dtype] = [cost_of(state, machine).seconds for machine in (ROUND, wide)]
    plain, narrow = seconds[jnp.float32], seconds[jnp.bfloat16]
    assert plain[0] == plain[1] == pytest.approx(2 * 4 * 64 * 128 / 1e9)
    assert narrow == pytest.approx([plain[0] / 2, plain[0]])


def test_what_dies_soon_lives_on_the_chip() -> None:
    """Between two products only VMEM holds the hidden layer, if it is small enough."""

    def f(x: Any, v: Any, w: Any) -> Any:
        return (x @ v) @ w

    state = state_of(module_of(f, ones(64, 16), ones(16, 256), ones(256, 16)))
    hidden = 4 * 64 * 256
    peaks = [
        cost_of(state, dataclasses.replace(ROUND, vmem_bytes=size)).peak_bytes
        for size in (0, 3 * hidden, 8 * hidden)
    ]
    assert peaks[0] == peaks[1]  # a value may take a quarter of it
    assert peaks[0] - peaks[2] >= hidden


def test_elementwise_results_take_the_buffer_of_what_dies() -> None:
    """Sorted (stored), then doubled in place and sorted again: two buffers, not three."""

    def f(x: Any) -> Any:
        y = jnp.sort(x, axis=0)
        z = jnp.tanh(y) * 2.0
        return jnp.sort(z, axis=0), jnp.sort(z, axis=1)

    state = state_of(module_of(f, ones(64, 128)))
    one = 4 * 64 * 128
    assert cost_of(state).peak_bytes == 4 * one  # argument, z, and both results


@pytest.mark.parametrize(
    "machine, masked, held",
    [
        *(("tpu_v5e", False, 2), ("tpu_v5e", True, 4)),
        *((name, masked, 3 + masked) for name in ("tpu_v4", "tpu_v5p") for masked in (False, True)),
    ],
)
def test_gradients_of_scores(machine: str, masked: bool, held: int) -> None:
    """At most so many times the bf16 scores as XLA holds: them (in f32 under a mask), the gradient
    of the weights, and that of the scores where it is a buffer of its own.
    """

    def loss(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        mask = jnp.tril(jnp.ones(scores.shape[2:], bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9) if masked else scores)
        out = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(jnp.bfloat16), v)
        return (out.astype(jnp.float32) ** 2).sum()

    q = np.ones((4, 512, 8, 16), jnp.bfloat16)
    state = state_of(module_of(jax.grad(loss, argnums=(0, 1, 2)), q, q, q))
    machine_without_vmem = dataclasses.replace(MACHINES[machine], vmem_bytes=0)
    peak = cost_of(state, machine_without_vmem).peak_bytes
    assert peak / (4 * 8 * 512 * 512 * 2) == pytest.approx(held, abs=0.3)
