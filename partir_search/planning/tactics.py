"""Tactics and schedules: incremental partitioning by hand and by search, as in PartIR.

A schedule is a list of tactics. Each tactic decides dims left open by the previous tactics, and
never undoes a decision.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from jax.sharding import NamedSharding, PartitionSpec

from partir_search.ir.argument_paths import matches
from partir_search.ir.mesh import DIAGONAL
from partir_search.ir.rule import NONE
from partir_search.messages import validators
from partir_search.messages.renamed import warn_renamed
from partir_search.messages.wording import shown
from partir_search.planning.parallelism import (
    PARALLELISM,
    Parallelism,
)
from partir_search.planning.pipeline_tactic import Pipeline
from partir_search.propagation.actions import Action, Replicate, Tile
from partir_search.propagation.contradictions import already_decided
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.targets import StrategyTargets


class Special(enum.Enum):
    """Dims selected by a rule instead of a number."""

    FIRST_DIVISIBLE_DIM = "first_divisible_dim"
    REPLICATED = "replicated"


FIRST_DIVISIBLE_DIM = Special.FIRST_DIVISIBLE_DIM
"""Tile the first dim divisible by the axis; arguments without one stay undecided."""

REPLICATED = Special.REPLICATED
"""Replicate along the axis (PartIR's `atomic`)."""

Dim = Union[int, Special, None]
"""Number of a dim, `FIRST_DIVISIBLE_DIM`, `REPLICATED`, or None for no decision."""

DimOrFn = Union[Dim, Callable[[str, tuple[int, ...]], Dim]]


@dataclasses.dataclass(frozen=True)
class ManualPartition:
    """Tiles arguments on one axis; arrays without elements stay replicated.

    Attributes:
      dims: mapping from a glob on argument paths (`*` matches one component, `**` zero or more; the
        path of a subtree matches the whole subtree) to a dim, `FIRST_DIVISIBLE_DIM`, `REPLICATED`,
        None (undecided), or a function of (path, shape) with one of these results. Entries are
        applied in order, each on the result of the previous.
      axis: an axis of the mesh.
    """

    dims: Mapping[str, DimOrFn]
    axis: str

    def __post_init__(self) -> None:
        if isinstance(self.axis, tuple | list):
            raise TypeError(
                f"ManualPartition: axis is the name of one axis, not {self.axis!r}; write a tactic"
                " for each axis, one after the other (AutomaticPartition takes several as axes=)"
            )
        validators.text("ManualPartition: axis", self.axis, "'batch'")
        if not isinstance(self.dims, Mapping):
            raise TypeError(
                "ManualPartition: dims maps argument paths to dims, {'batch/x': 0}, not"
                f" {shown(self.dims)}"
            )
        for glob, dim in self.dims.items():
            validators.text("ManualPartition: an argument's path in dims", glob, "'batch/x'")
            check_kind(f"ManualPartition: dims[{glob!r}]", dim)
            if callable(dim):
                _check_signature(f"ManualPartition: dims[{glob!r}]", dim)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Axes of the mesh."""
        return (self.axis,)

    @property
    def diagonals(self) -> tuple[str, ...]:
        """Diagonals that the tactic tiles on."""
        return tuple(name for name in self.axis.split("+") if DIAGONAL in name)

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        """Applies the tactic to `state`; returns the effective actions.

        Raises:
          IllegalAction: the tactic contradicts an earlier decision.
        """
        return _manual_actions(self, graph, state, targets)


@dataclasses.dataclass(frozen=True)
class AutomaticPartition:
    """Searches for actions.

    Attributes:
      axes: axes of the mesh; None for all.
      episodes: number of strategies to score; None for the default of `auto_partition`.
      exclude: globs on paths of arguments that no move tiles; propagation may still tile them.
    """

    axes: tuple[str, ...] | None = None
    episodes: int | None = None
    exclude: tuple[str, ...] = ()
    leave: dataclasses.InitVar[tuple[str, ...] | None] = None

    def __post_init__(self, leave: tuple[str, ...] | None) -> None:
        if self.axes is not None:
            axes = validators.names("AutomaticPartition: axes", self.axes, "('batch',)")
            if not axes:
                raise ValueError("AutomaticPartition: axes is empty; None searches over all axes")
            object.__setattr__(self, "axes", axes)
        if self.episodes is not None:
            validators.whole_number("AutomaticPartition: episodes", self.episodes, 1)
        if leave is not None:
            warn_renamed("AutomaticPartition(leave=...)", "exclude=", 4)
        given = self.exclude if leave is None else leave
        exclude = validators.names("AutomaticPartition: exclude", given, "('state/**',)")
        object.__setattr__(self, "exclude", exclude)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Axes of the mesh; () for all."""
        return self.axes or ()

    @property
    def diagonals(self) -> tuple[str, ...]:
        """Diagonals that the tactic tiles on."""
        return tuple(name for name in self.axis_names if DIAGONAL in name)


Tactic = Union[ManualPartition, AutomaticPartition, Parallelism]
"""Entry of `schedule=`."""

TACTICS = (ManualPartition, AutomaticPartition, *PARALLELISM, Pipeline)


def check_kind(what: str, dim: Any) -> None:
    """Checks that `dim` is a dim or a function.

    Args:
      what: name of the value, for messages.
      dim: the value.

    Raises:
      TypeError: the value is neither.
    """
    if dim is None or isinstance(dim, Special) or (callable(dim) and not isinstance(dim, type)):
        return
    if isinstance(dim, numbers.Integral) and not isinstance(dim, bool):
        return
    remedy = "write the number of a dim, FIRST_DIVISIBLE_DIM, REPLICATED, None or a function"
    if isinstance(dim, PartitionSpec | NamedSharding):
        remedy = "write the number of the dim here; PartitionSpecs go to in_shardings"
    elif isinstance(dim, str):
        remedy = f"write {dim}" if dim.lstrip("-").isdecimal() else remedy
    elif isinstance(dim, tuple | list):
        remedy = "write one dim; a second one takes another tactic on another axis"
    raise TypeError(f"{what}: a dim is an int, not {shown(dim)}; {remedy}")


def _check_signature(what: str, dim: Callable[..., Any]) -> None:
    """Checks that a function of dims accepts (path, shape).

    Raises:
      TypeError: the signature does not match.
    """
    try:
        inspect.signature(dim).bind("path", ())
    except ValueError:  # builtins without a signature
        return
    except TypeError as error:
        raise TypeError(
            f"{what}: the function is called with an argument's path and shape, (path, shape):"
            f" {error}"
        ) from None


def diagonals(schedule: Sequence[Tactic]) -> list[str]:
    """Diagonals named by a schedule."""
    return list(dict.fromkeys(name for tactic in schedule for name in tactic.diagonals))


def _manual_actions(
    tactic: ManualPartition, graph: Graph, state: State, targets: StrategyTargets
) -> list[Action]:
    """Applies a manual tactic to `state`; returns the effective actions.

    Raises:
      IllegalAction: the tactic contradicts an earlier decision.
    """
    module, mesh = graph.module, state.mesh
    axes = mesh.axes(tactic.axis)
    done: list[Action] = []
    for glob, spec in tactic.dims.items():
        for path, value in zip(module.arg_paths, module.body.args, strict=True):
            if not matches(glob, path) or not value.type.shape or 0 in value.type.shape:
                continue
            cls = graph.class_of[value.id]
            dim = spec(path, value.type.shape) if callable(spec) else spec
            now = max((state.tiles[a][cls] for a in axes), key=lambda d: d != NONE)
            if dim is REPLICATED:
                if now == NONE:
                    Replicate(value.name, tactic.axis).apply(state, path)
                    done.append(Replicate(value.name, tactic.axis))
                elif now >= 0:
                    raise already_decided(path, now, tactic.axis, "replicated")
                continue
            if dim is FIRST_DIVISIBLE_DIM:
                dim = targets.first_divisible_dim(state, cls, axes) if now == NONE else NONE
                if dim == NONE:
                    continue
            if dim is None or isinstance(dim, Special):
                continue
            dim = int(dim) % len(value.type.shape)
            if all(state.tiles[a][cls] == dim for a in axes):
                continue
            if now not in (NONE, dim):
                raise already_decided(path, now, tactic.axis, f"tiled on dim {dim}")
            Tile(value.name, dim, tactic.axis).apply(state, path)
            done.append(Tile(value.name, dim, tactic.axis))
    return done
