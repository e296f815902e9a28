"""Choice of a pipeline's axis, microbatches and chunks by closed forms.

`ps.Pipeline()` leaves all numbers open, `ps.Pipeline("stage", microbatches=8)` the chunks alone.
The layers of the rolled program give operations, bytes of residuals and of carries of the whole
batch; the formulas of `theory/pipelines.py` rank every number of microbatches and chunks on every
axis of the mesh. The best few are planned in full.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.pipeline_runs import ticks_with_ends
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import NoPipeline, too_empty
from partir_search.passes.pipeline.split_backward import split_backward
from partir_search.passes.roll import layer_scans
from partir_search.planning.layer_kernels import LayerKernels, layer_kernels
from partir_search.planning.microbatch import batch_size, named_batch
from partir_search.planning.options import Options
from partir_search.planning.pipeline_tactic import Pipeline
from partir_search.rules.registry import RuleTable
from partir_search.simulator.op_kinds import op_flops, total_flops
from partir_search.simulator.target.machine import Machine
from partir_search.theory.links import all_gather_seconds, all_reduce_seconds, link_inside
from partir_search.theory.pipelines import (
    StageBytes,
    StageSeconds,
    pipeline_bytes,
    pipeline_seconds,
)
from partir_search.theory.tensor import FORWARD_COLLECTIVES

MOST_PLANNED = 2  # pipelines planned in full, the best by closed form
MOVED = 6  # reads and writes of what waits for W: from layers to slots, and from slots to layers
NO_KERNELS = LayerKernels()
ACCUMULATED = 3  # a gradient's bytes moved by one microbatch: two reads and a write


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a program, forward and backward, for the whole batch.

    Attributes:
      layers: their number, of the shortest stack.
      batch: examples.
      forward / backward: floating-point operations of all layers.
      around: of the ops outside of the layers.
      parameters: bytes of the layers' parameters.
      residuals: bytes that wait for the backward pass, of all layers.
      carry: bytes passed from layer to layer.
      dtype: of the products.
      further: numbers of layers of further stacks, each cut into as many stages.
      weights: operations of the backward pass to defer; 0 if none may be.
      waiting: bytes read by deferred operations, made by undeferred ones, of all layers.
      kernels: seconds of the layers on all devices, at least.
    """

    layers: int
    batch: int
    forward: float
    backward: float
    around: float
    parameters: float
    residuals: float
    carry: float
    dtype: str
    further: tuple[int, ...] = ()
    weights: float = 0.0
    waiting: float = 0.0
    kernels: LayerKernels = NO_KERNELS

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of layers of all stacks."""
        return (self.layers, *self.further)

    def divides(self, cuts: int) -> bool:
        """True if every stack divides into `cuts` equal parts."""
        return all(n % cuts == 0 for n in self.counts)

    def padded(self, cuts: int) -> Stack:
        """The stacks with as many layers as a device with the most holds, on all devices."""
        share = max((n + -n % cuts) / n for n in self.counts)
        kernels = LayerKernels(self.kernels.forward * share, self.kernels.backward * share)
        return dataclasses.replace(
            self,
            layers=self.layers + -self.layers % cuts,
            forward=self.forward * share,
            backward=self.backward * share,
            parameters=self.parameters * share,
            residuals=self.residuals * share,
            weights=self.weights * share,
            waiting=self.waiting * share,
            kernels=kernels,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline with all numbers, and its closed form.

    Attributes:
      seconds: of the ticks and of the sums over data parallelism.
      nbytes: at the peak of a device; the state is tiled on all devices.
    """

    tactic: Pipeline
    seconds: float
    nbytes: float


