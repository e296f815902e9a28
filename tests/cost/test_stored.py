"""What is stored, in which width and for how long, and what kernels take of it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.lowering.localize import localize
from partir_search.propagation.actions.loops import FixLoop
from partir_search.simulator.memory.dtypes import assign_dtypes
from partir_search.simulator.program_analysis import analyse_program
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.support import ROUND, TPU_TRAITS, cost_of, module_of, ones, state_of, tile_arg

TPU = dataclasses.replace(ROUND, traits=TPU_TRAITS).with_traits(
    in_place_elementwise=True, recomputes_dot_operands=True
)


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
    storing = ROUND.with_traits(materializes_dot_operands=True, fuses_dot_epilogues=False)
    fused, stored = cost_of(state), cost_of(state, storing)
    assert stored.peak_bytes - fused.peak_bytes == pytest.approx(64 * 512 * 4, abs=8)
    assert MACHINES["h100"].traits.materializes_dot_operands
    assert not MACHINES["tpu_v5e"].traits.materializes_dot_operands


GPU = ROUND.with_traits(
    materializes_dot_operands=True,
    fuses_dot_epilogues=False,
    fuses_lookups=True,
    stores_expensive_elementwise=True,
)


def _two_products(activation: Any, x: Any, a: Any, b: Any) -> Any:
    hidden = x @ a
    return activation(hidden) @ b + hidden.max()


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(jax.nn.relu, 0), (jnp.tanh, 1), (jax.nn.silu, 1), (lambda h: 2 * h, 0)],
)
def test_activations_of_products_that_the_next_product_makes(
    activation: Any, expected: int
) -> None:
    """Cheap functions of a product's result alone; others are stored beside the result."""
    shapes = ones(64, 32), ones(32, 512), ones(512, 32)
    state = state_of(module_of(lambda *xs: _two_products(activation, *xs), *shapes))
    stored = cost_of(state, GPU).peak_bytes - cost_of(state).peak_bytes
    assert stored == pytest.approx(expected * 64 * 512 * 4, abs=8)


def test_operands_of_many_products_are_stored() -> None:
    """A product with a batch dim reads its operands from memory, whatever made them."""

    def f(x: Any, a: Any, b: Any) -> Any:
        hidden = jnp.einsum("hik,hkj->hij", x, a)
        return jnp.einsum("hij,hjk->hik", jax.nn.relu(hidden), b) + hidden.max()

    state = state_of(module_of(f, ones(4, 64, 32), ones(4, 32, 512), ones(4, 512, 32)))
    stored = cost_of(state, GPU).peak_bytes - cost_of(state).peak_bytes
    assert stored == pytest.approx(4 * 64 * 512 * 4, abs=8)


def test_expensive_functions_are_computed_once() -> None:
    """The tanh of a GELU is kept for its derivative; exponentials are computed again."""

    def f(function: Any, x: Any) -> Any:
        return jax.grad(lambda x: (x * function(x)).sum())(x) + x[::-1]

    for function, kept in ((jnp.tanh, True), (jnp.exp, False)):
        module = module_of(lambda x, g=function: f(g, x), ones(64, 512))
        rules = state_of(module).graph.rules
        first = next(op.results[0].id for op in module.ops if op.prim == function.__name__)
        for machine, stored in ((GPU, kept), (ROUND, False)):
            found = analyse_program(module, rules, machine).buffers.materialized.made
            assert (first in found) is stored


def test_look_ups_in_their_consumers() -> None:
    """Rows that are looked up, scaled and summed by node are in no buffer."""

    def f(table: Any, rows: Any, weights: Any) -> Any:
        messages = table[rows] * weights[:, None]
        return jnp.zeros_like(table).at[rows].add(messages)

    rows = jnp.zeros(4096, jnp.int32)
    state = state_of(module_of(f, ones(64, 512), rows, ones(4096)))
    written, fused = cost_of(state), cost_of(state, GPU)
    assert written.peak_bytes - fused.peak_bytes == pytest.approx(4096 * 512 * 4, abs=8)


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
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights.astype(k.dtype), k)
        return jnp.sort(scores, axis=0).sum() + mixed.sum()

    q, k = (np.ones([sizes[c] for c in dims], jnp.bfloat16) for dims in (queries, "bqhd"))
    module = module_of(f, q, k, np.ones((64, 64), bool))
    dtypes = assign_dtypes(module, state_of(module).graph.rules, TPU_TRAITS)
    scores, _ = (op.results[0].id for op in module.ops if op.prim == "dot_general")
    assert dtypes.width[scores] == (2.0 if wide else 1.0)


@pytest.mark.parametrize("probabilities", [False, True])
def test_logits_are_stored_wide_until_labels_are_looked_up(probabilities: bool) -> None:
    def f(x: Any, w: Any, labels: Any) -> Any:
        logits = (x @ w).astype(jnp.float32)
        if probabilities:  # XLA stores what is gathered, and the logits for the backward pass
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels, axis=1).sum()
        found = jnp.take_along_axis(logits, labels, axis=1)
        return (jax.nn.logsumexp(logits, axis=1) - found[:, 0]).sum()

    x, w = (np.ones(s, jnp.bfloat16) for s in ((64, 32), (32, 512)))
    module = module_of(f, x, w, np.zeros((64, 1), np.int32))
    dtypes = assign_dtypes(module, state_of(module).graph.rules, TPU_TRAITS)
    (logits,) = (op.results[0].id for op in module.ops if op.prim == "dot_general")
    assert dtypes.width[logits] == 1.0
    assert dtypes.wide_forward == {logits}


