"""Parts of a loop over microbatches with several stacks of layers, as an encoder and a decoder.

The layers run in turns: F of each stack, in order, then B of each in reverse. Segment j of the
other ops lies before run j; the last one follows all runs. A value of a segment after the first,
read later than in its segment, travels with its microbatch from stage to stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import (
    OF_ROWS,
    LoopParts,
    NoPipeline,
    Part,
    Sums,
    Term,
    named,
    residuals_of,
    sums_of,
    totals_of,
    varying_of,
)
from partir_search.passes.pipeline.travelling import travelling
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, slots=True)
class ChainParts:
    """A loop over microbatches with several stacks of layers.

    Attributes:
      stacks: the parts with each stack as the only one.
      runs: the layers in order of their turns: (stack, layers).
      segment_of: segment by id of a value made after the first.
      travelling: by run, the values that pass from stage to stage beside the carry.
      adders: by position of a carry of the loop, the stack with its gradient; None without layers.
    """

    stacks: tuple[LoopParts, ...]
    runs: tuple[tuple[int, Layers], ...]
    segment_of: Mapping[int, int]
    travelling: tuple[tuple[Value, ...], ...]
    adders: tuple[int | None, ...]

    @property
    def last(self) -> int:
        """The last segment, after all runs."""
        return len(self.runs)

    def segment(self, x: Operand) -> int:
        """Segment of the maker of a value; arguments are known in the first."""
        return self.segment_of.get(x.id, 0) if isinstance(x, Value) else 0

    def terms_in(self, segment: int) -> list[tuple[int, Term]]:
        """Positions of the loop's carries changed in a segment, and terms; none of layers."""
        return [
            (i, term)
            for i, (k, total) in enumerate(zip(self.adders, self.stacks[0].totals, strict=True))
            for term in total.terms
            if k is None and self.segment(term.x) == segment
        ]

    def rows_in(self, segment: int) -> list[int]:
        """Positions of the loop's rows by microbatch that are known in a segment."""
        rows = enumerate(self.stacks[0].rows)
        return [i for i, x in rows if self.segment(x) == segment]


def chain_parts(loop: Op, pairs: Sequence[tuple[Layers, Layers]]) -> ChainParts:
    """Parts of a loop over microbatches.

    Args:
      pairs: forward and backward layers of each stack.

    Raises:
      NoPipeline: the stacks do not nest, or a stage cannot know what its layers read.
    """
    body = loop.regions[0]
    at = {id(op): i for i, op in enumerate(body.ops)}
    pairs = sorted(pairs, key=lambda pair: at[id(pair[0].op)])
    backward = [at[id(b.op)] for _, b in pairs]
    if backward != sorted(backward, reverse=True) or at[id(pairs[-1][0].op)] > backward[-1]:
        raise NoPipeline(
            f"the backward passes of the {len(pairs)} stacks of layers, {named(pairs[0][0].op)} and"
            f" {named(pairs[1][0].op)}, are not in reverse order"
        )
    count = len(pairs)
    runs = tuple(
        [(k, pairs[k][0]) for k in range(count)]
        + [(k, pairs[k][1]) for k in reversed(range(count))]
    )
    first = int(loop.params["num_consts"])
    arguments = body.args[first : first + int(loop.params["num_carry"])]
    sums = sums_of(body, arguments)
    segment_of = _segments(body, runs, sums)
    part_of = {v: Part.HEAD if segment <= count else Part.EXIT for v, segment in segment_of.items()}
    varying = varying_of(body, {v.id for v in body.args[first:]})
    stacks = list[LoopParts]()
    adders: list[int | None] = [None] * len(arguments)
    for k, (forward, back) in enumerate(pairs):
        totals = totals_of(body, arguments, part_of, back, sums)
        for i, total in enumerate(totals):
            if total.stack is not None:
                adders[i] = k
        residuals = residuals_of(forward, back)
        stacks.append(LoopParts(loop, forward, back, part_of, varying, residuals, totals))
    found = ChainParts(
        tuple(stacks), runs, segment_of, travelling(body, runs, segment_of), tuple(adders)
    )
    _check(found)
    return found


def _segments(body: Region, runs: Sequence[tuple[int, Layers]], sums: Sums) -> dict[int, int]:
    """Segment by id of each value made after the first run began, without sums of carries."""
    run_of = {id(layers.op): j for j, (_, layers) in enumerate(runs)}
    found: dict[int, int] = {}
    for op in body.ops:
        if op.effect:
            raise NoPipeline(f"{named(op)} has side effects, once for each microbatch")
        read = max((found.get(v.id, 0) for _, v in op.inputs()), default=0)
        if id(op) in run_of:
            if read > run_of[id(op)]:
                raise NoPipeline(f"the layers at {named(op)} read results of later layers")
            read = run_of[id(op)] + 1
        if read and not any(r in sums for r in op.results):
            found.update(dict.fromkeys((r.id for r in op.results), read))
    return found


def _check(parts: ChainParts) -> None:
    """Raises NoPipeline for operands unknown to a stage, and for readers of all layers."""
    for run, (k, layers) in enumerate(parts.runs):
        stack = parts.stacks[k]
        for i, x in enumerate(layers.stacked):
            if run >= len(parts.stacks) and i in stack.residuals:
                continue
            if stack.varies(x) or parts.segment(x):
                raise NoPipeline(
                    f"the layers at {named(layers.op)} read rows of all layers at once, computed"
                    " from each microbatch; compute each inside of the layer"
                )
    stacks = {r.id for _, layers in parts.runs for r in layers.stacks}
    added = {
        t.new.id
        for stack in parts.stacks
        for t in stack.totals
        if t.stack is not None and isinstance(t.new, Value)
    }
    backward = {id(stack.backward.op) for stack in parts.stacks}
    for op in parts.stacks[0].body.ops:
        if id(op) in backward:
            continue
        made = {r.id for r in op.results}
        for _, v in op.inputs():
            if v.id in stacks and role_of(op) in OF_ROWS:
                stacks |= made
            elif v.id in stacks and not made & added:
                raise NoPipeline(f"{named(op)} reads %{v.name}, a row for each layer")
    for x in parts.stacks[0].rows:
        if isinstance(x, Value) and x.id in stacks:
            raise NoPipeline(f"%{x.name}, a row for each layer of each microbatch, is returned")
