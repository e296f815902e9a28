"""Pipelines of Llama 3 405B beside FSDP and beside the reports of its authors.

    python -m experiments.pipelines --theory
    python -m experiments.pipelines --theory --known
    python -m experiments.pipelines --planned
    python -m experiments.pipelines --planned --again
    python -m experiments.pipelines --planned --staged
    python -m experiments.pipelines --context

Seconds, memory and utilization of one step of 16 Mi tokens on 8,192 and 16,384 H100 (TP 8, PP 16,
as in table 4 of arXiv 2407.21783). A layer's seconds and bytes are the simulator's: differences by
layers and by sequences, kept or recomputed. The closed forms of `partir_search.theory.pipelines`
make them a step. Each row recomputes the fewest layers of a stage with which it fits. `--known`
adds the fastest known strategy without a pipeline that fits, on the whole model (a minute of CPU
for each number of devices). `--planned` plans the model with `ps.Pipeline("stage")`, padded to 128
layers, which chooses microbatches and chunks; with `--again` every layer is computed again, with
`--staged` the state of layers stays with their stages.
`--context` plans the third row of the table: sequences of 131,072 tokens, with context parallelism
on 16 devices between nodes. Nothing is allocated and nothing runs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import warnings
from typing import Any

import jax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.passes.attention import with_attention
from partir_search.passes.remat import find_segments, rematerialize
from partir_search.planning.known_strategies import KnownMoves
from partir_search.planning.planner import Planner
from partir_search.rules.registry import RuleTable
from partir_search.theory import fsdp, links, memory, pipelines, training
from partir_search.theory.model_sizes import MODEL_SIZES
from partir_search.theory.pipelines import StageBytes, StageSeconds

FLAGS = flags.FLAGS
flags.DEFINE_boolean("theory", False, "Closed forms on the simulator's figures of one layer.")
flags.DEFINE_boolean("planned", False, "Plans with ps.Pipeline on the whole model.")
flags.DEFINE_boolean("again", False, "Every layer of the planned model is computed again.")
flags.DEFINE_boolean("staged", False, "The train state of layers stays with their stages.")
flags.DEFINE_boolean("context", False, "Plans of sequences of 131,072 tokens.")
flags.DEFINE_boolean("known", False, "The known strategies without pipelines beside them.")

H100 = ps.MACHINES["h100"]
NAME, TENSOR, STAGES, TOKENS = "llama3-405b", 8, 16, 2**24
STRATEGY = "BP(data)+MP(model, head)+SP"
GROUPS = 2  # of data parallelism, for a layer's figures
REPORTED = {8192: 0.43, 16384: 0.41}  # table 4 of arXiv 2407.21783
CHUNKS = (1, 2, 4, 8)
PADDED = 128  # layers that stages and chunks divide
LONG, CONTEXT = 131072, 16  # tokens of a sequence, and devices that share one


@dataclasses.dataclass(frozen=True)
class LayerFigures:
    """What a layer costs for one sequence, on one of `TENSOR` devices.

    Attributes:
      compute / exposed: seconds of kernels, and of collectives that none hides.
      nbytes: kept for the backward pass.
    """

    compute: float
    exposed: float
    nbytes: float


def module_of(layers: int, batch: int, mesh: ps.MeshShape, **sizes: Any) -> Module:
    """The step of a model of `layers`, attention as one op."""
    entry = MODELS[NAME].resized(layers=layers, **sizes)
    step = ps.auto_partition(
        AbstractMesh(mesh.sizes, mesh.names),
        machine=H100,
        donate_argnums=0,
        remat=False,
        schedule=[],
        progress=False,
        on_overflow="warn",
    )(entry.step)
    found, _ = with_attention(step.plan(*entry.abstract_args(batch)).module, RuleTable())
    return found


@functools.cache
def layer_figures(recomputed: bool) -> LayerFigures:
    """Differences by layers and sequences; data parallelism costs nothing."""
    mesh = ps.MeshShape(("data", "model"), (GROUPS, TENSOR))
    machine = H100.with_axis("data", 1e15, 0.0)
    costs: dict[tuple[int, int], ps.Cost] = {}
    for layers in (2, 4):
        for sequences in (4, 8):
            module = module_of(layers, sequences * GROUPS, mesh, vocab=1024)
            if recomputed:
                module = rematerialize(module, find_segments(module))
            costs[layers, sequences] = KnownMoves(Planner(module, mesh, machine)).costs[STRATEGY]

    def further(of: str) -> float:
        """Of one more layer and sequence."""
        few, many = (getattr(costs[4, n], of) - getattr(costs[2, n], of) for n in (4, 8))
        return float(many - few) / 8

    nbytes = further("peak_bytes")
    if recomputed:  # two segments of a layer keep an operand each; so few peak elsewhere
        model = MODEL_SIZES[NAME]
        nbytes = 2 * memory.activation_bytes(model, model.sequence, memory.OPERAND) / TENSOR
    return LayerFigures(further("compute_seconds"), further("collective_seconds"), nbytes)


def stage_seconds(layers: int, recomputed: int) -> StageSeconds:
    """Seconds of a stage for one sequence; a third of a kept layer's is its forward pass."""
    model, machine = MODEL_SIZES[NAME], H100
    between = links.link_between(machine)
    assert between
    kept, again = layer_figures(False), layer_figures(True)
    forward = layers * (kept.compute / 3 + 0.4 * kept.exposed)
    total = (layers - recomputed) * (kept.compute + kept.exposed)
    total += recomputed * (again.compute + again.exposed)
    parameters = layers * model.layer_parameters / TENSOR
    sums = 2 * memory.MIXED.gradients * parameters / machine.attained_hbm_bytes_per_s
    head = training.step_flops(model.vocab * model.width, model.sequence)
    head /= TENSOR * STAGES * machine.matmul_flops_per_s("bfloat16")
    send = links.permute_seconds(2 * model.sequence * model.width / TENSOR, between)
    return StageSeconds(forward, total - forward, 0.0, sums, head, send, send)


