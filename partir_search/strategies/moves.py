"""Moves of the known strategies: data, model, expert, edge, sequence parallelism, ZeRO ...

A move becomes tile and replicate decisions that depend on the state (undecided dims, partial sums):
one ZeRO move serves any model.
"""

from __future__ import annotations

import dataclasses
from typing import Union

Axes = tuple[int, ...]  # positions in the mesh, major to minor


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass:
    """Tile one dim of a class on axes, or on sub-axes of one axis.

    Attributes:
      barriers: classes left undecided by propagation.
    """

    cls: int
    dim: int
    axes: Axes
    barriers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ReplicateClass:
    """Keep a class replicated along axes."""

    cls: int
    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileAlike:
    """Tile one dim of several classes, skipping illegal tiles: parameters of one shape, in layers
    without a fold.
    """

    classes: tuple[int, ...]
    dim: int
    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class DataParallel:
    """Tile the leading dim of every data argument."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class EdgeParallel:
    """Tile the leading dim of the longest data arguments only: the edges of a graph, with its nodes
    replicated (PartIR's ES on graph networks).
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ExpertParallel:
    """Tile the experts of a mixture (GShard, arXiv 2006.16668): the dim shared by a parameter, the
    second operand of its contraction and the result.

    Applied before data parallelism on equal axes, with barriers on inputs and outputs of the
    experts: data parallelism tiles these, and tokens reach the experts by all_to_all.
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ModelParallel:
    """Megatron (Shoeybi et al. 2019): tile the outputs of each parameter contracted with an
    activation not tiled on the axes; propagation tiles the inputs of the next parameter.

    Attributes:
      head: include the last parameter, the output head.
    """

    axes: Axes
    head: bool


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SequenceParallel:
    """Tile activations between blocks: results of sums over the axes (Korthikanti et al. 2022)."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ContextParallel:
    """Tile the sequences of queries and keys in attention; propagation tiles activations.

    Source: Llama 3.1, arXiv 2407.21783, section 3.3.2.
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class AlternateParallel:
    """Tile inputs and outputs of each matrix on two sets of axes, swapped from matrix to matrix.

    The tiles of the incoming activation decide; the first matrix has its inputs on `inputs`.
    """

    inputs: Axes
    outputs: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class OutputParallel:
    """Tile the outputs of every matrix, last matrix first; activations are gathered (SUMMA)."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Zero:
    """ZeRO (Rajbhandari et al. 2020) on matrices.

    Attributes:
      stage: 2 replicates parameters and tiles optimizer state, hence gradients; 3 tiles parameters
        as well.
    """

    axes: Axes
    stage: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RingParallel:
    """PrimePar's P_{n x n} (ASPLOS 2024) in the form without redistribution.

    Matrices are tiled on one of two axes and on their diagonal: every product with one is a ring.
    Inputs and outputs swap the two from matrix to matrix, after the tiles of the incoming
    activation. The second axis is for data parallelism, applied before.

    Attributes:
      axes: the axis of the residual stream's features, and the diagonal.
    """

    axes: Axes


Decision = Union[TileClass, ReplicateClass]
Strategy = Union[
    AlternateParallel,
    ContextParallel,
    DataParallel,
    EdgeParallel,
    ExpertParallel,
    ModelParallel,
    OutputParallel,
    RingParallel,
    SequenceParallel,
    TileAlike,
    Zero,
]
StrategyMove = Union[Decision, Strategy]
