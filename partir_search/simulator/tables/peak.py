"""Peak bytes as tables: the row of the live-memory curve that is highest at a program.

A row is linear in the local bytes of values, and so is the highest row of a region that runs there.
Temporaries of redistribution are held at those of the program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder, PairwiseModel
from partir_search.simulator.arrays import Floats
from partir_search.simulator.memory.curve import Curve
from partir_search.simulator.simulator import CostModel, Simulation
from partir_search.simulator.tables.shares import Shares


def read_peak(model: CostModel, shares: Shares, simulated: Simulation) -> PairwiseModel:
    """Bytes of the row of the curve that is highest in a simulated program; exact there."""
    memory, nbytes = model.memory, simulated.load.roofline.nbytes
    row = int(np.argmax(simulated.live))
    temporaries = simulated.temporaries
    stored = ~memory.casts.mask
    stored[list(temporaries.stored_casts)] = True
    weights, besides = memory.curve.row_weights(row, np.where(stored, nbytes, 0.0))
    per_value: Floats = memory.argument_counts.astype(np.float64, copy=True)
    per_value[: len(weights)] += np.where(stored[: len(weights)], weights, 0.0)
    position = int(memory.curve.position[row])
    builder = ModelBuilder(shares.variables.sizes)
    builder.constant = besides + float(temporaries.bytes_at[position])
    ops = model.module.body.ops
    if position < len(ops) and ops[position].regions:
        inner = _inside(memory.regions.curves[ops[position].id], nbytes)
        per_value[: len(inner)] += inner
        builder.constant -= float(inner @ nbytes[: len(inner)])
    for v in np.flatnonzero(per_value).tolist():
        scope, share = shares.value(v)
        builder.add(scope, share * (float(per_value[v]) * float(memory.nbytes[v])))
    return builder.model()


def _inside(curves: Sequence[Curve], nbytes: Floats) -> Floats:
    """[values] weights of the highest row of all regions of an op."""
    live = [curve.cached_bytes_at(nbytes) for curve in curves]
    highest = max(range(len(curves)), key=lambda i: live[i][1])
    return curves[highest].row_weights(int(np.argmax(live[highest][0])), nbytes)[0]
