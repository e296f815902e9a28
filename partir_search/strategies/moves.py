"""The known strategies as moves: data, model, expert, edge, sequence parallelism and ZeRO.

A move looks at the state that it is played in (which dims are still free, which sums are pending)
and comes to plain tile and keep decisions, so that one ZeRO move serves any model.
"""

from __future__ import annotations

import dataclasses
from typing import Union

Axes = tuple[int, ...]  # positions in the mesh, major to minor


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileClass:
    """Tile one dim of a class on axes (all of one, or some parts of it); propagation leaves the
    classes in `barriers` undecided.
    """

    cls: int
    dim: int
    axes: Axes
    barriers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ReplicateClass:
    """Keep a class whole along axes."""

    cls: int
    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TileAlike:
    """Tile one dim of several classes, where it is legal: parameters of one shape, such as those of
    layers that do not fold.
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
    """Tile the leading dim of the longest data arguments only: the edges of a graph, whose nodes
    stay whole (PartIR's ES on graph networks).
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ExpertParallel:
    """Tile the experts of a mixture (GShard, arXiv 2006.16668): the dim that parameters share with
    what they are multiplied by and with the result. Played before data parallelism on the same
    axes: what goes in and what comes out is left to that, so that tokens are sorted where they are
    and travel to the experts and back by all_to_all.
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ModelParallel:
    """Megatron (Shoeybi et al. 2019): split each parameter that meets a whole activation by its
    outputs; propagation splits the next one by its inputs. `head` includes the last one.
    """

    axes: Axes
    head: bool


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SequenceParallel:
    """Tile activations between blocks where sums on the axes are finished (Korthikanti 2022)."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ContextParallel:
    """Tile the sequences that attention goes over, queries and keys (Llama 3.1, arXiv 2407.21783,
    section 3.3.2): activations follow.
    """

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class AlternateParallel:
    """Tile matrices by their inputs on one of two sets of axes and by their outputs on the other,
    by what reaches them: the first by inputs on `inputs`.
    """

    inputs: Axes
    outputs: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class OutputParallel:
    """Tile every matrix by its outputs, the last one first: inputs are gathered."""

    axes: Axes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Zero:
    """ZeRO (Rajbhandari et al. 2020) on matrices: stage 2 keeps parameters whole and tiles the
    optimizer's state (and with it the gradients); stage 3 tiles the parameters too.
    """

    axes: Axes
    stage: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RingParallel:
    """PrimePar's P_{n x n} (ASPLOS 2024) in the form without redistribution: matrices are tiled on
    one of two axes and on their diagonal, so that every product with one walks its sum in time.
    They alternate, by what reaches them: inputs on the axis and outputs on the diagonal, or the
    other way round. The other axis is for data parallelism, played before.

    Attributes:
      axes: the axis that the features of the residual stream lie on, and the diagonal.
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
