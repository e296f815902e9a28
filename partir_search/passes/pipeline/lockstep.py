"""Loop over the ticks of a lockstep pipeline, in jax on whole arrays.

Arrays of stages have a dim of stages; tiled on a mesh axis, each device holds one stage, and a
shift of a carry by one stage is one permute. Every tick computes the same kinds of work for all
stages. The entry and the head, outside of the layers, are computed once in a tick, for the
microbatch of the first and of the last stage; arrays of entry and head have no dim of stages and
may be tiled on the same axis in further dims.

A stage without an item in a tick works on data of another tick, with cotangents and gradients of
zero, and writes to no slot in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Operand
from partir_search.ir.pipeline_runs import runs
from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, GPIPE, WEIGHTS, Phase
from partir_search.ir.pipeline_table import PipelineTable
from partir_search.passes.pipeline.body_values import Arrays, BodyValues
from partir_search.passes.pipeline.layer_consts import layer_consts
from partir_search.passes.pipeline.layer_order import Orders
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import LoopParts, Part
from partir_search.passes.pipeline.operands import Operands, fixed_residuals, operands_of
from partir_search.passes.pipeline.split_backward import SplitBackward, split_backward
from partir_search.passes.pipeline.stage_arrays import (
    at_stage,
    masked,
    read,
    rows_at,
    shifted,
    stored,
    with_stage,
)
from partir_search.passes.pipeline.stage_layers import Places, StageLayers
from partir_search.passes.pipeline.tick_loops import TickLoop
from partir_search.passes.pipeline.tick_rows import LIVE, TickRows, tick_rows
from partir_search.passes.pipeline.totals import first_total, last_total, summands, with_summands
from partir_search.passes.pipeline.zero_cotangents import results_without_item

Row = Mapping[str, Any]
State = dict[str, Any]


class Lockstep:
    """Function of the operands of a loop over microbatches, equal to the loop.

    Attributes:
      parts: the loop.
      table: items and slots by stage and tick.
      loops: the loops over ticks, in order.
    """

    def __init__(
        self,
        parts: LoopParts,
        table: PipelineTable,
        constants: Arrays,
        orders: Orders,
        types: Mapping[Any, Any],
    ) -> None:
        """A function without loops so far.

        Args:
          constants: arrays of values outside of the loop.
          orders: of layers in the loop's operands and results.
          types: of results in a narrower type than the carry, by argument of the loop's body.
        """
        self.parts, self.table, self._orders, self._types = parts, table, orders, types
        self._values = BodyValues(parts.body, constants)
        self._stages, self._chunks = table.schedule.stages, table.schedule.chunks
        self._stage_layers = StageLayers(self._values, self._stages, self._chunks)
        fixed = fixed_residuals(parts)
        # Without F in the tick of the head, what leaves the last stage waits beside the residuals.
        self._waits = table.schedule.schedule == GPIPE
        self._kept = [j for j in sorted(set(parts.residuals.values())) if j not in fixed]
        self._split: SplitBackward | None = None
        if table.schedule.split:
            self._split = split_backward(parts.backward)
        self._without_item = results_without_item(
            parts.backward if self._split is None else self._split.operands
        )
        self.loops: list[TickLoop] = []

    def __call__(self, *arrays: Any) -> list[Any]:
        """Results of the loop."""
        parts, stages = self.parts, self._stages
        self.loops.clear()
        orders = self._orders
        operands = operands_of(parts, self._values, arrays, stages, self._chunks, orders)
        totals = [
            first_total(t, x, stages, self._chunks, orders.get(t.argument))
            for t, x in zip(parts.totals, operands.totals, strict=True)
        ]
        state: State = {"totals": totals, **self._first()}
        made: dict[str, list[Any]] = {"head": [], "exit": []}
        for phase in runs(self.table.schedule):
            state, rows = self._phase(phase, state, operands)
            for name, found in rows.items():
                made[name].append(found)
        finals = [
            last_total(
                t,
                first,
                x,
                self._chunks,
                parts.forward.count,
                orders.get(t.argument),
                self._types.get(t.argument),
            )
            for t, first, x in zip(parts.totals, operands.totals, state["totals"], strict=True)
        ]
        return [*finals, *self._rows(made)]

    def _first(self) -> State:
        """State before the first tick: no carry, no cotangent, empty slots."""
        parts, slots, waiting = self.parts, self.table.residuals.count, self.table.cotangents
        length = -(-parts.forward.count // (self._stages * self._chunks))

        def zeros(types: Sequence[Operand], *leading: int) -> list[Any]:
            return [jnp.zeros((self._stages, *leading, *x.type.shape), x.type.dtype) for x in types]

        stacks = [parts.forward.stacks[j].type for j in self._kept]
        kept = [jnp.zeros((self._stages, slots, length, *x.shape[1:]), x.dtype) for x in stacks]
        kept += zeros(parts.forward.finals, slots, 1) if self._waits else []
        split = self._split.kept if self._split is not None and waiting is not None else ()
        return {
            "carry": zeros(parts.forward.carry),
            "cotangents": zeros(parts.backward.carry),
            "slots": kept,
            "deferred": zeros(split, waiting.count if waiting else 0, length),
        }

    def _phase(
        self, phase: Phase, state: State, operands: Operands
    ) -> tuple[State, dict[str, Any]]:
        """Runs the ticks of a loop; returns the state after it, and rows by tick."""
        rows = tick_rows(self.table, phase)
        changed = {"carry", "slots"} if FORWARD in phase.kinds else set()
        changed |= {"cotangents", "deferred"} if BACKWARD in phase.kinds else set()
        held = {k: v for k, v in state.items() if k not in changed}
        own = self._totals_of(phase, rows)

        def tick(moving: State, row: Row) -> tuple[State, dict[str, Any]]:
            now, made = {**held, **moving}, dict[str, Any]()
            now["totals"] = [moving["totals"].get(i, x) for i, x in enumerate(state["totals"])]
            out: Sequence[Any] = ()
            if FORWARD in phase.kinds:
                out = self._forward(now, row, operands)
            if BACKWARD in phase.kinds:
                made = self._backward(now, row, operands, out, rows.passes)
            if WEIGHTS in phase.kinds:
                self._weights(now, row, operands)
            now["totals"] = {i: now["totals"][i] for i in own}
            return {k: now[k] for k in moving}, made

        moving = {k: state[k] for k in changed}
        staged = None if self._split is None else len(jax.tree.leaves(moving))
        moving["totals"] = {i: state["totals"][i] for i in own}
        flags = {k: x for k, x in rows.flags.items() if k != LIVE or self._without_item}
        arrays = {k: jnp.asarray(x) for k, x in (*rows.arrays.items(), *flags.items())}
        after, made = lax.scan(tick, moving, arrays, length=phase.ticks)
        self.loops.append(TickLoop(jax.tree.leaves(after), staged))
        totals = [after["totals"].get(i, x) for i, x in enumerate(state["totals"])]
        return {**held, **after, "totals": totals}, made

    def _totals_of(self, phase: Phase, rows: TickRows) -> list[int]:
        """Positions of the loop's carries that a phase changes."""
        made = {part for part in (Part.HEAD, Part.EXIT) if part.value in rows.arrays}
        at_once, later = self._stacks_by_kind()
        stacks: list[int | None] = [*(at_once if BACKWARD in phase.kinds else ())]
        stacks += later if WEIGHTS in phase.kinds else ()
        return [
            i
            for i, t in enumerate(self.parts.totals)
            if t.stack in stacks or any(t.terms_in(part) for part in made)
        ]

    def _stacks_by_kind(self) -> tuple[Sequence[int], Sequence[int]]:
        """Positions of the backward stacks of B and of W."""
        if self._split is None:
            return range(len(self.parts.backward.stacks)), ()
        return self._split.early, self._split.late

    # Forward -----------------------------------------------------------------------------------

    def _forward(self, state: State, row: Row, operands: Operands) -> Sequence[Any]:
        """Runs F of a tick, and returns the carries that leave the stages."""
        carry = state["carry"]
        if "entry" in row:
            entering = self._entering(operands.of_microbatch(row["entry"]))
            valid = row.get("entry_valid")
            carry = [with_stage(x, 0, new, valid) for x, new in zip(carry, entering, strict=True)]
        at, valid = row["slot_F"], row.get("writes_F")
        kept = [Places(x, at, valid=valid) for x in state["slots"]]
        out, slots = self._layers_forward(carry, row, operands, kept[: len(self._kept)])
        if self._waits:
            ends = state["slots"][len(self._kept) :]
            slots += stored(ends, [x[None] for x in out], at, valid)
        state["slots"] = slots
        state["carry"] = [shifted(x, 1, self._chunks > 1) for x in out]
        return out

    def _entering(self, known: Arrays) -> list[Any]:
        return self._values.compute(self.parts.forward.carry, known)

    def _layers_forward(
        self, carry: Sequence[Any], row: Row, operands: Operands, slots: Sequence[Places]
    ) -> tuple[list[Any], list[Any]]:
        """Carries after the layers of each stage, and the slots with the residuals to keep."""
        layers = self.parts.forward
        consts, axes = layer_consts(layers, self.parts, self._values, row["microbatch_F"], operands)
        given = dict(enumerate(operands.forward))
        # Casts of weights are read, not made in every tick.
        given |= {len(layers.stacked) + j: x for j, x in operands.fixed.items()}
        writes = list(zip(self._kept, slots, strict=True))
        return self._stage_layers.run(
            layers, consts, axes, carry, given, row["chunk_F"], {}, writes
        )

    # Backward ----------------------------------------------------------------------------------

    def _backward(
        self, state: State, row: Row, operands: Operands, out: Sequence[Any], passes: bool
    ) -> dict[str, Any]:
        """Runs head, B and exit of a tick; returns rows of the loop's results.

        Args:
          passes: True if the last stage goes on with the cotangents that arrive.
        """
        parts, last, made = self.parts, self._stages - 1, dict[str, Any]()
        arriving = state["cotangents"]
        zeros = [jnp.zeros(x.shape[1:], x.dtype) for x in arriving]
        if "head" in row:
            if self._waits:
                ended = state["slots"][len(self._kept) :]
                out = [read(x, row["slot_B"])[0] for x in ended]
            finals = [at_stage(x, last) for x in out]
            known = operands.of_microbatch(row["head"])
            known = {**known, **dict(zip(parts.forward.finals, finals, strict=True))}
            zeros, made["head"] = self._part(
                state, Part.HEAD, parts.backward.carry, known, row.get("head_valid")
            )
        # Zeros arrive without an item; with chunks, other chunks of the last stage have cotangents.
        if not passes:
            valid = row.get("last_valid")
            ends = zip(arriving, zeros, strict=True)
            arriving = [with_stage(x, last, new, valid) for x, new in ends]
        layers = parts.backward if self._split is None else self._split.operands
        gone = self._layers_backward(layers, BACKWARD, arriving, state, row, operands)
        if "exit" in row:
            finals = [at_stage(x, 0) for x in gone]
            known = operands.of_microbatch(row["exit"])
            known = {**known, **dict(zip(parts.backward.finals, finals, strict=True))}
            _, made["exit"] = self._part(state, Part.EXIT, (), known, row.get("exit_valid"))
        state["cotangents"] = [shifted(x, -1, self._chunks > 1) for x in gone]
        return made

    def _weights(self, state: State, row: Row, operands: Operands) -> None:
        """Runs W of a tick: products of gradients deferred by B."""
        assert self._split is not None
        self._layers_backward(self._split.weights, WEIGHTS, (), state, row, operands)

    def _layers_backward(
        self,
        layers: Layers,
        kind: str,
        carry: Sequence[Any],
        state: State,
        row: Row,
        operands: Operands,
    ) -> list[Any]:
        """Carries of backward layers on the residuals of a tick.

        Adds gradients of the layers to the totals, and stores values for deferred products.

        Args:
          kind: BACKWARD or WEIGHTS.
        """
        parts, at_chunk = self.parts, row[f"chunk_{kind}"]
        numbers = row[f"microbatch_{kind}"]
        consts, axes = layer_consts(layers, parts, self._values, numbers, operands)
        kept = dict(zip(self._kept, state["slots"], strict=False))
        reads = {
            i: Places(kept[j], row[f"slot_{kind}"])
            for i, j in parts.residuals.items()
            if j in kept and i in layers.read
        }
        at_once, later = self._stacks_by_kind()
        stacks: list[int | None] = list(later if kind == WEIGHTS else at_once)
        mine = [(i, t.stack) for i, t in enumerate(parts.totals) if t.stack in stacks]
        totals = list(state["totals"])
        writes = [(stacks.index(j), Places(totals[i], at_chunk, adds=True)) for i, j in mine]
        waiting, first = state["deferred"], len(parts.backward.stacked)
        if kind == WEIGHTS:
            at = row[f"waiting_{kind}"]
            reads |= {first + i: Places(x, at) for i, x in enumerate(waiting)}
        elif waiting:
            at, valid = row[f"waiting_{kind}"], row.get("writes_B")
            places = [Places(x, at, valid=valid) for x in waiting]
            writes += enumerate(places, start=len(stacks))
        out, made = self._stage_layers.run(
            layers,
            consts,
            axes,
            carry,
            operands.backward,
            at_chunk,
            reads,
            writes,
            *self._live(kind, row),
        )
        for (i, _), x in zip(mine, made, strict=False):
            totals[i] = x
        state["totals"] = totals
        if kind == BACKWARD:
            state["deferred"] = made[len(mine) :]
        return out

    def _live(self, kind: str, row: Row) -> tuple[Any, frozenset[int]]:
        """Stages with an item of a kind, and the results of layers to mask on the others."""
        if kind != BACKWARD or not self._without_item:
            return None, frozenset()
        return row.get(LIVE), self._without_item

    def _part(
        self, state: State, part: Part, wanted: Sequence[Operand], known: Arrays, valid: Any
    ) -> tuple[list[Any], list[Any]]:
        """Computes head or exit of a microbatch once, and adds the microbatch to the totals.

        Args:
          valid: False for a tick without a microbatch; None for a phase with one in every tick.

        Returns:
          The values `wanted`, zeros without a microbatch, and the rows of the loop's results.
        """
        totals, parts = list(state["totals"]), self.parts
        mine = [(i, t) for i, total in enumerate(parts.totals) for t in total.terms_in(part)]
        news = [x for _, term in mine for x in summands(term, self._values, valid)]
        rows = self._rows_in(part)
        arguments = {parts.totals[i].argument: totals[i] for i, _ in mine}
        found = iter(self._values.compute([*wanted, *news, *rows], {**known, **arguments}))
        values = [next(found) if valid is None else masked(next(found), valid) for _ in wanted]
        for i, term in mine:
            totals[i] = with_summands(term, self._values, valid, totals[i], found)
        state["totals"] = totals
        return values, list(found)

    # Rows --------------------------------------------------------------------------------------

    def _rows_in(self, part: Part) -> list[Operand]:
        """Results of the body with a row for each microbatch, computed in a part."""
        return [x for x in self.parts.rows if self._part_of_row(x) is part]

    def _part_of_row(self, x: Operand) -> Part:
        return Part.EXIT if self.parts.place(x) is Part.EXIT else Part.HEAD

    def _rows(self, made: Mapping[str, Sequence[Sequence[Any]]]) -> list[Any]:
        """Results of the loop with a row for each microbatch, from rows by tick."""
        places = {"head": self.table.heads(), "exit": self.table.exits()}
        found: dict[str, list[Any]] = {}
        for name, phases in made.items():
            ticks = self._ticks_with(name)
            at = {number: ticks.index(t) for t, number in places[name].items()}
            order = [at[number] for number in range(self.parts.microbatches)]
            columns = zip(*phases, strict=True)
            found[name] = [rows_at(column, order) for column in columns]
        iterators = {name: iter(rows) for name, rows in found.items()}
        return [next(iterators[self._part_of_row(x).value]) for x in self.parts.rows]

    def _ticks_with(self, name: str) -> list[int]:
        """Ticks of the loops with rows of a part."""
        return [
            t
            for p in runs(self.table.schedule)
            if name in tick_rows(self.table, p).arrays
            for t in range(p.start, p.stop)
        ]
