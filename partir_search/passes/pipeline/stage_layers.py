"""Layers of all stages in a tick, each stage on a carry of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Value
from partir_search.passes.pipeline.body_values import BodyValues
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.stage_arrays import layer_of, masked


class StageLayers:
    """Runs the layers of each stage."""

    def __init__(self, values: BodyValues, stages: int, chunks: int) -> None:
        self._values, self._stages, self._chunks = values, stages, chunks

    def run(
        self,
        layers: Layers,
        consts: Sequence[Any],
        axes: Sequence[int | None],
        carry: Sequence[Any],
        given: Mapping[int, Any],
        rows: Mapping[int, Any],
        chunk: Any,
        summed: Collection[int] = (),
    ) -> tuple[list[Any], list[Any]]:
        """Carries and stacks of the layers of each stage, each on a carry of its own.

        Args:
          axes: of stages in `consts`.
          given: stacked operands of all layers, by position, as in `by_stage`; beyond them, stacks
            of the layers known beforehand.
          rows: stacked operands of the chunk, by position, [layers of a chunk, stages, ...].
          chunk: number of the chunk, by stage.
          summed: stacks to be summed over the layers, by position.
        """
        count, cuts = len(carry), self._stages * self._chunks
        length = -(-layers.count // cuts)
        found = {**given, **rows}
        needed = self._needed(layers, found)
        rows = {i: x for i, x in found.items() if i in needed and (i in rows or self._chunks == 1)}
        whole = {i: x for i, x in given.items() if i in needed and i not in rows}

        def stage(consts: Any, carry: Any, rows: Any, whole: Any, chunk: Any, at: Any) -> Any:
            def layer(carry: Any, step: Any) -> Any:
                number, found = step
                own = {i: layer_of(x, chunk, number) for i, x in whole.items()}
                found = {**found, **own}
                operands = len(layers.stacked)
                stacked = [found.get(i) for i in range(operands)]
                known = {count + i - operands: x for i, x in found.items() if i >= operands}
                out = self._values.call(layers.region, [*consts, *carry, *stacked], known)
                carried = out[:count]
                if layers.count % cuts:  # further layers pass on their operand
                    here = (chunk * self._stages + at) * length + number < layers.count
                    carried = [
                        jnp.where(here, new, old) for new, old in zip(out, carry, strict=False)
                    ]
                    for i in summed:
                        out[count + i] = masked(out[count + i], here)
                return carried, out[count:]

            numbers = lax.iota(jnp.int32, length)
            return lax.scan(layer, carry, (numbers, rows), length=length, reverse=layers.reverse)

        run = jax.vmap(stage, in_axes=(list(axes), 0, 1, 0, 0, 0), out_axes=(0, 1))
        places = lax.iota(jnp.int32, self._stages) if layers.count % cuts else None
        out, stacks = run(list(consts), list(carry), rows, whole, chunk, places)
        return out, stacks

    def _needed(self, layers: Layers, found: Iterable[int]) -> set[int]:
        """Positions of `found` read by a layer: an operand behind a known stack is not."""
        operands, first = len(layers.stacked), len(layers.consts) + len(layers.carry)
        results, args = layers.region.results, layers.region.args[first:]
        known = {i for i in found if i >= operands}
        made = {results[len(layers.carry) + i - operands] for i in known}
        inner = BodyValues(layers.region, self._values.constants)
        read = inner.read(results, {x for x in made if isinstance(x, Value)})
        return known | {i for i, argument in enumerate(args) if argument in read}
