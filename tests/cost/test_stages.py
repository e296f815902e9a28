"""Every stage of the simulator prints its result, and nothing points back to a model."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.lowering.localize import localize
from partir_search.simulator.simulator import CostModel, Simulation
from partir_search.simulator.target.machine import MACHINES
from partir_search.simulator.target.traits import XlaTraits
from tests.support import module_of, state_of, tile_arg


def step(w: Any, v: Any, x: Any) -> Any:
    """Gradient descent on two dots, the second weight converted to bf16."""

    def loss(w: Any, v: Any) -> Any:
        hidden = jnp.tanh(x @ w).astype(jnp.bfloat16)
        return ((hidden @ v.astype(jnp.bfloat16)).astype(jnp.float32) ** 2).sum()

    dw, dv = jax.grad(loss, (0, 1))(w, v)
    return w - dw, v - dv


def simulated(machine: str) -> tuple[CostModel, Simulation]:
    args = [np.ones(shape, np.float32) for shape in ((256, 512), (512, 128), (64, 256))]
    state = state_of(module_of(step, *args))
    tile_arg(state, 2, 0, "batch")
    tile_arg(state, 0, 1, "model")
    tile_arg(state, 1, 0, "batch")
    model = CostModel(state.graph.module, state.graph.rules, MACHINES[machine])
    return model, model.simulate(localize(state.partition()), record=True)


def stages(model: CostModel, found: Simulation) -> dict[str, Any]:
    """Results in the order in which they are computed."""
    buffers, memory, time = model.analysis.buffers, model.memory, model.time
    return {
        "Dtypes": model.analysis.dtypes,
        "Materialized": buffers.materialized,
        "Aliases": buffers.aliases,
        "LiveRanges": buffers.ranges,
        "Curve": memory.curve,
        "FusedCasts": memory.casts,
        "RegionSummaries": memory.regions,
        "MemoryModel": memory,
        "Fusions": model.analysis.fusions,
        "Kernels": time.kernels,
        "VectorWork": time.work,
        "FusionSplits": time.splits,
        "TimeModel": time,
        "ProgramFacts": model.facts,
        "DeviceLoad": found.load,
        "Roofline": found.load.roofline,
        "ScheduledRegion": found.scheduled,
        "Overlap": found.overlap,
        "SplitKernels": found.split,
        "Temporaries": found.temporaries,
    }


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
def test_every_stage_prints(machine: str) -> None:
    model, found = simulated(machine)
    for name, stage in stages(model, found).items():
        assert type(stage).__name__ == name
        text = str(stage)
        assert text.startswith(name)
        assert "object at" not in text
        assert max(map(len, text.splitlines())) < 400
    whole = str(found)
    for name in ("DeviceLoad", "ScheduledRegion", "Overlap", "SplitKernels", "Temporaries"):
        assert name in whole
    assert "dot_general" in str(model.time.kernels)
    assert "all_reduce" in str(found.overlap)
    (cost,) = {type(c).__name__ for c in found.scheduled.all_costs()}
    assert cost == "CollectiveCost"
    assert any("bytes sent" in str(c) for c in found.scheduled.all_costs())


def test_results_are_frozen() -> None:
    model, found = simulated("tpu_v5e")
    for stage in (*stages(model, found).values(), *found.scheduled.all_costs()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(stage, dataclasses.fields(stage)[0].name, None)


def test_no_result_points_back_to_the_model() -> None:
    model, found = simulated("tpu_v5e")
    seen, waiting = set[int](), [found, *stages(model, found).values()]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        assert not isinstance(each, CostModel), type(each)
        if type(each).__module__.startswith("partir_search.simulator") or isinstance(
            each, dict | list | tuple
        ):
            waiting += gc.get_referents(each)


def traits_of_rows(machine: str) -> set[str]:
    model, found = simulated(machine)
    program = localize(found.load.partition)
    rows = model.breakdown(program)
    known = {f.name for f in dataclasses.fields(XlaTraits)}
    for row in rows:
        assert known.issuperset(row.traits)
        assert len(set(row.traits)) == len(row.traits)
    return {name for row in rows for name in row.traits}


def test_kernels_name_the_traits_that_priced_them() -> None:
    tpu, gpu = traits_of_rows("tpu_v5e"), traits_of_rows("h100")
    assert {"fuses_weight_casts", "fuses_dot_epilogues", "vmem_resident_fraction"} <= tpu
    assert {"materializes_dot_operands", "defers_weight_gradients"} <= gpu
    assert not {"fuses_weight_casts", "fuses_dot_epilogues"} & gpu
    assert not {"materializes_dot_operands", "defers_weight_gradients"} & tpu


def test_a_plan_shows_its_simulation() -> None:
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    tactic = ps.ManualPartition({"x": 0}, axis="batch")
    plan = ps.auto_partition(mesh, schedule=[tactic], machine="tpu_v5e")(step).plan(
        *[jax.ShapeDtypeStruct(s, jnp.float32) for s in ((256, 512), (512, 128), (64, 256))]
    )
    found = plan.simulation
    assert found.cost == plan.cost
    assert str(plan.cost) in str(found)
    assert any("fuses_weight_casts" in row.traits for row in plan.breakdown())
