"""`shift`: a dim read from an offset, with boundaries; covers rolls and padded arrays.

Not a primitive of jax: `passes.views` writes it for equivalent slices and concatenations. Element p
of the result is element ``p + first`` of the operand; `ir.boundaries` defines the elements beyond
the operand's ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partir_search.ir.boundaries import Beyond, taken
from partir_search.ir.core import Op
from partir_search.ir.rule import InputWindow, OpRule
from partir_search.rules.registry import register, result_shape
from partir_search.rules.resizing import SHIFT as SHIFT_RESIZING
from partir_search.rules.shifts import LITTLE, windowed_rule

SHIFT = "shift"


def beyond_of(op: Op) -> Beyond:
    """Boundary modes of the shifted dim."""
    p = op.params
    return Beyond(p["extent"], p["below"], p["above"])


@register(SHIFT)
def shift(op: Op) -> OpRule:
    """A tile reads its window of the shifted dim, boundaries included."""
    result, p, beyond = result_shape(op), op.params, beyond_of(op)
    dim, first, n = p["dimension"], p["first"], p["extent"]
    around = beyond.below == beyond.above == "wrap"
    low = (first + n // 2) % n - n // 2 if around else first  # the nearer way around
    off = max(abs(low), abs(low + result[dim] - n))
    reads = InputWindow(0, dim, 1, first, propagates_both_ways=off <= LITTLE * n, beyond=beyond)
    fields: dict[str, Any] = {"resizing": SHIFT_RESIZING, "local": _local}
    if "" in (beyond.below, beyond.above):  # zeros may be the maximum or minimum
        fields["monotone"] = ()
    return windowed_rule(op, [reads], **fields)


def _local(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """The window itself if the dim is tiled, or the shifted array."""
    (x,) = args
    dim = op.params["dimension"]
    if ctx.tiles(dim) > 1:
        return [x]
    return [taken(x, dim, op.params["first"], result_shape(op)[dim], beyond_of(op))]