def pipeline_row(devices: int, chunks: int) -> dict[str, Any]:
    """The row of the fewest recomputed layers that fit, or of all of them."""
    model, machine = MODEL_SIZES[NAME], H100
    groups = devices // (TENSOR * STAGES)
    layers = -(-model.layers // (STAGES * chunks)) * chunks
    microbatches = TOKENS // model.sequence // groups
    schedule = PipelineSchedule(STAGES, microbatches, chunks)
    parameters = model.parameters / (TENSOR * STAGES)
    for recomputed in range(layers + 1):
        again = recomputed * layer_figures(True).nbytes
        kept = (layers - recomputed) * layer_figures(False).nbytes + again
        state = memory.state_bytes(parameters, groups, 1)
        working = layer_figures(False).nbytes  # of a layer, made again
        nbytes = pipelines.pipeline_bytes(schedule, StageBytes(state, kept, working=working))
        if nbytes <= machine.hbm_bytes:
            break
    stage = stage_seconds(layers, recomputed)
    ticks = pipelines.pipeline_seconds(schedule, stage)
    between = links.link_between(machine)
    assert between
    # f32 gradients scattered, bf16 weights gathered once after the loop.
    sync = sum(
        links.all_gather_seconds(width * parameters, groups, between)
        for width in (memory.MIXED.gradients, memory.MIXED.weights)
    )
    seconds = ticks + sync
    peak = machine.flops_per_s["default"]
    used = training.utilization(model.parameters, TOKENS, devices, seconds, peak)
    return {
        "devices": devices,
        "plan": f"TP 8, PP 16, DP {groups}, k {microbatches}, v {chunks}",
        "recomputed": f"{recomputed} of {layers}",
        "s": round(seconds, 2),
        "idle_s": round((STAGES - 1) / chunks * (stage.forward + stage.backward), 2),
        "gb": round(nbytes / 1e9, 1),
        "fits": nbytes <= machine.hbm_bytes,
        "mfu": round(used, 3),
        "reported": REPORTED[devices],
    }


def known_row(devices: int) -> dict[str, Any]:
    """The fastest known strategy that fits, all layers kept or all recomputed."""
    model, machine = MODEL_SIZES[NAME], H100.across_hosts("data")
    mesh = ps.MeshShape(("data", "model"), (devices // TENSOR, TENSOR))
    plain = module_of(model.layers, TOKENS // model.sequence, mesh)
    forms = {"0": plain, "all": rematerialize(plain, find_segments(plain))}
    found = [
        (cost.seconds, name, form, cost)
        for form, module in forms.items()
        for name, cost in KnownMoves(Planner(module, mesh, machine)).costs.items()
        if cost.peak_bytes <= machine.hbm_bytes
    ]
    seconds, name, form, cost = min(found, key=lambda row: row[0])
    peak = machine.flops_per_s["default"]
    used = training.utilization(model.parameters, TOKENS, devices, seconds, peak)
    return {
        "devices": devices,
        "plan": name,
        "recomputed": form,
        "s": round(seconds, 2),
        "idle_s": 0.0,
        "gb": round(cost.peak_bytes / 1e9, 1),
        "fits": True,
        "mfu": round(used, 3),
        "reported": REPORTED[devices],
    }


def planned_rows(devices: int) -> list[dict[str, Any]]:
    """The pipelines that `ps.Pipeline` tries, the one taken first, and seconds of planning."""
    begin = time.process_time()
    model = MODEL_SIZES[NAME]
    entry = MODELS[NAME].resized(layers=PADDED, remat=FLAGS.again)
    sizes = STAGES, devices // (STAGES * TENSOR), TENSOR
    step = ps.auto_partition(
        AbstractMesh(sizes, ("stage", "data", "model")),
        machine=H100.across_hosts("stage", "data"),
        schedule=[ps.Pipeline("stage", staged_state=FLAGS.staged), ps.AutomaticPartition()],
        episodes=50,
        progress=False,
        on_overflow="warn",
    )(jax.jit(entry.step, donate_argnums=0))
    plan = step.plan(*entry.abstract_args(TOKENS // model.sequence))
    spent = round(time.process_time() - begin, 1)
    peak = H100.flops_per_s["default"]
    return [
        {
            "devices": devices,
            "plan": tried.name,
            "closed_s": round(tried.closed_seconds or 0.0, 2),
            "s": round(tried.cost.seconds, 2),
            "exposed_s": round(tried.cost.collective_seconds, 2),
            "gb": round(tried.cost.peak_bytes / 1e9, 1),
            "fits": tried.fits,
            "mfu": round(
                training.utilization(model.parameters, TOKENS, devices, tried.cost.seconds, peak), 3
            ),
            "reported": REPORTED[devices],
            "planning_cpu_s": spent,
        }
        for tried in sorted(plan.pipelines, key=lambda t: (not t.fits, t.cost.seconds))
    ]


def context_row(name: str, chunks: int, *tactics: Any, **options: Any) -> dict[str, Any]:
    """The third row of the table, 16,384 devices, planned with tactics beside the pipeline.

    Args:
      options: of `auto_partition`.
    """
    begin = time.process_time()
    model, devices = MODEL_SIZES[NAME], 16384
    groups = devices // (STAGES * CONTEXT * TENSOR)
    entry = MODELS[NAME].resized(layers=PADDED, seq=LONG)
    pipeline = ps.Pipeline("stage", microbatches=TOKENS // LONG // groups, chunks=chunks)
    step = ps.auto_partition(
        AbstractMesh((STAGES, groups, CONTEXT, TENSOR), ("stage", "data", "context", "model")),
        machine=H100.across_hosts("stage", "data", "context"),
        schedule=[pipeline, *tactics, ps.AutomaticPartition()],
        episodes=50,
        progress=False,
        on_overflow="warn",
        **options,
    )(jax.jit(entry.step, donate_argnums=0))
    plan = step.plan(*entry.abstract_args(TOKENS // LONG))
    rate = devices * H100.flops_per_s["default"] * plan.cost.seconds
    scores = training.attention_flops(model.layers, model.width, LONG, TOKENS)
    return {
        "devices": devices,
        "plan": f"{name}, v {chunks}",
        "closed_s": round(_context_seconds(chunks), 2),
        "s": round(plan.cost.seconds, 2),
        "exposed_s": round(plan.cost.collective_seconds, 2),
        "gb": round(plan.cost.peak_bytes / 1e9, 1),
        "mfu": round((training.step_flops(model.parameters, TOKENS) + scores) / rate, 3),
        "reported": 0.38,
        "planning_cpu_s": round(time.process_time() - begin, 1),
    }


def _context_seconds(chunks: int) -> float:
    """Closed form of the third row: a group of `TENSOR` devices has as many tokens of a sequence as
    in the first row, and the products of causal attention with all earlier tokens.
    """
    model = MODEL_SIZES[NAME]
    groups = 16384 // (STAGES * CONTEXT * TENSOR)
    schedule = PipelineSchedule(STAGES, TOKENS // LONG // groups, chunks)
    stage = stage_seconds(PADDED // STAGES, 0)
    known = 2 * training.attention_flops(1, model.width, model.sequence, LONG // CONTEXT)
    scores = training.attention_flops(1, model.width, LONG, LONG // CONTEXT) - known
    rate = TENSOR * H100.matmul_flops_per_s("bfloat16")
    more = PADDED // STAGES * scores / rate
    stage = dataclasses.replace(
        stage, forward=stage.forward + more / 3, backward=stage.backward + 2 * more / 3
    )
    return pipelines.pipeline_seconds(schedule, stage)


CONTEXT_ROWS: tuple[tuple[str, int, tuple[Any, ...], dict[str, Any]], ...] = (
    ("keys gathered", 8, (ps.ContextParallel("context", ring=False),), {}),
    ("keys rotate, zigzag", 4, (ps.ContextParallel("context", zigzag=True),), {}),
    ("keys rotate, zigzag", 8, (ps.ContextParallel("context", zigzag=True),), {}),
    ("found", 8, (), {}),
    ("found, rings=True", 8, (), {"rings": True}),
)


def bound_row(devices: int) -> dict[str, Any]:
    """Tokens of a group of FSDP beside those that hide its collectives."""
    machine = H100
    between = links.link_between(machine)
    assert between
    needed = fsdp.tokens_needed(between, machine.matmul_flops_per_s("bfloat16"))
    return {"devices": devices, "tokens": TOKENS * TENSOR // devices, "needed": round(needed)}


def main(_: Any) -> None:
    if not (FLAGS.theory or FLAGS.planned or FLAGS.context):
        raise app.UsageError("say --theory, --planned or --context")
    warnings.simplefilter("ignore")  # of plans that do not fit: the table shows them
    for devices in REPORTED if FLAGS.planned else ():
        for row in planned_rows(devices):
            print(json.dumps(row), flush=True)
    for name, chunks, tactics, options in CONTEXT_ROWS if FLAGS.context else ():
        print(json.dumps(context_row(name, chunks, *tactics, **options)), flush=True)
    if not FLAGS.theory:
        return
    rows = []
    for devices in REPORTED:
        rows += [known_row(devices)] if FLAGS.known else []
        rows += [pipeline_row(devices, chunks) for chunks in CHUNKS]
    table = Table(title=f"{NAME}, {TOKENS:,} tokens a step, {H100.name}")
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=150).print(table)
    for again in (False, True):
        print(json.dumps({"recomputed": again, **dataclasses.asdict(layer_figures(again))}))
    for row in (*rows, *map(bound_row, REPORTED)):
        print(json.dumps(row))


if __name__ == "__main__":
    app.run(main)