def test_wide_logits_are_made_of_the_sum() -> None:
    """Partial logits are summed in their own type before the wide copy exists."""

    def f(x: Any, w: Any, labels: Any) -> Any:
        logits = (x @ w).astype(jnp.float32)
        found = jnp.take_along_axis(logits, labels, axis=1)
        return (jax.nn.logsumexp(logits, axis=1) - found[:, 0]).sum()

    x, w = (np.ones(s, jnp.bfloat16) for s in ((64, 32), (32, 4096)))
    state = state_of(module_of(f, x, w, np.zeros((64, 1), np.int32)))
    tile_arg(state, 1, 0, "model")
    cost = cost_of(state, TPU)
    logits = 64 * 4096 * 2
    assert cost.peak_bytes - cost.argument_bytes == pytest.approx(3 * logits, rel=0.02)


def test_totals_of_a_loop_are_stored_in_their_own_type() -> None:
    """A cast after the loop stores no narrower total: the buffer is that of the loop's carry."""

    def f(parts: Any, x: Any) -> Any:
        total, _ = jax.lax.scan(lambda t, p: (t + p, None), jnp.zeros_like(x), parts)
        return total.astype(jnp.bfloat16), (x + 1).astype(jnp.bfloat16)

    module = module_of(f, ones(4, 64, 64), ones(64, 64))
    dtypes = assign_dtypes(module, state_of(module).graph.rules, TPU_TRAITS)
    total, plain = _cast_operands(module)
    assert dtypes.width[total] == 1.0
    assert dtypes.width[plain] == 0.5


def _cast_operands(module: Module) -> tuple[int, int]:
    """Ids of the values that the casts of the results read."""
    casts = [op for op in module.body.ops if op.prim == "convert_element_type"]
    first, second = (op.inputs()[0][1].id for op in casts)
    return first, second


@pytest.mark.parametrize(("masked", "keys"), [(True, 256), (False, 256), (True, 128)])
def test_a_masked_softmax_over_many_keys_is_stored_for_v5p(masked: bool, keys: int) -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.T).astype(jnp.float32)
        mask = jnp.tril(jnp.ones(scores.shape, bool))
        scores = jnp.where(mask, scores, -1e9) if masked else scores
        return jax.nn.softmax(scores).astype(jnp.bfloat16) @ v

    module = module_of(f, *(np.ones((n, 32), jnp.bfloat16) for n in (64, keys, keys)))
    rules = state_of(module).graph.rules
    weights = module.ops[-1].operands[0]
    for name, stored in (("tpu_v5p", masked and keys > 128), ("tpu_v5e", False)):
        ranges = analyse_program(module, rules, MACHINES[name]).buffers.ranges
        assert (weights.id in ranges.value.tolist()) == stored


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
    stored = {
        module.values[v].name
        for v in analyse_program(module, rules, ROUND).buffers.ranges.value.tolist()
    }
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
    kernels = model.time.kernels
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


def test_slices_of_what_consumers_recompute_are_not_copies() -> None:
    """Sines without a loop along the tiled dim: a device computes its slice inside of the sum."""

    def f(a: Any, b: Any) -> Any:
        return jnp.sin(b) + a

    state = state_of(module_of(f, ones(512, 64), ones(512, 64)))
    sines = state.graph.module.ops[0].results[0].name
    FixLoop(sines, -1, "batch").apply(state)
    tile_arg(state, 0, 0, "batch")
    moves = [type(move.step).__name__ for move, _ in localize(state.partition()).reshards()]
    assert moves == ["Slice"]
    cost = cost_of(state, TPU)
    assert cost.peak_bytes - cost.argument_bytes == 512 * 64 * 4 / 2


def test_a_scatter_is_written_whole_before_a_slice_of_it() -> None:
    """A gradient of 500,000 rows in four tiles: three tiles more are written without a loop."""
    mesh = AbstractMesh((4,), ("model",))
    shapes = ((500_000, 128), jnp.float32), ((4096,), jnp.int32), ((4096, 128), jnp.float32)
    args = [jax.ShapeDtypeStruct(*each) for each in shapes]

    def step(table: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
        return table - 0.1 * jnp.zeros_like(table).at[rows].add(updates)

    def planned(*actions: ps.Action) -> ps.Plan:
        empty = ps.auto_partition(mesh, schedule=[], machine="tpu_v5e")(step).plan(*args)
        spec = dataclasses.replace(empty.spec, actions=actions)
        return ps.auto_partition(mesh, schedule=spec, machine="tpu_v5e")(step).plan(*args)

    tile = ps.Tile("table", 0, "model")
    looped, whole = planned(tile), planned(FixLoop("scatter_add", -1, "model"), tile)
    more = whole.cost.seconds - looped.cost.seconds
    size, machine = 500_000 * 128 * 4, MACHINES["tpu_v5e"]
    # The scatter writes all rows; the slice is a kernel, which reads and writes a quarter.
    assert more == pytest.approx((0.75 + 2 * 0.25) * size / machine.attained_hbm_bytes_per_s)