def stack_of(module: Module) -> Stack | None:
    """The stacks of layers of a rolled program as one; None without a stack or a batch."""
    batch = batch_size(module)
    ops = module.body.ops
    pairs = [p for p in layer_scans(module.body) if p.backward is not None]
    if not pairs or not batch:
        return None
    rules = RuleTable()
    forward = [Layers(ops[p.forward.position]) for p in pairs]
    backward = [Layers(ops[p.backward.position]) for p in pairs if p.backward is not None]
    inside = {layers.op for layers in (*forward, *backward)}
    made = {x for layers in forward for x in layers.stacks}
    kept = {x for layers in backward for x in layers.stacked if isinstance(x, Value)} & made
    products = {
        str(op.results[0].type.dtype): op_flops(op, rules(op))
        for layers in forward
        for op in layers.region.ops
        if not op.regions and rules(op).contracts
    }
    weights, waiting = _deferred(backward, rules)
    shortest, *further = sorted(layers.count for layers in forward)
    return Stack(
        shortest,
        batch,
        sum(layers.count * total_flops(layers.region.ops, rules) for layers in forward),
        sum(layers.count * total_flops(layers.region.ops, rules) for layers in backward),
        total_flops((op for op in ops if op not in inside), rules),
        sum(x.type.nbytes for layers in forward for x in layers.stacked),
        sum(x.type.nbytes for x in kept),
        sum(x.type.nbytes for layers in forward for x in layers.finals),
        max(products, key=products.__getitem__, default="float32"),
        tuple(further),
        weights,
        waiting,
    )


def _deferred(backward: Sequence[Layers], rules: RuleTable) -> tuple[float, float]:
    """Operations of deferrable gradients of weights, and bytes waiting for the operations."""
    try:
        splits = [(layers.count, split_backward(layers)) for layers in backward]
    except NoPipeline:
        return 0.0, 0.0
    weights = sum(count * total_flops(s.weights.region.ops, rules) for count, s in splits)
    waiting = sum(count * x.type.nbytes for count, s in splits for x in s.kept)
    return weights, float(waiting)


def candidates(
    stack: Stack, tactic: Pipeline, mesh: MeshShape, machine: Machine, limit: float
) -> list[Candidate]:
    """Pipelines that a tactic leaves open, the best by closed form first, within `limit` first.

    Layers are padded if none divides them.

    Args:
      limit: bytes of a device.
    """
    tactics = list(_tactics(stack, tactic, mesh, machine, Stack.divides))
    tactics = tactics or list(_tactics(stack, tactic, mesh, machine, _fills))
    found = [_candidate(stack, t, mesh, machine, limit) for t in tactics]
    return sorted(found, key=lambda c: (c.nbytes > limit, c.seconds))


def _fills(stack: Stack, cuts: int) -> bool:
    """True if `cuts` parts of every stack are padded by a permitted number of layers."""
    return not any(too_empty(n, cuts) for n in stack.counts)


