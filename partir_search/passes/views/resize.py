"""Resizes of a grid: products with a banded matrix known at planning time.

`jax.image.resize` multiplies each dim by a matrix of weights computed from the sizes. An output
depends on a few inputs nearby: the same offsets in each block of the grid, scaled where an end of
the grid cuts the band. The product is a weighted sum of the grid shifted by whole blocks.
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
from partir_search.passes.views.constant_arrays import ConstantArrays
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

MIN_EXTENT = 8  # elements, in input and output, of a dim worth rewriting
MAX_TAPS = 16  # inputs of an output, in blocks
MAX_PHASES = 8  # inputs, and outputs, of a block
WEIGHT_TOL = 1e-6  # largest difference of equal weights

Floats = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Band:
    """A banded matrix of `blocks` equal blocks [inputs, outputs].

    Attributes:
      blocks: number of blocks.
      inputs: rows of a block.
      outputs: columns of a block.
      taps: (offset of an input from the first of its block, weight for each output of the block).
      before: factor for each input; None if all are 1.
      after: factor for each output; None if all are 1.
    """

    blocks: int
    inputs: int
    outputs: int
    taps: tuple[tuple[int, tuple[float, ...]], ...]
    before: Floats | None
    after: Floats | None


def write_resize(
    writer: Writer, op: Op, arrays: ConstantArrays, constants: dict[int, tuple[Value, Any]]
) -> bool:
    """Writes a product with a banded matrix of known weights; False if the op is none.

    A regular band becomes a sum of shifts, a further narrow band one op that reads within the band.

    Args:
      arrays: constant arrays of the region.
      constants: receives (value, array) of constants added.
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
        contracted, dim = contract[side][0], contract[1 - side][0]
        if len(matrix.type.shape) != 2 or not isinstance(x, Value):
            continue
        inputs, outputs = matrix.type.shape[contracted], matrix.type.shape[1 - contracted]
        weights = arrays.array(matrix) if min(inputs, outputs) >= MIN_EXTENT else None
        if weights is None:
            continue
        weights = weights if contracted == 0 else weights.T
        band = (
            _band(weights)
            if same and x.type.dtype in wide and _is_regular(inputs, outputs)
            else None
        )
        if band is None and _write_banded(writer, op, side, weights):
            return True
        if band is not None:
            made = _write_taps(writer, op, x, dim, band, constants)
            order = list(range(len(x.type.shape)))
            order.remove(dim)
            order = [dim, *order] if side == 0 else [*order, dim]
            writer.put(op, transposed(made, order), op.results[0])
            return True
    return False


def _write_banded(writer: Writer, op: Op, side: int, weights: Floats) -> bool:
    """Writes a product with `weights` [inputs, outputs] as one that reads within their band.

    Returns:
      False, with no op written, if the band is wide.
    """
    n = len(weights)
    nonzero = weights != 0
    lows = np.where(nonzero.any(0), nonzero.argmax(0), n)
    highs = n - 1 - nonzero[::-1].argmax(0)
    band = band_of(lows, np.where(lows == n, -1, highs), n)
    if band.off > LITTLE * n:
        return False
    params = {**op.params, "matrix": side, "band": dataclasses.astuple(band)}
    (result,) = op.results
    writer.put(op, NewOp(BANDED, None, op.operands, params, result.type), result)
    return True


def _is_regular(n: int, m: int) -> bool:
    """True if a resize from `n` to `m` elements repeats in many small blocks."""
    blocks = math.gcd(n, m)
    return n // blocks <= MAX_PHASES and m // blocks <= MAX_PHASES and blocks >= MIN_EXTENT // 2


def _band(weights: Floats) -> _Band | None:
    """Returns the repeated band of a matrix [inputs, outputs], or None if it is irregular."""
    n, m = weights.shape
    blocks = math.gcd(n, m)
    ins, outs = n // blocks, m // blocks
    middle = blocks // 2
    middle_block = weights[:, middle * outs : (middle + 1) * outs]
    rows = np.flatnonzero(np.abs(middle_block).max(1) > WEIGHT_TOL)
    if not len(rows) or rows[-1] - rows[0] >= MAX_TAPS * ins:
        return None
    offsets = rows - middle * ins
    tapped = middle_block[rows]
    repeated = np.zeros_like(weights)
    columns = np.arange(m).reshape(blocks, outs)
    for offset, values in zip(offsets.tolist(), tapped, strict=True):
        targets = np.arange(blocks) * ins + offset
        inside = (targets >= 0) & (targets < n)
        repeated[targets[inside, None], columns[inside]] = values
    for axis in (0, 1):
        sums = repeated.sum(axis, keepdims=True)
        factor = weights.sum(axis, keepdims=True) / np.where(sums == 0, 1, sums)
        if np.abs(repeated * factor - weights).max() <= WEIGHT_TOL * np.abs(weights).max():
            scale = None if np.abs(factor - 1).max() <= WEIGHT_TOL else factor.ravel()
            taps = tuple(
                (o, tuple(v.tolist())) for o, v in zip(offsets.tolist(), tapped, strict=True)
            )
            before, after = (scale, None) if axis == 1 else (None, scale)
            return _Band(blocks, ins, outs, taps, before, after)
    return None


def _write_taps(
    writer: Writer,
    op: Op,
    x: Value,
    dim: int,
    band: _Band,
    constants: dict[int, tuple[Value, Any]],
) -> Value:
    """Returns `x` with a dim resized by a band."""
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
            if abs(values[p]) <= WEIGHT_TOL:
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
    """Returns the inputs at an offset from the first of each block; zeros beyond the ends."""
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
    """Returns `x` times a factor for each element of a dim."""
    kind = dataclasses.replace(x.type, shape=factor.shape)
    scale = Value(-1, kind, writer.names(f"{op.results[0].name}_scale"))
    array = np.asarray(factor, x.type.dtype)
    constants[id(array)] = scale, array
    wide = writer.put(op, broadcast(scale, x.type.shape, (dim,)))
    return writer.put(op, multiplied(x, wide))


def _scalar(kind: TensorType) -> TensorType:
    """Returns the type of a scalar with the same dtype."""
    return dataclasses.replace(kind, shape=())
