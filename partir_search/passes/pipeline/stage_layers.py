"""Layers of all stages in a tick, each stage on a carry of its own.

Rows of layers are read from arrays of all chunks or slots, and written to them, in the loop over
layers: a stack of a tick's rows would be filled with zeros, written, and read once more.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Value
from partir_search.passes.pipeline.body_values import BodyValues
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.stage_arrays import layer_of, masked, row_added, row_written


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Rows of the layers of a tick in an array.

    Attributes:
      array: [stages, places, layers of a chunk, ...]; to be written, also [stages, ...] for the sum
        of all rows.
      at: [stages] numbers of the places: chunks or slots.
      adds: True to add to the rows instead of overwriting them.
      valid: [stages] False for a stage that writes nothing; None if all write.
    """

    array: Any
    at: Any
    adds: bool = False
    valid: Any = None


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
        chunk: Any,
        reads: Mapping[int, Places],
        writes: Sequence[tuple[int, Places]],
        live: Any = None,
        without_item: Container[int] = (),
    ) -> tuple[list[Any], list[Any]]:
        """Carries of the layers of each stage, and the arrays written.

        Args:
          axes: of stages in `consts`.
          given: stacked operands of all layers, by position, as in `by_stage`; beyond them, stacks
            of the layers known beforehand.
          chunk: number of the chunk, by stage.
          reads: places of further stacked operands, by position.
          writes: (position of a stack, its places); further stacks are dropped.
          live: [stages] False for a stage without an item; None if all have one.
          without_item: positions of results to be zero for a stage without an item.
        """
        count, cuts = len(carry), self._stages * self._chunks
        length = -(-layers.count // cuts)
        needed = self._needed(layers, {*given, *reads})
        given = {i: x for i, x in given.items() if i in needed and i not in reads}
        rows = given if self._chunks == 1 else {}
        places = {i: Places(x, chunk) for i, x in given.items() if i not in rows}
        places |= {i: x for i, x in reads.items() if i in needed}

        def stage(
            consts: Any, carry: Any, rows: Any, whole: Any, written: Any, at: Any, place: Any
        ) -> Any:
            def layer(moving: Any, step: Any) -> Any:
                (carry, written), (number, found) = moving, step
                own = {i: layer_of(x, at["read"][i], number) for i, x in whole.items()}
                found = {**found, **own}
                operands = len(layers.stacked)
                stacked = [found.get(i) for i in range(operands)]
                known = {count + i - operands: x for i, x in found.items() if i >= operands}
                out = self._values.call(layers.region, [*consts, *carry, *stacked], known)
                carried, here = out[:count], None
                if place is not None:  # further layers pass on their operand
                    here = (at["chunk"] * self._stages + place) * length + number < layers.count
                    carried = [
                        jnp.where(here, new, old) for new, old in zip(out, carry, strict=False)
                    ]
                new = [
                    put(k, x, own_of(count + j, out, at), at, number, here)
                    for k, (j, _), x in zip(itertools.count(), writes, written)
                ]
                return (carried, new), None

            numbers = lax.iota(jnp.int32, length)
            (out, written), _ = lax.scan(
                layer, (carry, written), (numbers, rows), length=length, reverse=layers.reverse
            )
            if "live" in at:
                found = enumerate(out)
                out = [masked(x, at["live"]) if i in without_item else x for i, x in found]
            return out, written

        def own_of(i: int, out: Sequence[Any], at: Any) -> Any:
            return masked(out[i], at["live"]) if "live" in at and i in without_item else out[i]

        def put(k: int, array: Any, x: Any, at: Any, number: Any, here: Any) -> Any:
            if array.ndim == x.ndim:  # the sum of all rows
                return array + (x if here is None else masked(x, here)).astype(array.dtype)
            if writes[k][1].adds:
                return row_added(array, x, at["write"][k], number)
            return row_written(array, x, at["write"][k], number, at["valid"].get(k))

        at = {
            "chunk": chunk,
            "read": {i: x.at for i, x in places.items()},
            "write": [x.at for _, x in writes],
            "valid": {k: x.valid for k, (_, x) in enumerate(writes) if x.valid is not None},
            **({} if live is None else {"live": live}),
        }
        run = jax.vmap(stage, in_axes=(list(axes), 0, 1, 0, 0, 0, 0))
        place = lax.iota(jnp.int32, self._stages) if layers.count % cuts else None
        whole = {i: x.array for i, x in places.items()}
        written = [x.array for _, x in writes]
        out, written = run(list(consts), list(carry), rows, whole, written, at, place)
        return out, written

    def _needed(self, layers: Layers, found: Iterable[int]) -> set[int]:
        """Positions of `found` read by a layer: an operand behind a known stack is not."""
        operands, first = len(layers.stacked), len(layers.consts) + len(layers.carry)
        results, args = layers.region.results, layers.region.args[first:]
        known = {i for i in found if i >= operands}
        made = {results[len(layers.carry) + i - operands] for i in known}
        inner = BodyValues(layers.region, self._values.constants)
        read = inner.read(results, {x for x in made if isinstance(x, Value)})
        return known | {i for i, argument in enumerate(args) if argument in read}
