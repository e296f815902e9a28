"""Peak bytes as tables: a row of the live-memory curve, by default the highest at a program.

A row is linear in the local bytes of values, like the highest row of a region run at the row.
Temporaries are the copies of redistributed operands and results of the ops of the row; further
temporaries are held at the program's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder, PairwiseModel
from partir_search.ir.core import Op
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.memory.curve import Curve
from partir_search.simulator.simulator import CostModel, Simulation
from partir_search.simulator.tables.shares import Shares
from partir_search.simulator.tables.sums import Scope

LARGE_COPIES = 0.5  # of the largest temporaries of a row


def read_peak(
    model: CostModel,
    shares: Shares,
    simulated: Simulation,
    labels: Ints,
    row: int | None = None,
    position: int | None = None,
) -> PairwiseModel:
    """Bytes of a row of the curve; exact at a simulated program.

    Args:
      labels: of the program.
      row: of the curve; the highest at the program by default.
      position: position of the row whose temporaries count; those with the most by default.
    """
    memory, nbytes = model.memory, simulated.load.roofline.nbytes
    row = int(np.argmax(simulated.live)) if row is None else row
    temporaries = simulated.temporaries
    stored = ~memory.casts.mask
    stored[list(temporaries.stored_casts)] = True
    weights, besides = simulated.curve.row_weights(row, np.where(stored, nbytes, 0.0))
    per_value: Floats = memory.argument_counts.astype(np.float64, copy=True)
    per_value[: len(weights)] += np.where(stored[: len(weights)], weights, 0.0)
    positions = memory.curve.positions_of(row)
    if position is not None:
        positions = np.array([position], dtype=np.int64)
    held = temporaries.bytes_at[positions]
    builder = ModelBuilder(shares.variables.sizes)
    builder.constant = besides + float(np.max(held)) + float(simulated.waiting[row])
    ops = model.module.body.ops
    at_row = int(memory.curve.position[row])
    if at_row < len(ops) and ops[at_row].regions:
        curves, trips = memory.regions.curves, model.rules[ops[at_row].id].data_flow.trip_counts
        pairs = zip(curves[ops[at_row].id], trips, strict=True)
        inner = _inside([curve for curve, n in pairs if n], nbytes)
        per_value[: len(inner)] += inner
        builder.constant -= float(inner @ nbytes[: len(inner)])
    for v in np.flatnonzero(per_value).tolist():
        scope, share = shares.stored(v)
        builder.add(scope, share * (float(per_value[v]) * float(memory.nbytes[v])))
    # Any of the positions with large copies would be the next to hold the peak.
    counted = (held >= LARGE_COPIES * float(np.max(held))) & (held > 0.0)
    large = positions[(counted | (position is not None)) & (positions < len(ops))]
    for position in large.tolist():
        for scope, copies in _copies(shares, ops[position], memory.stored):
            builder.add(scope, copies)
            builder.constant -= float(copies[tuple(labels[x] for x in scope)])
    return builder.model()


def highest_rows(
    model: CostModel, simulated: Simulation, count: int
) -> list[tuple[float, int, int]]:
    """Bytes, row and position with the most temporaries of the highest rows, highest first."""
    found = []
    for row in np.argsort(-simulated.live, kind="stable")[:count].tolist():
        positions = model.memory.curve.positions_of(row)
        held = simulated.temporaries.bytes_at[positions]
        found.append((float(simulated.live[row]), row, int(positions[np.argmax(held)])))
    return found


def _copies(shares: Shares, op: Op, stored: Sequence[int]) -> Iterator[tuple[Scope, Floats]]:
    """Bytes of the copies of an op's operands and results in the layouts of the op's loops.

    Zero for values tiled like the loops, and for slices of results that consumers recompute.

    Args:
      stored: [values] the value is stored.
    """
    variables = shares.variables
    q = int(variables.of_op[op.id])
    if q < 0 or not variables.own_loops[op.id]:
        return
    rule = variables.graph.rules[op.id]
    operands = [(x, rule.operands[i]) for i, x in op.inputs()]
    made = {r.id for r in op.results}
    for value, dims in (*operands, *zip(op.results, rule.results, strict=True)):
        x = variables.of_value(value.id)
        if x >= 0:
            codes = variables.sets[q].codes
            needed = _tiles(rule, codes, dims)
            differing = needed[:, None, :] != variables.sets[x].codes[None, :, :]
            if value.id in made and not stored[value.id]:  # consumers recompute slices
                differing &= (codes >= 0)[:, None, :]
            differs = differing.any(axis=2)
            bytes_of = shares.of_codes(needed) * float(value.type.nbytes)
            yield (q, x), np.where(differs, bytes_of[:, None], 0.0)


def _tiles(rule: OpRule, codes: Ints, dims: Dims) -> Ints:
    """[labels, axes] dims tiled by loops; NONE for no loop or a factor of no dim."""
    found = np.full(codes.shape, NONE, dtype=np.int64)
    for f in np.unique(codes[codes >= 0]).tolist():
        found[codes == f] = rule.dim_of(dims, f)
    return found


def _inside(curves: Sequence[Curve], nbytes: Floats) -> Floats:
    """[values] weights of the highest row of regions, given the regions' curves."""
    if not curves:
        return np.zeros(0)
    live = [curve.cached_bytes_at(nbytes) for curve in curves]
    highest = max(range(len(curves)), key=lambda i: live[i][1])
    return curves[highest].row_weights(int(np.argmax(live[highest][0])), nbytes)[0]
