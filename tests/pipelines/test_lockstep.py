"""Loops over microbatches as lockstep pipelines: equal to the plain step, on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

from partir_search.ir.core import Module
from partir_search.ir.interpreter import interpret, run_whole
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.verify import verify
from partir_search.passes.pipeline.loop_parts import NoPipeline
from partir_search.passes.pipeline.module import pipelined, stage_carries
from partir_search.passes.roll import roll
from partir_search.planning.microbatch import in_time
from partir_search.planning.stage import print_module
from partir_search.planning.trace import read_call, split_call
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED
from tests.pipelines.programs import BATCH, LAYERS, LENGTH, STEPS, WIDTH, arguments
from tests.support import assert_same


def in_parts(step: Callable[..., Any], microbatches: int, *args: Any) -> Module:
    """A step as a loop over microbatches, with scans over layers."""
    args = args or arguments()
    call = split_call(step, args, {}, (), ())
    module = roll(read_call(jax.jit(step), call, args, {}, "step").module).module
    return in_time(module, microbatches).module


def pipeline(module: Module, *numbers: int, schedule: str = "1f1b", split: bool = False) -> Module:
    """A loop over microbatches as a pipeline of (stages, microbatches, chunks)."""
    timetable = PipelineSchedule(*numbers, schedule=schedule, split=split)
    found = pipelined(module, timetable, (*RULES, *UNRULED))
    verify(found)
    return found


def results_of(module: Module, *args: Any) -> list[Any]:
    table = RuleTable()
    rules = [table(op) for op in module.ops]

    def run(*leaves: Any) -> list[Any]:
        return interpret(module, rules, leaves, lambda op, ins: run_whole(rules[op.id], op, ins))

    return jax.jit(run)(*jax.tree.leaves(args or arguments()))


@pytest.mark.parametrize(
    ("name", "numbers", "schedule"),
    [
        ("tied", (4, 8, 1), "1f1b"),
        ("tied", (4, 2, 1), "1f1b"),  # fewer microbatches than stages
        ("tied", (2, 4, 4), "1f1b"),
        ("tied", (4, 8, 1), "gpipe"),
        ("recomputed", (2, 4, 2), "gpipe"),
        ("recomputed", (8, 8, 1), "1f1b"),
        ("dropped", (4, 8, 2), "1f1b"),
        ("masked", (2, 8, 4), "1f1b"),
        ("carried", (2, 4, 4), "gpipe"),
        ("masked", (4, 4, 2), "1f1b"),
        ("masked", (2, 8, 1), "gpipe"),
        ("narrow", (2, 4, 1), "1f1b"),
        ("narrow", (2, 4, 2), "1f1b"),
        ("carried", (4, 4, 1), "1f1b"),
        ("carried", (3, 4, 1), "1f1b"),  # 8 layers in 9 places
        ("dropped", (2, 4, 3), "1f1b"),  # in 12
        ("translated", (2, 4, 3), "1f1b"),  # 4 layers in 6 places
        ("scaled", (2, 4, 3), "1f1b"),
        ("translated", (2, 4, 1), "gpipe split"),
        pytest.param("translated", (2, 4, 2), "gpipe", marks=pytest.mark.long),
        pytest.param("translated", (2, 4, 2), "1f1b split", marks=pytest.mark.long),
        pytest.param("translated", (3, 4, 1), "1f1b split", marks=pytest.mark.long),
    ],
)
def test_pipeline_equals_plain_step(name: str, numbers: tuple[int, ...], schedule: str) -> None:
    kind, *split = schedule.split()
    parts = in_parts(STEPS[name], numbers[1])
    module = pipeline(parts, *numbers, schedule=kind, split=bool(split))
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    tolerance = 2e-2 if name == "narrow" else 1e-5
    assert_same(results_of(module), want, tolerance=tolerance)


def test_loops_are_the_phases_of_the_table() -> None:
    """F, F and B, B; each tick computes the layers of one stage."""
    parts = in_parts(STEPS["recomputed"], 8)
    assert stage_carries(parts.body.ops) == []
    module = pipeline(parts, 4, 8, 1)
    loops = [op for op in module.body.ops if op.prim == "scan"]
    assert [op.params["length"] for op in loops] == [3, 8, 3]
    inner = [[o for o in op.regions[0].ops if o.prim == "scan"] for op in loops]
    assert [len(found) for found in inner] == [1, 2, 1]
    assert {o.params["length"] for found in inner for o in found} == {LAYERS // 4}
    carry, *_ = stage_carries(module.body.ops)
    assert carry.type.shape == (4, BATCH // 8, LENGTH, WIDTH)


def test_two_stacks_of_layers() -> None:
    """F of the encoder and of the decoder, then B of each; four kinds of layers in most ticks."""
    module = pipeline(in_parts(STEPS["translated"], 8), 4, 8, 1)
    loops = [op for op in module.body.ops if op.prim == "scan"]
    assert [op.params["length"] for op in loops] == [3, 3, 3, 2, 3, 3, 3]
    inner = [sum(o.prim == "scan" for o in op.regions[0].ops) for op in loops]
    assert inner == [1, 2, 3, 4, 3, 2, 1]
    slots = {
        v.type.shape[1]
        for v in stage_carries(module.body.ops)
        if v.type.shape[2:] == (1, BATCH // 8, LENGTH, WIDTH)
    }
    assert slots == {8, 7}  # all microbatches of the encoder, 2p - 1 of the decoder


def test_chunks_of_two_stacks() -> None:
    """Ticks between entries, heads and exits are loops of their own, without a product outside."""
    module = pipeline(in_parts(STEPS["translated"], 8), 2, 8, 2)
    loops = [op for op in module.body.ops if op.prim == "scan"]
    # 8 v + p - 1 ticks of each kind of layers, which begin v p - 1 ticks apart.
    assert sum(op.params["length"] for op in loops) == 3 * 3 + 17
    inner = [sum(o.prim == "scan" for o in op.regions[0].ops) for op in loops]
    assert inner == [1, 2, 3, 4, 3, 2, 1]


def test_head_and_entry_are_computed_once_in_a_tick() -> None:
    """One product with the embedding, and two for its gradients, in the ticks with a head."""
    module = pipeline(in_parts(STEPS["recomputed"], 8), 4, 8, 1)
    loops = [op for op in module.body.ops if op.prim == "scan"]
    products = [[o.prim for o in op.regions[0].ops].count("dot_general") for op in loops]
    assert products == [0, 3, 0]


def test_ticks_between_entries_heads_and_exits_compute_layers_alone() -> None:
    """Loops of their own: with chunks, few ticks have a microbatch of the first or last layer."""
    module = pipeline(in_parts(STEPS["recomputed"], 4), 2, 4, 4)
    loops = [op for op in module.body.ops if op.prim == "scan"]
    assert [op.params["length"] for op in loops] == [2, 5, 3, 4, 3, 5, 2]
    products = [[o.prim for o in op.regions[0].ops].count("dot_general") for op in loops]
    assert products == [0, 0, 3, 0, 3, 0, 0]
    look_ups = [
        any(x.type.shape == (12, WIDTH) for o in op.regions[0].ops for _, x in o.inputs())
        for op in loops
    ]
    assert look_ups == [True, False, True, False, True, False, True]


@pytest.mark.parametrize(("numbers", "schedule"), [((4, 8, 1), "1f1b"), ((4, 8, 1), "gpipe")])
def test_residuals_wait_in_the_slots_of_the_table(numbers: tuple[int, ...], schedule: str) -> None:
    """2p - 1 slots of layers' inputs for 1f1b, as many as microbatches for gpipe."""
    module = pipeline(in_parts(STEPS["recomputed"], 8), *numbers, schedule=schedule)
    slots = {
        v.type.shape[1]
        for v in module.values
        if v.type.shape[:1] == (4,) and v.type.shape[2:] == (LAYERS // 4, BATCH // 8, LENGTH, WIDTH)
    }
    assert slots == {7 if schedule == "1f1b" else 8}


def test_casts_of_weights_are_held_once() -> None:
    """Residuals that no microbatch changes have no slots, only totals of gradients have places."""
    module = pipeline(in_parts(STEPS["narrow"], 4), 2, 4, 1)
    weights = [v.type.shape for v in module.values if v.type.shape[-2:] == (WIDTH, WIDTH)]
    assert weights
    assert all(len(shape) <= 4 or shape[:2] == (2, 1) for shape in weights)


def test_print(golden: Callable[[str], None]) -> None:
    jax.clear_caches()  # names of values depend on jaxprs shared with earlier traces
    module = pipeline(in_parts(STEPS["recomputed"], 4), 2, 4, 1)
    golden(print_module(module))


# Refusals --------------------------------------------------------------------------------------


def refusal(step: Callable[..., Any], *numbers: int) -> str:
    with pytest.raises(NoPipeline) as error:
        pipeline(in_parts(step, numbers[1]), *numbers)
    return str(error.value)


def test_more_stages_than_layers() -> None:
    message = refusal(STEPS["tied"], 16, 4, 1)
    assert "16 stages are too many for the 8 layers at scan at" in message
    assert "programs.py" in message
    assert "4 stages of 4 chunks are too many for" in refusal(STEPS["tied"], 4, 4, 4)


def test_step_without_layers() -> None:
    def step(params: Any, tokens: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            return (params["embedding"][tokens] ** 2).mean()

        return jax.value_and_grad(loss)(params)

    assert "no stack of layers" in refusal(step, 2, 4, 1)
