"""Equal layers of an unrolled program, as scans over layers.

`roll(module)` returns `Rolled`: a module of ordinary ops, and `pairs`, the scans over layers by
region. In the region of a pair stand, in program order::

    ops on single layers             casts of weights, read by the backward pass too
    stack_layers                     one for each parameter of a layer: [layers, *shape]
    scan (pair.forward)              consts, carry, parameters -> last carry, stacks (residuals)
    unstack_layers                   only of stacks read layer by layer by further ops
    further ops                      head, loss
    scan reverse (pair.backward)     consts, carry, parameters and residuals -> carry, gradients
    unstack_layers                   one for each gradient, read by the optimizer

Element i of every stack belongs to layer i, in the backward scan too, run with `reverse`.
Operands of a scan are [consts, carry, stacked operands], results [last carry, stacked results];
arguments and results of the region belong to one layer, in the same order. A residual is a stacked
result of the forward scan and a stacked operand of the backward scan, without ops in between; if
the backward pass recomputes the layer, the carry entering the layer is a residual
(`LayerScan.carry_stacks`). Both scans read one stack of each parameter.

`layer_scans(region)` describes the scans of any region in the same way, written by `lax.scan` and
its transposition as well. `operands_behind` finds the operands a residual depends on.
"""

from partir_search.passes.roll.further_ops import Again
from partir_search.passes.roll.layer_scans import (
    LayerPair,
    LayerScan,
    layer_scans,
    operands_behind,
)
from partir_search.passes.roll.roll import Path, Rolled, region_at, roll

__all__ = [
    "Again",
    "LayerPair",
    "LayerScan",
    "Path",
    "Rolled",
    "layer_scans",
    "operands_behind",
    "region_at",
    "roll",
]
