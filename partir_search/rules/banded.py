"""`banded`: product with a banded matrix, such as a resize of a grid.

Not a primitive of jax: `passes.views` writes it for a `dot_general` with a matrix that depends on
no argument and is zero far from its diagonal. The matrix stays an operand; of the second operand,
tiles read only the elements inside of the band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.bands import Band
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, InputWindow, OpRule, Resizing
from partir_search.rules.registry import register, shape_of
from partir_search.rules.remaps import reads

BANDED = "banded"


@register(BANDED)
def banded(op: Op) -> OpRule:
    """A tile of outputs reads the window of the dim covered by its stretch of the band.

    Params are those of the `dot_general`; `matrix`, position of the matrix among the operands; and
    `band`, (step, over, first, width) of `ir.bands.Band`. The matrix is replicated: its gradient
    multiplies with the transposed matrix and would need different tilings.
    """
    at, (contract, _) = op.params["matrix"], op.params["dimension_numbers"]
    along, dim = contract[at][0], contract[1 - at][0]
    shape, n = shape_of(op, 1 - at), shape_of(op, at)[along]
    rest = [d for d in range(len(shape)) if d != dim]
    made = [dim, *rest] if at == 0 else [*rest, dim]  # operand's dim, per dim of the result
    factors = tuple(made.index(d) for d in range(len(shape)))
    matrix = [NONE, NONE]
    matrix[1 - along] = factors[dim]
    ordered = (factors, tuple(matrix)) if at == 1 else (tuple(matrix), factors)
    return OpRule(
        Kind.CONTRACTION,
        sizes=op.results[0].type.shape,
        operands=ordered,
        results=(tuple(range(len(shape))),),
        reducers=("",) * len(shape),
        reads=(
            reads(dim, Band(*op.params["band"]), n, 1 - at),
            InputWindow(at, 1 - along, propagates_both_ways=False),
        ),
        linear=((1 - at,),),
        flops_per_point=2.0 * n,
        resizing=Resizing(lambda op, operands, results: op, masked=frozenset({(1 - at, dim)})),
        local=_local,
    )


def _local(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Product of a window with the matching rows of the matrix."""
    p = op.params
    at, (contract, _) = p["matrix"], p["dimension_numbers"]
    along, dim = contract[at][0], contract[1 - at][0]
    x, matrix = args[1 - at], args[at]
    rule = banded(op)
    f, read = rule.operands[1 - at][dim], rule.window_on(1 - at, dim)
    n, size = matrix.shape[along], x.shape[dim]
    if ctx.tiles(f) == 1:
        x = lax.slice_in_dim(x, 0, n, axis=dim)
    elif read is not None:
        points = rule.sizes[f] // ctx.tiles(f)
        starts = np.array([read.tile_window(i, points)[0] for i in range(ctx.tiles(f))])
        low, high = max(-starts.min(), 0), max(starts.max() + size - n, 0)
        config = [(int(low), int(high), 0) if d == along else (0, 0, 0) for d in (0, 1)]
        matrix = lax.pad(matrix, jnp.zeros((), matrix.dtype), config)
        start = jnp.asarray(starts + low, jnp.int32)[ctx.tile_index(f)]
        matrix = lax.dynamic_slice_in_dim(matrix, start, size, along)
    ins = (x, matrix) if at == 1 else (matrix, x)
    kept = {k: p[k] for k in ("precision", "preferred_element_type")}
    return [lax.dot_general(*ins, p["dimension_numbers"], **kept)]
