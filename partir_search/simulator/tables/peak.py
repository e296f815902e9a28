"""Peak bytes as tables: the row of the live-memory curve that is highest at a program.

A row is linear in the local bytes of values. Temporaries of redistribution are held at those of the
program.
"""

from __future__ import annotations

import numpy as np

from partir_search.exact.pairwise import ModelBuilder, PairwiseModel
from partir_search.simulator.arrays import Floats
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
    builder = ModelBuilder(shares.variables.sizes)
    builder.constant = besides + float(temporaries.bytes_at[memory.curve.position[row]])
    for v in np.flatnonzero(per_value).tolist():
        scope, share = shares.value(v)
        builder.add(scope, share * (float(per_value[v]) * float(memory.nbytes[v])))
    return builder.model()
