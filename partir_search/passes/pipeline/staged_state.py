"""Train state by stage: arguments with the elements of each layer in the layer's stage.

Between steps, tile s of the arguments of all layers holds whole layers of stage s, so a step needs
no all_to_all between tiles of single layers and stages (`ir/staged_state.py`). The program outside
of the loop stays as it is: the optimizer updates exchanged elements by the same elementwise ops,
and totals over all layers, a global norm, are the same sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.staged_state import LayerOrder, StagedArguments, StagedState
from partir_search.passes.pipeline.joined import Joined
from partir_search.passes.pipeline.layer_kinds import LayerKind, kinds_of
from partir_search.passes.pipeline.layer_sums import refuse_open_sums
from partir_search.passes.pipeline.loop_parts import LoopParts, NoPipeline, named


def staged_state(
    module: Module, loop: Op, stacks: Sequence[LoopParts], schedule: PipelineSchedule
) -> tuple[StagedState, dict[Value, LayerOrder]]:
    """Arguments by stage, and the order of stacks by argument of the loop's body.

    Args:
      loop: the loop over microbatches, with the operands and results of the module's.
      stacks: the loop's stacks of layers.

    Raises:
      NoPipeline: no argument of the layers may be kept by stage; the message says why.
    """
    reads, makes = dict(_reads(loop, stacks)), dict(_makes(loop, stacks))
    joined = Joined(module, loop, reads, makes)
    operands = dict(loop.inputs())
    ends = [_End(operands[i], *end) for i, end in reads.items() if i in operands]
    ends += [_End(loop.results[i], *end) for i, end in makes.items()]
    ends = [end for end in ends if joined.is_joined(end.stack)]
    kinds = kinds_of(module, joined, [(end.stack, end.count) for end in ends])
    kinds = [kind for kind in kinds if kind.layers or schedule.chunks > 1]
    dims = {kind: _dim(kind, schedule) for kind in kinds}
    _refuse_first_totals(kinds, joined, loop, makes)
    refuse_open_sums(module, joined, kinds)
    orders = {
        kind: LayerOrder(schedule.stages, schedule.chunks, dims[kind])
        for kind in kinds
        if not kind.why
    }
    groups = [StagedArguments(tuple(n), orders[k]) for k in orders for n in k.arguments]
    edges = list(_edges(module, joined, kinds))
    if edges and not groups:
        raise NoPipeline(
            f"staged_state=True: no argument can be kept by stage; {edges[0]}. Update layers by"
            " elementwise ops and by totals of all layers, or leave staged_state out"
        )
    found = {}
    for end in ends:
        for kind, order in orders.items():
            if joined.of(end.stack) in kind.classes:
                found[end.argument] = order
    return StagedState(tuple(groups), tuple(edges)), found


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """A stack of layers, read or made by the loop.

    Attributes:
      stack: outside of the loop.
      argument: of the loop's body.
      count: number of layers.
    """

    stack: Value
    argument: Value
    count: int


def _reads(loop: Op, stacks: Sequence[LoopParts]) -> Iterator[tuple[int, tuple[Value, int]]]:
    """(argument, layers) by position of the operands read by layers alone, each a row."""
    (body,) = loop.regions
    readers: dict[Value, list[tuple[Op, int]]] = {}
    for op in body.ops:
        for i, x in op.inputs():
            readers.setdefault(x, []).append((op, i))
    for i, x in enumerate(body.args[: int(loop.params["num_consts"])]):
        for parts in stacks:
            first = {
                id(n.op): len(n.op.operands) - len(n.stacked)
                for n in (parts.forward, parts.backward)
            }
            found = readers.get(x, ())
            rows = all(id(op) in first and at >= first[id(op)] for op, at in found)
            if found and rows and x not in body.results:
                yield i, (x, parts.forward.count)


def _makes(loop: Op, stacks: Sequence[LoopParts]) -> Iterator[tuple[int, tuple[Value, int]]]:
    """(argument, layers) by position of the results with a row for each layer's gradient."""
    (body,) = loop.regions
    for parts in stacks:
        for i, total in enumerate(parts.totals):
            readers = [op for op in body.ops if total.argument in op.operands]
            if total.stack is not None and not total.summed and len(readers) == 1:
                yield i, (total.argument, parts.backward.count)


def _refuse_first_totals(
    kinds: Sequence[LayerKind], joined: Joined, loop: Op, makes: Mapping[int, object]
) -> None:
    """Refuses kinds with gradients added to more than zeros, or to one number."""
    first = int(loop.params["num_consts"])
    for i in makes:
        if joined.is_joined(loop.operands[first + i]):
            for kind in kinds:
                if joined.of(loop.results[i]) in kind.classes:
                    kind.why = kind.why or f"{named(loop)} adds gradients to an array"


def _dim(kind: LayerKind, schedule: PipelineSchedule) -> int | None:
    """Dim of one layer's array that holds the stages; None for rows of one array.

    The largest dim but the last: rows of the last move in short pieces. Sets `why` if none divides.
    """
    stages, chunks = schedule.stages, schedule.chunks
    of_chunks = f" of {chunks} chunks" if chunks > 1 else ""
    if kind.count % (stages * chunks):
        text = f"{stages} stages{of_chunks} do not divide the {kind.count} layers"
        kind.why = kind.why or text
    if not kind.layers:
        return None
    shape = kind.layers[0].type.shape
    dims = [d for d, n in enumerate(shape) if n and n % stages == 0]
    if not dims:
        kind.why = kind.why or f"{stages} stages divide no dim of {list(shape)}"
        return None
    return max(dims, key=lambda d: (d < len(shape) - 1, shape[d]))


def _edges(module: Module, joined: Joined, kinds: Sequence[LayerKind]) -> Iterator[str]:
    """An argument and the reason, of each kind in the layers' order."""
    stacked = {x for op in joined.stacks for _, x in op.inputs()}
    for kind in kinds:
        args = zip(module.arg_paths, module.body.args, strict=True)
        own = [
            (x not in stacked, path)
            for path, x in args
            if joined.is_joined(x) and joined.of(x) in kind.classes
        ]
        mine = [path for _, path in sorted(own)]  # a parameter before its moments
        if not mine and kind.stack in _of_state(module):
            mine = [f"%{kind.stack.name}"]
        if kind.why and mine:
            yield f"{mine[0]}: {kind.why}"


def _of_state(module: Module) -> set[Value]:
    """Values computed from the train state."""
    found = {module.body.args[a] for a, _ in module.ties}
    for op in module.body.ops:
        if any(x in found for _, x in op.inputs()):
            found.update(op.results)
    return found
