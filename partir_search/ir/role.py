"""`Role`: meaning of an op, given by its rule to pattern recognisers."""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """Meaning of an op. Primitives of one meaning share a role; most have none.

    Attributes:
      ADDITION: sum of two arrays; likewise SUBTRACTION, MULTIPLICATION, DIVISION.
      EXPONENTIAL: e to the power of each element.
      COMPARISON: order or equality of two arrays, as bools.
      CONJUNCTION: logical and of bools, bitwise and of integers.
      SELECTION: elements of one of several arrays, by an index array.
      CAST: elements in another dtype.
      COPY: the operand.
      INDEX_GRID: position of each element along a dim.
      BROADCAST: new dims, and dims of one element repeated.
      SQUEEZE: removes dims of one element.
      PADDING: adds elements at ends of dims and between elements, or removes them at ends.
      SUM: sum over dims.
      POOLING: reduction of each window by a monoid.
      SCATTER: combines updates into elements at indices.
      DYNAMIC_SLICE: slice from indices on; DYNAMIC_UPDATE: writes a slice.
      SCAN: a loop with a fixed number of iterations.
      CHECKPOINT: a region that runs once, its values computed again in the backward pass.
      STACK: arrays of one program, stacked to compute the program once.
      LAYERS: arrays of layers, stacked for a scan over the layers.
      ROWS_OF_LAYERS: arrays of layers, taken from a stack made by a scan over the layers.
      KEPT: the second operand, a stored value equal to the first.
    """

    ADDITION = "addition"
    SUBTRACTION = "subtraction"
    MULTIPLICATION = "multiplication"
    DIVISION = "division"
    NEGATION = "negation"
    EXPONENTIAL = "exponential"
    COMPARISON = "comparison"
    CONJUNCTION = "conjunction"
    SELECTION = "selection"
    CAST = "cast"
    COPY = "copy of the operand"
    INDEX_GRID = "index grid"
    BROADCAST = "broadcast"
    RESHAPE = "change of shape"
    SQUEEZE = "removal of dims"
    TRANSPOSITION = "transposition"
    SLICE = "static slice"
    PADDING = "padding"
    CONCATENATION = "concatenation"
    REVERSAL = "reversal"
    SUM = "sum over dims"
    DOT = "dot product"
    CONVOLUTION = "convolution"
    POOLING = "pooling"
    GATHER = "look-up"
    SCATTER = "indexed update"
    DYNAMIC_SLICE = "dynamic slice"
    DYNAMIC_UPDATE = "dynamic update"
    SCAN = "counted loop"
    CHECKPOINT = "recomputed region"
    STACK = "stack of arrays"
    LAYERS = "stack of layers"
    ROWS_OF_LAYERS = "arrays of a stack of layers"
    KEPT = "stored value"
