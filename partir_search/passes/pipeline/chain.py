"""Loop over the ticks of a lockstep pipeline with several stacks of layers.

Each stage holds an equal part of every stack, or equal chunks. In a tick a stage runs the layers of
each stack for one microbatch, F of the first stack first and B of the first stack last; a
microbatch leaves the last stage of a run in the first tick of the next run. Values of earlier
segments travel beside the carry (`travelling`): the decoder's stages read the encoder's result.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.core import Operand, Value
from partir_search.ir.pipeline_runs import cut_at_ends
from partir_search.ir.pipeline_schedule import BACKWARD, FORWARD, Phase, PipelineSchedule
from partir_search.ir.pipeline_table import pipeline_table
from partir_search.passes.pipeline.body_values import Arrays, BodyValues
from partir_search.passes.pipeline.chain_parts import ChainParts
from partir_search.passes.pipeline.layer_order import Orders
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.operands import Operands, fixed_residuals, operands_of
from partir_search.passes.pipeline.stage_arrays import (
    at_stage,
    masked,
    read,
    rows_at,
    shifted,
    stored,
    with_stage,
)
from partir_search.passes.pipeline.stage_layers import StageLayers
from partir_search.passes.pipeline.tick_rows import tick_rows
from partir_search.passes.pipeline.totals import first_total, last_total, with_gradients

State = dict[str, Any]


class Chain:
    """Function of the operands of a loop over microbatches, equal to the loop.

    Attributes:
      staged: by loop over ticks, the number of carries with a dim of stages, before the totals.
    """

    def __init__(
        self, parts: ChainParts, schedule: PipelineSchedule, constants: Arrays, orders: Orders
    ) -> None:
        self._parts, self._schedule, self._orders = parts, schedule, orders
        self._stages, self._chunks = schedule.stages, schedule.chunks
        self._microbatches = schedule.microbatches
        self._tables = [pipeline_table(s) for s in stack_schedules(schedule, len(parts.stacks))]
        self._values = BodyValues(parts.stacks[0].body, constants)
        self._layers = StageLayers(self._values, self._stages, self._chunks)
        self._kept = [
            [j for j in sorted(set(s.residuals.values())) if j not in fixed_residuals(s)]
            for s in parts.stacks
        ]
        self.staged: list[int] = []

    def __call__(self, *arrays: Any) -> list[Any]:
        """Results of the loop."""
        parts, stages, chunks = self._parts, self._stages, self._chunks
        self.staged.clear()
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
        for start, stop in self._phases():
            state, totals, rows = self._phase(start, stop, state, totals, operands)
            for segment, found in rows.items():
                made.setdefault(segment, []).append(found)
                ticks.setdefault(segment, []).extend(range(start, stop))
        finals = [
            last_total(
                t, first, x, chunks, parts.stacks[k or 0].forward.count, orders.get(t.argument)
            )
            for k, t, first, x in zip(parts.adders, carries, firsts, totals, strict=True)
        ]
        results: dict[int, Any] = {}
        for segment, phases in made.items():
            at = {number: tick for tick, number in self._segment_ticks(segment).items()}
            order = [ticks[segment].index(at[n]) for n in range(self._microbatches)]
            columns = zip(*phases, strict=True)
            results |= {
                i: rows_at(column, order)
                for i, column in zip(parts.rows_in(segment), columns, strict=True)
            }
        return [*finals, *(results[i] for i in range(len(parts.stacks[0].rows)))]

    # Ticks -------------------------------------------------------------------------------------

    def _span(self, run: int) -> range:
        """Ticks of a run on any device."""
        first = run * self._schedule.through
        return range(first, first + self._schedule.items + self._stages - 1)

    def _segment_ticks(self, segment: int) -> dict[int, int]:
        """Microbatch of a segment by tick."""
        first = segment * self._schedule.through
        groups = [divmod(n, self._stages) for n in range(self._microbatches)]
        of_group = self._stages * self._chunks
        return {first + group * of_group + i: n for n, (group, i) in enumerate(groups)}

    def _phases(self) -> Iterator[tuple[int, int]]:
        """Runs of ticks with equal kinds of work; with chunks, with a segment and with none."""
        spans = [self._span(run) for run in range(len(self._parts.runs))]
        cuts = sorted({s.start for s in spans} | {s.stop for s in spans})
        ends = {t for j in range(1 + self._parts.last) for t in self._segment_ticks(j)}
        for start, stop in itertools.pairwise(cuts):
            if self._chunks == 1:
                yield start, stop
                continue
            for run in cut_at_ends(Phase("", start, stop), ends.__contains__):
                yield run.start, run.stop

    def _empty(self, run: int) -> State:
        """State of a run before the first tick: no carry, empty slots."""
        k, layers = self._parts.runs[run]
        carried = [*layers.carry, *self._parts.travelling[run]]
        state: State = {
            f"carry{run}": [_zeros((self._stages,), x.type.shape, x.type.dtype) for x in carried]
        }
        if run < len(self._parts.stacks):
            length = -(-layers.count // (self._stages * self._chunks))
            shape = self._stages, self._tables[k].residuals.count, length
            kept = [layers.stacks[j].type for j in self._kept[k]]
            state[f"slots{k}"] = [_zeros(shape, x.shape[1:], x.dtype) for x in kept]
        return state

    def _phase(
        self, start: int, stop: int, state: State, totals: list[Any], operands: list[Operands]
    ) -> tuple[State, list[Any], dict[int, list[Any]]]:
        """Runs the ticks of a loop; returns the state and the totals after it, and rows by tick."""
        parts = self._parts
        ticks = range(start, stop)
        runs = [r for r in range(len(parts.runs)) if start in self._span(r)]
        places = [self._segment_ticks(j) for j in range(1 + parts.last)]
        segments = [j for j, at in enumerate(places) if not at.keys().isdisjoint(ticks)]
        rows: dict[str, Any] = {}
        for j in segments:
            numbers = np.array([places[j].get(t, -1) for t in ticks], np.int32)
            rows[f"segment{j}"] = np.maximum(numbers, 0)
            if (numbers < 0).any():
                rows[f"valid{j}"] = numbers >= 0
        passing = set[int]()
        for run in runs:
            k, kind = parts.runs[run][0], self._kind(run)
            found = tick_rows(self._tables[k], Phase(kind, start, stop))
            rows[f"microbatch{run}"] = found.arrays[f"microbatch_{kind}"]
            rows[f"slot{run}"] = found.arrays[f"slot_{kind}"]
            if self._chunks > 1:
                rows[f"chunk{run}"] = found.arrays[f"chunk_{kind}"]
            if "last_valid" in found.flags:
                rows[f"last{run}"] = found.flags["last_valid"]
            if found.passes:
                passing.add(run)
            if f"writes_{kind}" in found.flags:
                rows[f"writes{run}"] = found.flags[f"writes_{kind}"]
        changed = {f"carry{r}" for r in runs}
        changed |= {f"slots{r}" for r in runs if self._kind(r) == FORWARD}
        backward = [parts.runs[r][0] for r in runs if self._kind(r) == BACKWARD]
        own = [i for i, k in enumerate(parts.adders) if k in backward]
        own += [i for j in segments for i in parts.totals_in(j)]

        def tick(moving: State, row: Mapping[str, Any]) -> tuple[State, dict[int, list[Any]]]:
            now = {**state, **moving}
            sums = list(totals)
            for i, x in zip(own, moving["totals"], strict=True):
                sums[i] = x
            made: dict[int, list[Any]] = {}
            out: Mapping[Value, Any] = {}
            for j in range(1 + parts.last):
                entering: list[Any] | None = None
                if j in segments:
                    entering, made[j] = self._segment(j, row, operands[0], out, sums)
                if j in runs:
                    out = self._run(j, row, operands, now, entering, sums, j in passing)
            now["totals"] = [sums[i] for i in own]
            return {name: now[name] for name in moving}, made

        moving = {name: state[name] for name in sorted(changed)}
        self.staged.append(len(jax.tree.leaves(moving)))
        moving["totals"] = [totals[i] for i in own]
        arrays = {name: jnp.asarray(x) for name, x in rows.items()}
        after, made = lax.scan(tick, moving, arrays, length=stop - start)
        totals = list(totals)
        for i, x in zip(own, after.pop("totals"), strict=True):
            totals[i] = x
        return {**state, **after}, totals, made

    def _kind(self, run: int) -> str:
        return FORWARD if run < len(self._parts.stacks) else BACKWARD

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
        leaves = self._stages - 1 if self._kind(segment - 1) == FORWARD else 0
        known = dict(operands.of_microbatch(row[f"segment{segment}"]))
        known |= {v: at_stage(x, leaves) for v, x in out.items()}
        entering: list[Operand] = []
        if segment < parts.last:
            entering = [*parts.runs[segment][1].carry, *parts.travelling[segment]]
        mine, loop = parts.totals_in(segment), parts.stacks[0]
        added = [loop.totals[i].added for i in mine]
        news = [loop.totals[i].new if x is None else x for i, x in zip(mine, added, strict=True)]
        rows = [loop.rows[i] for i in parts.rows_in(segment)]
        known |= {loop.totals[i].argument: sums[i] for i in mine}
        found = iter(self._values.compute([*entering, *news, *rows], known))
        enter = [next(found) for _ in entering]
        if valid is not None and self._kind(segment) == BACKWARD and entering:
            cotangents = len(parts.runs[segment][1].carry)
            enter[:cotangents] = [masked(x, valid) for x in enter[:cotangents]]
        for i, x in zip(mine, added, strict=True):
            new, old = next(found), sums[i]
            if x is None:
                sums[i] = new if valid is None else jnp.where(valid, new, old)
            else:
                sums[i] = old + (new if valid is None else masked(new, valid)).astype(old.dtype)
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
        forward = self._kind(run) == FORWARD
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
            carry = [
                with_stage(x, first, jnp.zeros_like(x[0]), row.get(f"last{run}"))
                if i < count
                else x
                for i, x in enumerate(carry)
            ]
        travelling = dict(zip(parts.travelling[run], carry[count:], strict=True))
        consts, axes = self._consts(layers, row[f"microbatch{run}"], operands[k], travelling)
        stack, kept = parts.stacks[k], self._kept[k]
        chunk = row.get(f"chunk{run}", jnp.zeros(self._stages, jnp.int32))
        if forward:
            given = dict(enumerate(operands[k].forward))
            given |= {len(layers.stacked) + j: x for j, x in operands[k].fixed.items()}
            out, stacks = self._layers.run(layers, consts, axes, carry[:count], given, {}, chunk)
            at, writes = row[f"slot{run}"], row.get(f"writes{run}")
            news = [stacks[j] for j in kept]
            state[f"slots{k}"] = stored(state[f"slots{k}"], news, at, writes)
        else:
            slots = dict(zip(kept, state[f"slots{k}"], strict=True))
            at = row[f"slot{run}"]
            waiting = {i: read(slots[j], at) for i, j in stack.residuals.items() if j in slots}
            out, gradients = self._layers.run(
                layers,
                consts,
                axes,
                carry[:count],
                operands[k].backward,
                waiting,
                chunk,
                stack.summed,
            )
            to = chunk if self._chunks > 1 else None
            for i, total in enumerate(stack.totals):
                if total.stack is not None:
                    sums[i] = with_gradients(total, sums[i], gradients[total.stack], to)
        passed, wrap = (*out, *travelling.values()), self._chunks > 1
        state[f"carry{run}"] = [shifted(x, by, wrap) for x in passed]
        return {**travelling, **dict(zip(layers.finals, out, strict=True))}

    def _consts(
        self,
        layers: Layers,
        microbatches: Any,
        operands: Operands,
        travelling: Mapping[Value, Any],
    ) -> tuple[list[Any], list[int | None]]:
        """Operands of every layer, by stage if different between microbatches, and axes."""
        stack = self._parts.stacks[0]
        passed = {x for x in layers.consts if isinstance(x, Value) and x in travelling}
        own = [x for x in layers.consts if stack.varies(x) and x not in passed]
        alike = [x for x in layers.consts if not stack.varies(x) and x not in passed]
        same = iter(self._values.compute(alike, operands.known))
        different: Iterator[Any] = iter(())
        if own:
            for_stages: Callable[..., list[Any]] = jax.vmap(
                lambda number: self._values.compute(own, operands.of_microbatch(number))
            )
            different = iter(for_stages(microbatches))
        consts, axes = list[Any](), list[int | None]()
        for x in layers.consts:
            if x in passed:
                consts.append(travelling[x])  # type: ignore[index]
                axes.append(0)
            else:
                varies = stack.varies(x)
                consts.append(next(different) if varies else next(same))
                axes.append(0 if varies else None)
        return consts, axes


def stack_schedules(schedule: PipelineSchedule, stacks: int) -> list[PipelineSchedule]:
    """Schedules of the stacks of a pipeline."""
    return [dataclasses.replace(schedule, stacks=stacks, place=k) for k in range(stacks)]


def _zeros(leading: tuple[int, ...], shape: Sequence[int], dtype: Any) -> Any:
    return jnp.zeros((*leading, *shape), dtype)
