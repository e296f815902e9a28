"""Microbatches: a step over a batch as a loop over parts of the batch, with equal results.

The batch is tiled on a time axis, the rules of the ops propagate the tiling, and the program is
cut at the loop over parts (`lowering/time/`). Sums over the batch are accumulated, random bits are
the whole batch's. A step whose parts meet before the end of the loop, such as one with batch
normalisation, is refused with the op and its line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Operand, Value
from partir_search.ir.interpreter import interpret, run_whole
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.printer import print_partition
from partir_search.lowering.localize import localize
from partir_search.lowering.time.cut import PartsMeet, TimeCut, cut_in_time
from partir_search.lowering.time.kinds import Meeting
from partir_search.lowering.time.loop import looped_in_time
from partir_search.messages.renamed import renamed_option
from partir_search.messages.validators import whole_number
from partir_search.messages.wording import multiples, shown
from partir_search.passes.joined_totals import with_joined_totals
from partir_search.passes.late_casts import with_late_casts
from partir_search.planning.trace import Traced, read_call, split_call
from partir_search.propagation.data_arguments import data_arguments, is_key
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.propagation.trained_arguments import trained_arguments
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED

T = TypeVar("T", bound=Operand)

AXIS = "mb"  # name of the time axis


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class InTime:
    """A program as a loop over microbatches.

    Attributes:
      module: the program with the loop, equal to the original.
      partition: the original on the time axis: a tile is one microbatch, a sum is accumulated.
      cut: the original, before, in and after the loop.
    """

    module: Module
    partition: Partition
    cut: TimeCut


def in_time(module: Module, count: int) -> InTime:
    """A module as a loop over microbatches.

    Args:
      count: number of microbatches.

    Raises:
      ValueError: `count` does not divide the batch, or an op needs the whole batch; the message
        names the op, its line and a remedy.
    """
    try:
        return _cut(module, count)
    except PartsMeet as error:
        late, refusal = with_late_casts(module), _refusal(module, count, error.meeting)
    if late is not module:
        with contextlib.suppress(PartsMeet):
            return _cut(late, count)
    raise ValueError(refusal)


def _cut(module: Module, count: int) -> InTime:
    """A module as a loop over microbatches.

    Raises:
      PartsMeet: an op needs the whole batch.
    """
    batch = _batch_arguments(module, count)
    graph = Graph(module, RuleTable(), contract=True)
    state = State(graph, MeshShape((AXIS,), (count,), time_axes=1))
    for value in batch:
        cls = graph.class_of[value.id]
        if state.may_tile(cls, 0, (0,)):
            state.tile(cls, 0, (0,))
    partition = state.partition()
    cut = cut_in_time(localize(partition), 0, _data_alone(module, partition))
    looped = looped_in_time(cut, (*RULES, *UNRULED))
    return InTime(with_joined_totals(looped), partition, cut)


def with_microbatches(traced: Traced, count: int) -> Traced:
    """A traced call as a loop over microbatches; the pass prints the call on the time axis."""
    found: list[InTime] = []

    def rewrite(module: Module) -> Module:
        found.append(in_time(module, count))
        return found[0].module

    return traced.run(
        "microbatches", rewrite, lambda: print_partition(found[0].partition, full=True)
    )


def microbatched(
    fun: Callable[..., Any], microbatches: int | None = None, *, parts: int | None = None
) -> Callable[..., Any]:
    """Function equal to `fun`, computed over equal microbatches in sequence.

    Arguments returned with equal types (the train state), keys and scalars are passed to every
    microbatch unchanged; the leading dim of the data is the batch. Random numbers, masked means and
    results with a row per example are equal to the results of `fun`.

    Args:
      microbatches: number of microbatches.
      parts: deprecated name of `microbatches`.

    Raises:
      ValueError: `microbatches` does not divide the batch, or an op needs the whole batch.
    """
    if not callable(fun):
        raise TypeError(f"microbatched takes a train step, not {shown(fun)}")
    given = renamed_option("parts", parts, "microbatches", microbatches, None)
    count = whole_number("microbatched: microbatches", given, 1)
    if count == 1:
        return fun

    @functools.wraps(fun)
    def accumulated(*args: Any, **kwargs: Any) -> Any:
        call = split_call(fun, args, kwargs, (), ())
        traced = read_call(jax.jit(fun), call, args, kwargs, getattr(fun, "__name__", "step"))
        module, table = in_time(traced.module, count).module, RuleTable()
        rules = [table(op) for op in module.ops]
        leaves = map(jnp.asarray, jax.tree.leaves((call.args, call.kwargs)))
        results = interpret(
            module, rules, list(leaves), lambda op, ins: run_whole(rules[op.id], op, ins)
        )
        return jax.tree.unflatten(traced.out_tree, results)

    return accumulated


def batch_size(module: Module) -> int:
    """Length of the batch of a step; 0 if no argument but the train state has one."""
    try:
        return _batch_arguments(module, 1)[0].type.shape[0]
    except ValueError:
        return 0


def _batch_arguments(module: Module, count: int) -> list[Value]:
    """Arguments whose leading dim is the batch: data as long as the first array of data."""
    data = [(path, v) for path, v in _data(module) if v.type.shape and not is_key(v)]
    if not data:
        raise ValueError(f"microbatches={count}: no argument but the train state has a batch")
    path, first = _first_array(data)
    batch = first.type.shape[0]
    if not batch or batch % count:
        raise ValueError(
            f"microbatches={count}: {named_argument(module, path, first)}: its leading dim, the"
            f" batch of {batch}, does not divide by {count}; {multiples(batch, count)} would"
            f" divide, or use {_divisors(batch)}"
        )
    return [v for _, v in data if v.type.shape[0] == batch]


def named_batch(module: Module) -> str:
    """Path, shape and first reader of the argument with the batch, for messages."""
    data = [(path, v) for path, v in _data(module) if v.type.shape and not is_key(v)]
    return named_argument(module, *_first_array(data))


def named_argument(module: Module, path: str, value: Value) -> str:
    """Path and shape of an argument, with the source line of the first op that reads the value."""
    sources = (op.source for op in def_use(module).users[value.id] if op.source)
    where = next((f", read at {source}," for source in sources), "")
    return f"{path}{where} has shape {value.type.shape}"


def _first_array(data: Sequence[tuple[str, Value]]) -> tuple[str, Value]:
    """The first leaf with two dims or more, or else the first."""
    return next(((p, v) for p, v in data if len(v.type.shape) > 1), data[0])


def _data(module: Module) -> list[tuple[str, Value]]:
    """(path, leaf) of the arguments without the train state.

    State is tied to results, or trained, or an entry of the results has its types. Parameters that
    are not trained are no data.
    """
    places = data_arguments(module) if module.ties else range(len(module.body.args))
    trained = trained_arguments(module)
    groups = _entries(
        [(module.arg_paths[i], module.body.args[i]) for i in places if i not in trained]
    )
    returned = _entries(list(zip(module.result_paths, module.body.results, strict=True)))
    types = [_types(entry) for entry in returned]
    whole = [kind for entry in types for kind in entry]
    return [leaf for group in groups if _types(group) not in (*types, whole) for leaf in group]


def _entries(leaves: Sequence[tuple[str, T]]) -> list[list[tuple[str, T]]]:
    """Leaves grouped by the first component of their paths."""
    found: dict[str, list[tuple[str, T]]] = {}
    for path, leaf in leaves:
        found.setdefault(path.split("/")[0], []).append((path, leaf))
    return list(found.values())


def _types(leaves: Sequence[tuple[str, Operand]]) -> list[tuple[Any, ...]]:
    return [(x.type.shape, x.type.dtype) for _, x in leaves]


def _divisors(batch: int) -> str:
    """Up to six divisors of the batch, as a hint to the user."""
    found = [n for n in range(2, min(batch, 64) + 1) if batch % n == 0][:6]
    return f"microbatches of {', '.join(map(str, found))}" if found else "microbatches=1"


def _data_alone(module: Module, partition: Partition) -> frozenset[int]:
    """Ids of values computed from data, keys, scalars and constants alone."""
    tied = {a for a, _ in module.ties}
    found = set(module.constants)
    for i, v in enumerate(module.body.args):
        plain = i not in tied and (not v.type.shape or is_key(v))
        if plain or partition.tiles[0][v.id] >= 0:
            found.add(v.id)
    for op in module.body.ops:
        if not op.effect and all(v.id in found for _, v in op.inputs()):
            found.update(r.id for r in op.results)
    return frozenset(found)


def _refusal(module: Module, count: int, meeting: Meeting) -> str:
    """Message for a place where microbatches meet."""
    maker = def_use(module).makers[meeting.source.id]
    made = f"%{meeting.source.name}"
    if maker is not None:
        made += f", made by {maker.prim}" + (f" at {maker.source}" if maker.source else "")
    reader = "a result of the program"
    if meeting.op is not None:
        reader = meeting.op.prim + (f" at {meeting.op.source}" if meeting.op.source else "")
    return (
        f"microbatches={count}: {reader} needs all microbatches at once: {made}. Normalise over"
        " features instead of the batch, keep examples apart, or use microbatches=1"
    )
