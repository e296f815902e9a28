"""`Kind`: category of an op, given by its rule."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """Category of an op, as a compiler distinguishes them.

    Attributes:
      CONTRACTION: multiplies operands and sums over shared dims: matrix products, convolutions,
        attention. Runs on matrix units.
      ELEMENTWISE: each element is computed from those at the same position.
      REDUCTION: combines the elements of a dim or of each window.
      CUMULATIVE: combines each element with all before it.
      MOVEMENT: copies elements to new positions or makes them from positions: reshape, slice, pad,
        concatenate, broadcast, iota.
      GATHER: reads elements at indices.
      SCATTER: combines updates into elements at indices.
      UPDATE: writes a block into an array at indices.
      ORDER: sorts, or finds the largest.
      DECOMPOSITION: factors or solves matrices; Fourier transforms.
      RANDOM: draws random numbers or derives keys.
      IDENTITY: returns its operands; constrains their layout, order or memory.
      KERNEL: a kernel written by the user. A compiler fuses nothing into the kernel.
      EFFECT: calls back to the host.
      REGION: runs regions of ops.
      OPAQUE: has no rule; runs replicated and is named in the report.
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
    KERNEL = "kernel"
    EFFECT = "effect"
    REGION = "region"
    OPAQUE = "opaque"


MOVING = frozenset({Kind.GATHER, Kind.IDENTITY, Kind.MOVEMENT, Kind.SCATTER, Kind.UPDATE})
"""Kinds of ops that move elements without arithmetic, but for the sums of a scatter."""
