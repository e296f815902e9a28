"""Parts of a loop over microbatches with one stack of layers: entry, layers, head and exit.

The body of the loop is one microbatch of a train step. A forward scan runs over the layers, and a
backward scan over the same layers in reverse reads the residuals stacked by the forward scan. Ops
before the layers are the entry (embedding, masks), ops between the scans the head (loss), ops after
the backward scan the exit (gradient of the embedding).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.roll import layer_scans
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import role_of

Sums = Mapping[Value, tuple[Value, tuple[Operand, ...]]]
"""By sum, the carry of the loop over microbatches and the values added so far, in order."""

OF_ROWS = (Role.CAST, Role.SUM)  # ops between rows of layers and a total


class NoPipeline(ValueError):
    """A program without layers that can run as a pipeline; the message names op and line."""


class NoLayers(NoPipeline):
    """A program without a stack of layers."""


class Part(enum.Enum):
    """Place of an op in the body of the loop."""

    ENTRY = "entry"
    HEAD = "head"
    EXIT = "exit"


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """A step from a total before a microbatch to the total after it.

    Attributes:
      x: value added to the total, before a cast; the total after the microbatch if it is no sum.
      adds: `x` is added.
      part: place of `x`, HEAD or EXIT.
    """

    x: Operand
    adds: bool
    part: Part


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """A carry of the loop over microbatches.

    Attributes:
      argument: the value before a microbatch, an argument of the body.
      new: the value after it.
      terms: the values added to `argument`, in order; one term without an addition if `new` is no
        sum.
      stack: position of the only value added among the stacks of the backward scan; None for
        further values.
      summed: the value added is the sum of the rows of the stack.
    """

    argument: Value
    new: Operand
    terms: tuple[Term, ...]
    stack: int | None
    summed: bool = False

    def terms_in(self, part: Part) -> list[Term]:
        """Terms of a part, for values without a stack."""
        return [t for t in self.terms if self.stack is None and t.part is part]


@dataclasses.dataclass(frozen=True, slots=True)
class LoopParts:
    """A loop over microbatches and the parts of its body.

    Attributes:
      loop: the scan over microbatches.
      forward / backward: the scans over layers.
      part_of: place by id of a value made in the body outside of the layers.
      varying: ids of values of the body with a difference between microbatches.
      residuals: position among the forward scan's stacks by position among the backward scan's
        stacked operands.
      totals: carries of the loop.
    """

    loop: Op
    forward: Layers
    backward: Layers
    part_of: Mapping[int, Part]
    varying: frozenset[int]
    residuals: Mapping[int, int]
    totals: tuple[Total, ...]

    @property
    def body(self) -> Region:
        return self.loop.regions[0]

    @property
    def microbatches(self) -> int:
        return int(self.loop.params["length"])

    @property
    def consts(self) -> tuple[Value, ...]:
        """Arguments of the body equal in every microbatch."""
        return self.body.args[: int(self.loop.params["num_consts"])]

    @property
    def data(self) -> tuple[Value, ...]:
        """Arguments of the body with one microbatch of data."""
        return self.body.args[len(self.consts) + len(self.totals) :]

    @property
    def rows(self) -> tuple[Operand, ...]:
        """Results of the body stacked by the loop, a row for each microbatch."""
        return self.body.results[len(self.totals) :]

    @property
    def summed(self) -> tuple[int, ...]:
        """Positions of the backward stacks that totals sum over the layers."""
        return tuple([t.stack for t in self.totals if t.summed and t.stack is not None])

    def place(self, x: Operand) -> Part:
        """Place of the maker of a value; arguments are known in the entry."""
        return self.part_of.get(x.id, Part.ENTRY) if isinstance(x, Value) else Part.ENTRY

    def varies(self, x: Operand) -> bool:
        """True if a value of the body differs between microbatches."""
        return isinstance(x, Value) and x.id in self.varying


def microbatch_loop(module: Module) -> tuple[int, Op]:
    """Position and op of the loop over microbatches.

    Raises:
      NoPipeline: the program has no loop over microbatches.
    """
    for at, op in enumerate(module.body.ops):
        if role_of(op) is Role.SCAN and op.params.get(ACCUMULATES):
            return at, op
    raise NoPipeline("no op of the program runs on one microbatch alone")


def loop_parts(loop: Op) -> LoopParts:
    """Parts of a loop over microbatches.

    Raises:
      NoPipeline: the body has no stack of layers, or layers read values unknown to a stage.
    """
    body = loop.regions[0]
    forward, backward = layer_pairs(body)[0]
    first = int(loop.params["num_consts"])
    arguments = body.args[first : first + int(loop.params["num_carry"])]
    sums = sums_of(body, arguments)
    part_of = _parts(body, forward, backward, sums)
    varying = varying_of(body, {v.id for v in body.args[first:]})
    totals = totals_of(body, arguments, part_of, backward, sums)
    residuals = residuals_of(forward, backward)
    parts = LoopParts(loop, forward, backward, part_of, varying, residuals, totals)
    _check_operands(parts)
    _check_readers(parts)
    return parts


def residuals_of(forward: Layers, backward: Layers) -> dict[int, int]:
    """Position among the forward stacks by position among the backward stacked operands."""
    at = {r.id: j for j, r in enumerate(forward.stacks)}
    stacked = enumerate(backward.stacked)
    return {i: at[x.id] for i, x in stacked if isinstance(x, Value) and x.id in at}


def layer_pairs(body: Region) -> list[tuple[Layers, Layers]]:
    """The forward and the backward scan of each stack of layers.

    Raises:
      NoLayers: no pair.
    """
    found = [
        (Layers(body.ops[pair.forward.position]), Layers(body.ops[pair.backward.position]))
        for pair in layer_scans(body)
        if pair.backward is not None and not pair.forward.reverse
    ]
    if not found:
        raise NoLayers(
            "the step has no stack of layers: no scan over layers with a scan in reverse as its"
            " gradient, and no equal layers written out that make one"
        )
    return found


def sums_of(body: Region, arguments: Sequence[Value]) -> Sums:
    """Sums of a carry and of values added so far; no further op of a microbatch reads a sum."""
    found: dict[Value, tuple[Value, tuple[Operand, ...]]] = {a: (a, ()) for a in arguments}
    for op in body.ops:
        if role_of(op) is not Role.ADDITION:
            continue
        begun = [v for _, v in op.inputs() if v in found]
        if len(begun) == 1 and len(op.operands) == 2:
            argument, added = found[begun[0]]
            further = next(x for x in op.operands if x is not begun[0])
            found[op.results[0]] = argument, (*added, further)
    return found


def _parts(body: Region, forward: Layers, backward: Layers, sums: Sums) -> dict[int, Part]:
    """Place by id of a result of the body's ops, without sums of carries.

    Raises:
      NoPipeline: an op has side effects.
    """
    part_of = dict.fromkeys((r.id for r in forward.op.results), Part.HEAD)
    part_of.update(dict.fromkeys((r.id for r in backward.op.results), Part.EXIT))
    order = (Part.ENTRY, Part.HEAD, Part.EXIT)
    for op in body.ops:
        if op.effect:
            raise NoPipeline(f"{named(op)} has side effects, once for each microbatch")
        if op is forward.op or op is backward.op or (op.results and op.results[0] in sums):
            continue
        read = [part_of.get(v.id, Part.ENTRY) for _, v in op.inputs()]
        part = max(read, key=order.index, default=Part.ENTRY)
        part_of.update(dict.fromkeys((r.id for r in op.results), part))
    return part_of


def varying_of(body: Region, first: set[int]) -> frozenset[int]:
    """Ids in `first`, and ids of values computed from values in `first`."""
    found = set(first)
    for op in body.ops:
        if any(v.id in found for _, v in op.inputs()):
            found.update(r.id for r in op.results)
    return frozenset(found)


def totals_of(
    body: Region,
    arguments: Sequence[Value],
    part_of: Mapping[int, Part],
    backward: Layers,
    sums: Sums,
) -> tuple[Total, ...]:
    """Carries of a loop over microbatches."""
    makers = {r: op for op in body.ops for r in op.results}

    def total(argument: Value, new: Operand) -> Total:
        first, added = sums.get(new, (None, ())) if isinstance(new, Value) else (None, ())
        if first is not argument or not added:
            return Total(argument, new, (Term(new, False, _part_of(new, part_of)),), None)
        narrow = [_before_cast(x, makers) for x in added]
        terms = tuple([Term(x, True, _part_of(x, part_of)) for x in narrow])
        if len(narrow) > 1:
            return Total(argument, new, terms, None)
        rows = _rows_of_sum(narrow[0], makers)
        found = (j for j, r in enumerate(backward.stacks) if r is narrow[0] or r is rows)
        stack = next(found, None)
        return Total(argument, new, terms, stack, stack is not None and rows is not None)

    return tuple(map(total, arguments, body.results))


def _part_of(x: Operand, part_of: Mapping[int, Part]) -> Part:
    place = part_of.get(x.id, Part.ENTRY) if isinstance(x, Value) else Part.ENTRY
    return Part.EXIT if place is Part.EXIT else Part.HEAD


def _before_cast(x: Operand, makers: Mapping[Value, Op]) -> Operand:
    cast = makers.get(x) if isinstance(x, Value) else None
    return cast.operands[0] if cast is not None and role_of(cast) is Role.CAST else x


def _rows_of_sum(x: Operand, makers: Mapping[Value, Op]) -> Operand | None:
    """Rows with `x` as their sum; None if `x` is no sum over the first dim."""
    maker = makers.get(x) if isinstance(x, Value) else None
    if maker is None or role_of(maker) is not Role.SUM or tuple(maker.params["axes"]) != (0,):
        return None
    return maker.operands[0]


def _check_operands(parts: LoopParts) -> None:
    """Raises NoPipeline for operands of layers unknown to a stage in a tick."""
    for layers in (parts.forward, parts.backward):
        for i, x in enumerate(layers.stacked):
            if layers is parts.backward and i in parts.residuals:
                continue
            if parts.varies(x) or parts.place(x) is not Part.ENTRY:
                raise NoPipeline(
                    f"the layers at {named(layers.op)} read %{_name(x)}, which is computed for all"
                    " layers at once from each microbatch; compute it inside of the layer"
                )
        for x in layers.consts:
            if parts.place(x) is not Part.ENTRY:
                raise NoPipeline(
                    f"every layer at {named(layers.op)} reads %{_name(x)}, which is known after"
                    " the last layer"
                )


def _check_readers(parts: LoopParts) -> None:
    """Raises NoPipeline for values read outside of the tick and stage with the value."""
    stacks = {r.id for r in (*parts.forward.stacks, *parts.backward.stacks)}
    added = {t.new.id for t in parts.totals if t.stack is not None and isinstance(t.new, Value)}
    for op in parts.body.ops:
        if op is parts.backward.op:
            continue
        made = {r.id for r in op.results}
        for _, v in op.inputs():
            if v.id in stacks and role_of(op) in OF_ROWS:
                stacks |= made
            elif v.id in stacks and not made & added:
                raise NoPipeline(f"{named(op)} reads %{v.name}, a row for each layer")
            if parts.place(v) is Part.HEAD and parts.place(op.results[0]) is Part.EXIT:
                raise NoPipeline(
                    f"{named(op)} reads %{v.name} of the head after the backward pass of all layers"
                )
    for x in parts.rows:
        if isinstance(x, Value) and x.id in stacks:
            raise NoPipeline(f"%{x.name}, a row for each layer of each microbatch, is returned")


def too_empty(count: int, cuts: int) -> bool:
    """True if over a third of the places of layers in equal parts would be empty.

    Args:
      count: number of layers.
      cuts: number of parts, of as many places as the layers need.
    """
    return 3 * (-count % cuts) > count + -count % cuts


def _name(x: Operand) -> str:
    return x.name if isinstance(x, Value) else str(x.number)


def named(op: Op) -> str:
    """Primitive and source line of an op, for messages."""
    return op.prim + (f" at {op.source}" if op.source else "")