def _tactics(
    stack: Stack,
    tactic: Pipeline,
    mesh: MeshShape,
    machine: Machine,
    admits: Callable[[Stack, int], bool],
) -> Iterator[Pipeline]:
    """Every pipeline with divisors as numbers: chunks of the layers, microbatches of the batch.

    Args:
      admits: function from the layers and a number of parts to True for parts to choose from.
    """
    for axis in (tactic.axis,) if tactic.axis else mesh.user.names:
        stages = mesh.size(mesh.axes(axis))
        if stages < 2:
            continue
        groups = _groups(axis, mesh, machine)
        most = max(-(-n // stages) for n in stack.counts)
        for chunks in (tactic.chunks,) if tactic.chunks else range(1, most + 1):
            if not admits(stack, stages * chunks):
                continue
            for count in (tactic.microbatches,) if tactic.microbatches else _counts(stack.batch):
                if stack.batch % (count * groups) or (chunks > 1 and count % stages):
                    continue
                for split in _splits(stack, tactic):
                    yield dataclasses.replace(
                        tactic,
                        axis=axis,
                        microbatches=count,
                        chunks=chunks,
                        split_backward=split,
                    )


def _splits(stack: Stack, tactic: Pipeline) -> tuple[bool, ...]:
    """Values of `split_backward` to choose from."""
    if tactic.split_backward is None and tactic.microbatches is None:
        return (False, True) if stack.weights else (False,)
    return (bool(tactic.split_backward),)


def _counts(batch: int) -> Iterator[int]:
    return (n for n in range(2, batch + 1) if batch % n == 0)


def _groups(axis: str, mesh: MeshShape, machine: Machine) -> int:
    """Size of data parallelism: product of the axes between nodes other than the stages' axis."""
    return math.prod(
        mesh.user.sizes[mesh.user.names.index(name)]
        for name in mesh.user.names
        if name != axis and _is_slow(name, machine)
    )


def _is_slow(axis: str, machine: Machine) -> bool:
    return machine.axis_bandwidth(axis) < machine.link_bytes_per_s


def _candidate(
    stack: Stack, tactic: Pipeline, mesh: MeshShape, machine: Machine, limit: float
) -> Candidate:
    """Closed form of a pipeline with the fastest data parallelism within `limit`.

    Data parallelism takes the axes between nodes, and of the devices inside as many as examples of
    a microbatch are left for; the others share each example as tensor and sequence parallelism.
    """
    assert tactic.axis
    assert tactic.microbatches
    groups = _groups(tactic.axis, mesh, machine)
    inside = mesh.user.devices // mesh.size(mesh.axes(tactic.axis)) // groups
    examples = stack.batch // (tactic.microbatches * groups)
    found = [
        _with_groups(stack, tactic, mesh, machine, (groups, n))
        for n in range(1, inside + 1)
        if inside % n == 0 and examples % n == 0
    ]
    fitting = [c for c in found if c.nbytes <= limit]
    if fitting:
        return min(fitting, key=lambda c: c.seconds)
    return min(found, key=lambda c: c.nbytes)


def _with_groups(
    stack: Stack, tactic: Pipeline, mesh: MeshShape, machine: Machine, groups: tuple[int, int]
) -> Candidate:
    """Closed form of a pipeline.

    Args:
      groups: data parallelism between and inside of nodes.
    """
    assert tactic.axis
    assert tactic.microbatches
    assert tactic.chunks
    stages = mesh.size(mesh.axes(tactic.axis))
    stack = stack.padded(stages * tactic.chunks)
    devices = mesh.user.devices // stages
    shares = devices // math.prod(groups)  # devices of one example
    split = bool(tactic.split_backward)
    schedule = PipelineSchedule(stages, tactic.microbatches, tactic.chunks, tactic.schedule, split)
    rate = machine.matmul_flops_per_s(stack.dtype) * mesh.user.devices * tactic.microbatches
    parameters = stack.parameters / stages / shares
    send = stack.carry / tactic.microbatches / devices / machine.axis_bandwidth(tactic.axis)
    send += machine.axis_hop(tactic.axis)
    rows = stack.carry / (tactic.microbatches * math.prod(groups))
    link = link_inside(machine)
    shared = all_gather_seconds(rows, shares, link) * stack.layers / stages if shares > 1 else 0.0
    waiting = stack.waiting / tactic.microbatches / mesh.user.devices if split else 0.0
    weights = stack.weights / rate if split else 0.0
    forward = max(stack.forward / rate, stack.kernels.forward / tactic.microbatches)
    backward = max(stack.backward / rate, stack.kernels.backward / tactic.microbatches)
    stage = StageSeconds(
        forward + FORWARD_COLLECTIVES * shared,
        backward - weights + FORWARD_COLLECTIVES * shared,
        weights + MOVED * waiting / machine.attained_hbm_bytes_per_s,
        accumulate=ACCUMULATED * parameters / machine.attained_hbm_bytes_per_s,
        head=stack.around / rate,
        send_forward=send,
        send_backward=send,
    )
    seconds = pipeline_seconds(schedule, stage)
    # Some ticks without an entry, head or exit compute them, too.
    seconds += (ticks_with_ends(schedule) - tactic.microbatches) * stage.head
    if groups[1] > 1:
        seconds += all_reduce_seconds(parameters, groups[1], link)
    slow = [name for name in mesh.user.names if name != tactic.axis and _is_slow(name, machine)]
    if slow:
        seconds += 2 * parameters / groups[1] / min(map(machine.axis_bandwidth, slow))
    kept = stack.residuals / tactic.microbatches / mesh.user.devices
    working = kept / (stack.layers / stages)
    state = StageBytes(2 * parameters, kept, working=working, waiting=waiting)
    return Candidate(tactic, seconds, pipeline_bytes(schedule, state))


def planned_candidates(
    module: Module, tactic: Pipeline, mesh: MeshShape, machine: Machine, limit: float
) -> list[Candidate]:
    """The candidates to plan in full: the best, and the best of another axis or number of chunks.

    Their backward passes are whole. The best with a split backward pass is planned as well if it
    is the best of all.

    Args:
      module: the traced program with layers as scans.
      limit: bytes of a device.

    Raises:
      ValueError: no numbers divide the layers and the batch, or there are no layers.
    """
    stack = stack_of(module)
    if stack is None:
        raise ValueError(
            "Pipeline: the step has no stack of layers and no batch to choose numbers for; give"
            " axis= and microbatches= for the reason, or leave the pipeline out"
        )
    kernels = layer_kernels(module, machine, mesh.user.devices)
    stack = dataclasses.replace(stack, kernels=kernels)
    found = candidates(stack, tactic, mesh, machine, limit)
    if not found:
        given = f"axis {tactic.axis!r}" if tactic.axis else f"each axis of mesh<{mesh.user}>"
        raise ValueError(
            f"Pipeline: {' and '.join(map(str, stack.counts))} layers and a batch of {stack.batch}"
            f" do not divide into stages on {given}, chunks and microbatches:"
            f" {named_batch(module)}; use a number of layers that is a multiple of the axis, or a"
            " larger batch"
        )
    chosen: list[Candidate] = []
    split = tactic.split_backward
    for candidate in (c for c in found if bool(split) == c.tactic.split_backward):
        alike = {(c.tactic.axis, c.tactic.chunks) for c in chosen}
        if (candidate.tactic.axis, candidate.tactic.chunks) not in alike:
            chosen.append(candidate)
        if len(chosen) == MOST_PLANNED:
            break
    if found[0].tactic.split_backward and split is None:
        chosen.append(found[0])
    return chosen


def offered_options(options: Options, module: Module) -> list[tuple[Options, float | None]]:
    """Options to plan with: each pipeline that competes, and none if all may be left out.

    Args:
      module: the traced program with layers as scans.

    Returns:
      (options, seconds by closed form) pairs; None for given numbers, for one chunk of layers
      to be padded, and without a pipeline.

    Raises:
      ValueError: no numbers divide for a pipeline that may not be left out.
    """
    limit = min(options.memory_limit, options.machine.hbm_bytes)
    free = options.leaves_pipelines_out
    found: list[tuple[Options, float | None]] = []
    for tactic in options.competing:
        if not tactic.open:
            found.append((options.with_pipelines(tactic), None))
            continue
        try:
            best = planned_candidates(module, tactic, options.shape, options.machine, limit)
        except ValueError as error:
            if tactic.placed:  # layers may be padded; planning names what else is in the way
                whole = dataclasses.replace(tactic, chunks=1)
                found.append((options.with_pipelines(whole), None))
                continue
            if not free:
                raise
            warnings.warn(f"planned without an optional pipeline: {error}", stacklevel=2)
            continue
        found += [(options.with_pipelines(c.tactic), c.seconds) for c in best]
    return [*found, (options.with_pipelines(), None)] if free else found
