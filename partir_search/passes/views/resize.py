"""Resizes of a grid: products with a banded matrix, and look-ups at evenly spaced places.

`jax.image.resize` multiplies each dim by a matrix of weights that it works out from the sizes. An
output depends on a few inputs beside it: the same few of every block of the grid, scaled where the
matrix is cut off at an end. That is a weighted sum of the grid shifted by whole blocks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from partir_search.ir.bands import band_of
from partir_search.ir.core import Literal, Op, TensorType, Value
from partir_search.ir.reducers import number_of
from partir_search.ir.role import Role
from partir_search.passes.views.known import Known
from partir_search.passes.views.write import Writer
from partir_search.rules.banded import BANDED
from partir_search.rules.construct import (
    NewOp,
    added,
    broadcast,
    concatenated,
    multiplied,
    padded,
    reshaped,
    sliced,
    transposed,
    zero,
)
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import LITTLE

LEAST = 8  # elements of a dim that is resized so
MOST_TAPS, MOST_PHASES = 16, 8
NEAR = 1e-6  # weights as near as this are equal

Floats = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Band:
    """A banded matrix of `blocks` blocks: of [inputs, outputs] each.

    Attributes:
      taps: (offset of an input from its block's first, weight per output of the block).
      before / after: factor per input, and per output; None if all are one.
    """

    blocks: int
    inputs: int
    outputs: int
    taps: tuple[tuple[int, tuple[float, ...]], ...]
    before: Floats | None
    after: Floats | None


def resized(writer: Writer, op: Op, known: Known, constants: dict[int, tuple[Value, Any]]) -> bool:
    """Writes a product with a banded matrix of known weights as a sum of shifts, or as a product
    that reads what lies in the band.
    """
    if role_of(op) is not Role.DOT:
        return False
    (contract, batch), kinds = op.params["dimension_numbers"], [x.type for x in op.operands]
    if any(batch) or len(contract[0]) != 1:
        return False
    wide = np.dtype(np.float32), np.dtype(np.float64)
    same = op.results[0].type.dtype == kinds[0].dtype == kinds[1].dtype
    for side in (0, 1):
        x, matrix = op.operands[1 - side], op.operands[side]
        along, dim = contract[side][0], contract[1 - side][0]
        if len(matrix.type.shape) != 2 or not isinstance(x, Value):
            continue
        n, m = matrix.type.shape[along], matrix.type.shape[1 - along]
        weights = known.array(matrix) if min(n, m) >= LEAST else None
        if weights is None:
            continue
        weights = weights if along == 0 else weights.T
        band = _band(weights) if same and x.type.dtype in wide and _regular(n, m) else None
        if band is None and _narrow(writer, op, side, weights):
            return True
        if band is not None:
            made = _write(writer, op, x, dim, band, constants)
            order = list(range(len(x.type.shape)))
            order.remove(dim)
            order = [dim, *order] if side == 0 else [*order, dim]
            writer.put(op, transposed(made, order), op.results[0])
            return True
    return False


def _narrow(writer: Writer, op: Op, side: int, weights: Floats) -> bool:
    """Writes a product as one that reads a band of [inputs, outputs] `weights`, if it is narrow."""
    n = len(weights)
    held = weights != 0
    lows = np.where(held.any(0), held.argmax(0), n)
    highs = n - 1 - held[::-1].argmax(0)
    band = band_of(lows, np.where(lows == n, -1, highs), n)
    if band.off > LITTLE * n:
        return False
    params = {**op.params, "matrix": side, "band": dataclasses.astuple(band)}
    (result,) = op.results
    writer.put(op, NewOp(BANDED, None, op.operands, params, result.type), result)
    return True


def _regular(n: int, m: int) -> bool:
    blocks = math.gcd(n, m)
    return n // blocks <= MOST_PHASES and m // blocks <= MOST_PHASES and blocks >= LEAST // 2


def _band(weights: Floats) -> _Band | None:
    """The structure of a matrix [inputs, outputs], if it is that of a resize."""
    n, m = weights.shape
    blocks = math.gcd(n, m)
    ins, outs = n // blocks, m // blocks
    middle = blocks // 2
    part = weights[:, middle * outs : (middle + 1) * outs]
    held = np.flatnonzero(np.abs(part).max(1) > NEAR)
    if not len(held) or held[-1] - held[0] >= MOST_TAPS * ins:
        return None
    offsets = held - middle * ins
    tapped = part[held]
    plain = np.zeros_like(weights)
    columns = np.arange(m).reshape(blocks, outs)
    for offset, values in zip(offsets.tolist(), tapped, strict=True):
        rows = np.arange(blocks) * ins + offset
        inside = (rows >= 0) & (rows < n)
        plain[rows[inside, None], columns[inside]] = values
    for axis in (0, 1):
        sums = plain.sum(axis, keepdims=True)
        factor = weights.sum(axis, keepdims=True) / np.where(sums == 0, 1, sums)
        if np.abs(plain * factor - weights).max() <= NEAR * np.abs(weights).max():
            scale = None if np.abs(factor - 1).max() <= NEAR else factor.ravel()
            taps = tuple(
                (o, tuple(v.tolist())) for o, v in zip(offsets.tolist(), tapped, strict=True)
            )
            before, after = (scale, None) if axis == 1 else (None, scale)
            return _Band(blocks, ins, outs, taps, before, after)
    return None


def _write(
    writer: Writer,
    op: Op,
    x: Value,
    dim: int,
    band: _Band,
    constants: dict[int, tuple[Value, Any]],
) -> Value:
    """`x` with a dim resized."""
    if band.before is not None:
        x = _scaled(writer, op, x, dim, band.before, constants)
    rest = x.type.shape
    grid = (*rest[:dim], band.blocks, band.inputs, *rest[dim + 1 :])
    blocks = writer.put(op, reshaped(x, grid))
    shape = (*rest[:dim], band.blocks, 1, *rest[dim + 1 :])
    shifted = {o: _tap(writer, op, blocks, dim, o, band.inputs, shape) for o, _ in band.taps}
    phases = []
    for p in range(band.outputs):
        total: Value | None = None
        for offset, values in band.taps:
            if abs(values[p]) <= NEAR:
                continue
            weight = Literal(number_of(values[p], x.type.dtype), _scalar(x.type))
            term = writer.put(op, multiplied(shifted[offset], weight))
            total = term if total is None else writer.put(op, added(total, term))
        phases.append(total if total is not None else writer.full(op, zero(x.type), shape))
    made = phases[0]
    if len(phases) > 1:
        made = writer.put(op, concatenated(phases, dim + 1))
    out = (*rest[:dim], band.blocks * band.outputs, *rest[dim + 1 :])
    made = writer.put(op, reshaped(made, out))
    return made if band.after is None else _scaled(writer, op, made, dim, band.after, constants)


def _tap(
    writer: Writer, op: Op, blocks: Value, dim: int, offset: int, inputs: int, shape: Any
) -> Value:
    """The inputs at an offset from each block's first; zeros beyond the ends."""
    by, at = divmod(offset, inputs)
    x = blocks
    if inputs > 1:
        starts = [at if d == dim + 1 else 0 for d in range(len(shape))]
        ends = [s + n for s, n in zip(starts, shape, strict=True)]
        x = writer.put(op, sliced(x, starts, ends))
    if by:
        config = [(-by, by, 0) if d == dim else (0, 0, 0) for d in range(len(shape))]
        x = writer.put(op, padded(x, zero(x.type), config))
    return x


def _scaled(
    writer: Writer,
    op: Op,
    x: Value,
    dim: int,
    factor: Floats,
    constants: dict[int, tuple[Value, Any]],
) -> Value:
    kind = dataclasses.replace(x.type, shape=factor.shape)
    held = Value(-1, kind, writer.names(f"{op.results[0].name}_scale"))
    array = np.asarray(factor, x.type.dtype)
    constants[id(array)] = held, array
    wide = writer.put(op, broadcast(held, x.type.shape, (dim,)))
    return writer.put(op, multiplied(x, wide))


def _scalar(kind: TensorType) -> TensorType:
    return dataclasses.replace(kind, shape=())
