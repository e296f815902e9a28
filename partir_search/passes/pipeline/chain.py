"""Loop over the ticks of a lockstep pipeline with several stacks of layers.

Each stage holds an equal part of every stack, or equal chunks. In a tick a stage runs the layers of
each stack for one microbatch, F of the first stack first and B of the first stack last; a
microbatch leaves the last stage of a run in the first tick of the next run. Values of earlier
segments travel beside the carry (`travelling`): the decoder's stages read the encoder's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Operand, Value
from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, PipelineSchedule
from partir_search.passes.pipeline.body_values import Arrays, BodyValues
from partir_search.passes.pipeline.chain_parts import ChainParts
from partir_search.passes.pipeline.chain_ticks import ChainTicks, Loop
from partir_search.passes.pipeline.layer_consts import layer_consts
from partir_search.passes.pipeline.layer_order import Orders
from partir_search.passes.pipeline.layers import Layers
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
from partir_search.passes.pipeline.totals import first_total, last_total, summands, with_summands
from partir_search.passes.pipeline.zero_cotangents import results_without_item

State = dict[str, Any]


class Chain:
    """Function of the operands of a loop over microbatches, equal to the loop.

    Attributes:
      loops: the loops over ticks, in order.
    """

    def __init__(
        self,
        parts: ChainParts,
        schedule: PipelineSchedule,
        constants: Arrays,
        orders: Orders,
        types: Mapping[Any, Any],
    ) -> None:
        self._parts, self._orders, self._types = parts, orders, types
        self._stages, self._chunks = schedule.stages, schedule.chunks
        self._microbatches = schedule.microbatches
        self._ticks = ChainTicks(schedule, len(parts.stacks))
        self._splits: list[SplitBackward] = []
        if schedule.split:
            self._splits = [split_backward(stack.backward) for stack in parts.stacks]
        passes = [split.operands for split in self._splits] or [s.backward for s in parts.stacks]
        self._without_item = [results_without_item(layers) for layers in passes]
        self._values = BodyValues(parts.stacks[0].body, constants)
        self._layers = StageLayers(self._values, self._stages, self._chunks)
        self._kept = [
            [j for j in sorted(set(s.residuals.values())) if j not in fixed_residuals(s)]
            for s in parts.stacks
        ]
        self.loops: list[TickLoop] = []

    def __call__(self, *arrays: Any) -> list[Any]:
        """Results of the loop."""
        parts, stages, chunks = self._parts, self._stages, self._chunks
        self.loops.clear()
        orders = self._orders
        operands = [
            operands_of(s, self._values, arrays, stages, chunks, orders) for s in parts.stacks
        ]
        state: State = {}
        for run in range(len(parts.runs)):
            state |= self._empty(run)
        carries = [parts.stacks[k or 0].totals[i] for i, k in enumerate(parts.adders)]
        firsts = operands[0].totals
        totals = [
            first_total(t, x, stages, chunks, orders.get(t.argument))
            for t, x in zip(carries, firsts, strict=True)
        ]
        made: dict[int, list[list[Any]]] = {}
        ticks: dict[int, list[int]] = {}
        for loop in self._ticks.loops():
            state, totals, rows = self._loop(loop, state, totals, operands)
            for segment, found in rows.items():
                made.setdefault(segment, []).append(found)
                ticks.setdefault(segment, []).extend(loop.ticks)
        counts = [parts.stacks[k or 0].forward.count for k in parts.adders]
        finals = [
            last_total(t, first, x, chunks, n, orders.get(t.argument), self._types.get(t.argument))
            for n, t, first, x in zip(counts, carries, firsts, totals, strict=True)
        ]
        results: dict[int, Any] = {}
        for segment, phases in made.items():
            at = {number: tick for tick, number in self._ticks.segment_ticks(segment).items()}
            order = [ticks[segment].index(at[n]) for n in range(self._microbatches)]
            columns = zip(*phases, strict=True)
            results |= {
                i: rows_at(column, order)
                for i, column in zip(parts.rows_in(segment), columns, strict=True)
            }
        return [*finals, *(results[i] for i in range(len(parts.stacks[0].rows)))]

    # Ticks -------------------------------------------------------------------------------------

    def _empty(self, run: int) -> State:
        """State of a run before the first tick: no carry, empty slots."""
        k, layers = self._parts.runs[run]
        carried = [*layers.carry, *self._parts.travelling[run]]
        state: State = {
            f"carry{run}": [_zeros((self._stages,), x.type.shape, x.type.dtype) for x in carried]
        }
        length, slots = -(-layers.count // (self._stages * self._chunks)), self._ticks.tables[k]
        shape = self._stages, slots.residuals.count
        if run < len(self._parts.stacks):
            kept = [layers.stacks[j].type for j in self._kept[k]]
            state[f"slots{k}"] = [_zeros((*shape, length), x.shape[1:], x.dtype) for x in kept]
        if self._ticks.waits and run + 1 == len(self._parts.stacks):
            ends = [x.type for x in self._ends(run)]
            state["ends"] = [_zeros((*shape, 1), x.shape, x.dtype) for x in ends]
        if self._splits and run >= len(self._parts.stacks) and slots.cotangents is not None:
            shape = self._stages, slots.cotangents.count
            inner = [(length, x) for x in self._splits[k].kept]
            inner += [(1, x) for x in self._passed(run)]
            zeros = [_zeros((*shape, n), x.type.shape, x.type.dtype) for n, x in inner]
            state[f"deferred{k}"] = zeros
        return state

    def _ends(self, run: int) -> tuple[Value, ...]:
        """Results of a run: the travelling values, then the final carry."""
        return *self._parts.travelling[run], *self._parts.runs[run][1].finals

    def _passed(self, run: int) -> list[Value]:
        """Travelling values read by the deferred products of a backward run."""
        weights = self._splits[self._parts.runs[run][0]].weights
        return [x for x in self._parts.travelling[run] if x in weights.consts]

    def _loop(
        self, loop: Loop, state: State, totals: list[Any], operands: list[Operands]
    ) -> tuple[State, list[Any], dict[int, list[Any]]]:
        """Runs the ticks of a loop; returns the state and the totals after it, and rows by tick."""
        parts, count = self._parts, len(self._parts.stacks)
        changed = {f"carry{r}" for r in loop.runs}
        changed |= {f"slots{r}" for r in loop.runs if r < count}
        backward = [parts.runs[r][0] for r in loop.runs if r >= count]
        if self._splits:
            changed |= {f"deferred{k}" for k in backward}
        if self._ticks.waits and count - 1 in loop.runs:
            changed.add("ends")
        own = [i for i, k in enumerate(parts.adders) if self._adds(i, k, backward, loop.weights)]
        own += dict.fromkeys(i for j in loop.segments for i, _ in parts.terms_in(j))

        def tick(moving: State, row: Mapping[str, Any]) -> tuple[State, dict[int, list[Any]]]:
            now = {**state, **moving}
            sums = list(totals)
            for i, x in zip(own, moving["totals"], strict=True):
                sums[i] = x
            made: dict[int, list[Any]] = {}
            out: Mapping[Value, Any] = {}
            for j in range(1 + parts.last):
                entering: list[Any] | None = None
                if j in loop.segments:
                    if self._ticks.waits and j == count:
                        ended = [read(x, row[f"slot{j}"])[0] for x in now["ends"]]
                        out = dict(zip(self._ends(j - 1), ended, strict=True))
                    entering, made[j] = self._segment(j, row, operands[0], out, sums)
                if j in loop.runs:
                    out = self._run(j, row, operands, now, entering, sums, j in loop.passing)
            for k in loop.weights:
                self._weights(k, row, operands[k], now, sums)
            now["totals"] = [sums[i] for i in own]
            return {name: now[name] for name in moving}, made

        moving = {name: state[name] for name in sorted(changed)}
        staged = len(jax.tree.leaves(moving))
        moving["totals"] = [totals[i] for i in own]
        names = loop.rows.keys() - {f"live{r}" for r in loop.runs if not self._masked(r)}
        arrays = {name: jnp.asarray(loop.rows[name]) for name in loop.rows if name in names}
        after, made = lax.scan(tick, moving, arrays, length=len(loop.ticks))
        self.loops.append(TickLoop(jax.tree.leaves(after), staged))
        totals = list(totals)
        for i, x in zip(own, after.pop("totals"), strict=True):
            totals[i] = x
        return {**state, **after}, totals, made

    def _masked(self, run: int) -> bool:
        """True if results of a run of B are masked on stages without an item."""
        return run >= len(self._parts.stacks) and bool(self._without_item[self._parts.runs[run][0]])

    def _adds(
        self, total: int, stack: int | None, backward: Sequence[int], weights: Sequence[int]
    ) -> bool:
        """True if a run of B, or of W, adds to a total.

        Args:
          stack: of the total's gradient; None without layers.
          backward, weights: stacks with a run of B, and of W.
        """
        if stack is None or not self._splits:
            return stack in backward
        late = self._parts.stacks[stack].totals[total].stack in self._splits[stack].late
        return stack in (weights if late else backward)

    # Work of a tick ----------------------------------------------------------------------------

    def _segment(
        self,
        segment: int,
        row: Mapping[str, Any],
        operands: Operands,
        out: Mapping[Value, Any],
        sums: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Computes a segment for one microbatch.

        Args:
          out: results of the run before by value, with a dim of stages.
          sums: totals, changed in place.

        Returns:
          The values that enter the next run, and the rows of the loop's results.
        """
        parts, valid = self._parts, row.get(f"valid{segment}")
        leaves = self._stages - 1 if self._ticks.kind(segment - 1) == FORWARD else 0
        known = dict(operands.of_microbatch(row[f"segment{segment}"]))
        known |= {v: at_stage(x, leaves) for v, x in out.items()}
        entering: list[Operand] = []
        if segment < parts.last:
            entering = [*parts.runs[segment][1].carry, *parts.travelling[segment]]
        mine, loop = parts.terms_in(segment), parts.stacks[0]
        news = [x for _, term in mine for x in summands(term, self._values, valid)]
        rows = [loop.rows[i] for i in parts.rows_in(segment)]
        known |= {loop.totals[i].argument: sums[i] for i, _ in mine}
        found = iter(self._values.compute([*entering, *news, *rows], known))
        enter = [next(found) for _ in entering]
        if valid is not None and self._ticks.kind(segment) == BACKWARD and entering:
            cotangents = len(parts.runs[segment][1].carry)
            enter[:cotangents] = [masked(x, valid) for x in enter[:cotangents]]
        for i, term in mine:
            sums[i] = with_summands(term, self._values, valid, sums[i], found)
        return enter, list(found)

    def _run(
        self,
        run: int,
        row: Mapping[str, Any],
        operands: Sequence[Operands],
        state: State,
        entering: list[Any] | None,
        sums: list[Any],
        passes: bool,
    ) -> Mapping[Value, Any]:
        """Runs the layers of all stages; returns results by value, with a dim of stages.

        Args:
          entering: values that enter the first stage of the run; None for a phase without any.
          state, sums: carries, slots and totals, changed in place.
          passes: True if the first stage of a backward run goes on with arriving cotangents.
        """
        parts, (k, layers) = self._parts, self._parts.runs[run]
        whole = layers
        forward = self._ticks.kind(run) == FORWARD
        if self._splits and not forward:
            layers = self._splits[k].operands
        first, by = (0, 1) if forward else (self._stages - 1, -1)
        carry = state[f"carry{run}"]
        count, valid = len(layers.carry), row.get(f"valid{run}")
        if entering is not None:
            carry = [
                with_stage(x, first, new, valid if forward or i >= count else row.get(f"last{run}"))
                for i, (x, new) in enumerate(zip(carry, entering, strict=True))
            ]
        elif not forward and self._chunks > 1 and not passes:
            # Cotangents of microbatches that have left arrive from the last stage of the run.
            last = row.get(f"last{run}")
            gone = [with_stage(x, first, jnp.zeros_like(x[0]), last) for x in carry[:count]]
            carry = [*gone, *carry[count:]]
        travelling = dict(zip(parts.travelling[run], carry[count:], strict=True))
        consts, axes = layer_consts(
            layers, parts.stacks[0], self._values, row[f"microbatch{run}"], operands[k], travelling
        )
        if forward:
            chunk = row.get(f"chunk{run}", jnp.zeros(self._stages, jnp.int32))
            given = dict(enumerate(operands[k].forward))
            given |= {len(layers.stacked) + j: x for j, x in operands[k].fixed.items()}
            at, writes = row[f"slot{run}"], row.get(f"writes{run}")
            slots = [Places(x, at, valid=writes) for x in state[f"slots{k}"]]
            kept = list(zip(self._kept[k], slots, strict=True))
            moving = consts, axes, carry[:count]
            out, state[f"slots{k}"] = self._layers.run(layers, *moving, given, chunk, {}, kept)
            if self._ticks.waits and run + 1 == len(parts.stacks):
                ends = [x[None] for x in (*travelling.values(), *out)]
                state["ends"] = stored(state["ends"], ends, at, writes)
        else:
            moving, waiting = (consts, axes, carry[:count]), list[Places]()
            if self._splits:
                at, writes = row[f"waiting{run}"], row.get(f"writes{run}")
                inner = len(self._splits[k].kept)
                ends = [travelling[x][None] for x in self._passed(run)]
                kept, passed = state[f"deferred{k}"][:inner], state[f"deferred{k}"][inner:]
                waiting = [Places(x, at, valid=writes) for x in kept]
            out, kept = self._backward(
                k, layers, moving, row, state, operands[k], f"{run}", sums, {}, waiting
            )
            if self._splits:
                state[f"deferred{k}"] = [*kept, *stored(passed, ends, at, writes)]
        leaving, wrap = (*out, *travelling.values()), self._chunks > 1
        state[f"carry{run}"] = [shifted(x, by, wrap) for x in leaving]
        return {**travelling, **dict(zip(whole.finals, out, strict=True))}

    def _backward(
        self,
        stack: int,
        layers: Layers,
        moving: tuple[list[Any], list[int | None], list[Any]],
        row: Mapping[str, Any],
        state: State,
        operands: Operands,
        name: str,
        sums: list[Any],
        waiting: Mapping[int, Any],
        deferred: Sequence[Places],
    ) -> tuple[list[Any], list[Any]]:
        """Carries of backward layers on the residuals of a tick, and slots of deferred values.

        Args:
          moving: constants of the layers, their axes of stages, and the carry.
          name: of the run, in `row`.
          sums: totals, changed in place.
          waiting: places of further stacked operands, by position.
          deferred: places of the values to store for deferred products.
        """
        parts, at = self._parts.stacks[stack], row[f"slot{name}"]
        slots = dict(zip(self._kept[stack], state[f"slots{stack}"], strict=True))
        needed, chunk = layers.read, row.get(f"chunk{name}", jnp.zeros(self._stages, jnp.int32))
        found = [(i, j) for i, j in parts.residuals.items() if j in slots and i in needed]
        reads = {i: Places(slots[j], at) for i, j in found}
        stacks: list[int | None] = list(range(len(parts.backward.stacks)))
        if self._splits:
            split = self._splits[stack]
            stacks = list(split.late if layers is split.weights else split.early)
        adding = [(i, t.stack) for i, t in enumerate(parts.totals) if t.stack in stacks]
        writes = [(stacks.index(j), Places(sums[i], chunk, adds=True)) for i, j in adding]
        writes += enumerate(deferred, start=len(stacks))
        out, made = self._layers.run(
            layers,
            *moving,
            operands.backward,
            chunk,
            {**reads, **waiting},
            writes,
            live=row.get(f"live{name}"),
            without_item=self._without_item[stack],
        )
        for (i, _), x in zip(adding, made, strict=False):
            sums[i] = x
        return out, made[len(adding) :]

    def _weights(
        self, stack: int, row: Mapping[str, Any], operands: Operands, state: State, sums: list[Any]
    ) -> None:
        """Runs W of a stack: products of gradients deferred by B."""
        split, run, name = self._splits[stack], self._parts.last - 1 - stack, f"_w{stack}"
        at, slots = row[f"waiting{name}"], state[f"deferred{stack}"]
        count, first = len(split.kept), len(self._parts.stacks[stack].backward.stacked)
        waiting = {first + i: Places(x, at) for i, x in enumerate(slots[:count])}
        ends = zip(self._passed(run), slots[count:], strict=True)
        travelling = {x: read(slot, at)[0] for x, slot in ends}
        layers, numbers = split.weights, row[f"microbatch{name}"]
        loop = self._parts.stacks[0]
        consts, axes = layer_consts(layers, loop, self._values, numbers, operands, travelling)
        moving = consts, axes, list[Any]()
        self._backward(stack, layers, moving, row, state, operands, name, sums, waiting, ())


def _zeros(leading: tuple[int, ...], shape: Sequence[int], dtype: Any) -> Any:
    return jnp.zeros((*leading, *shape), dtype)
