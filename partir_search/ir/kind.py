"""`Kind`: what an op does, said by its rule."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """Category of an op, as a compiler sees it.

    Attributes:
      CONTRACTION: multiplies operands and sums over dims that they share: matrix products,
        convolutions, attention. Runs on matrix units.
      ELEMENTWISE: makes each element from those in the same place.
      REDUCTION: combines the elements of a dim, or of each window.
      CUMULATIVE: combines each element with those before it.
      MOVEMENT: puts elements elsewhere or makes them from their places: reshape, slice, pad,
        concatenate, broadcast, iota.
      GATHER: reads what indices say.
      SCATTER: combines updates with what indices say.
      UPDATE: writes a block into an array where indices say.
      ORDER: sorts, or finds the largest.
      DECOMPOSITION: factors or solves matrices; Fourier transforms.
      RANDOM: draws numbers, or derives keys.
      IDENTITY: returns its operands; says where or how they are to be.
      EFFECT: calls back to the host.
      REGION: runs regions of ops.
      OPAQUE: has no rule; runs replicated, and the report names it.
    """

    CONTRACTION = "contraction"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CUMULATIVE = "cumulative"
    MOVEMENT = "movement"
    GATHER = "gather"
    SCATTER = "scatter"
    UPDATE = "update"
    ORDER = "order"
    DECOMPOSITION = "decomposition"
    RANDOM = "random"
    IDENTITY = "identity"
    EFFECT = "effect"
    REGION = "region"
    OPAQUE = "opaque"
