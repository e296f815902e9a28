"""Segments of a plan, printed as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jax.sharding import PartitionSpec

from partir_search.ir.core import dtype_name
from partir_search.lowering.local_ir import Instruction, LocalProgram, LocalRegion
from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import amount, milliseconds
from partir_search.segments.blocks import ParallelBlock

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A value entering a segment.

    Attributes:
      name: of the value in the printed program.
      type: dtype and shape on one device.
      spec: the tiling.
      nbytes: on one device.
      argument: True for an argument or constant of the program, False for a value made by another
        segment.
    """

    name: str
    type: str
    spec: PartitionSpec
    nbytes: int
    argument: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Simulated:
    """Seconds of one run of a segment by the simulator.

    Attributes:
      seconds: `compute` and exposed seconds of collectives.
      compute: kernels and copies.
    """

    seconds: float
    compute: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Segment:
    """Equal stretches of a plan's device-local program.

    Attributes:
      name: pass and blocks, as "forward of layer_0..23".
      key: sha256 of the local program: primitives, params, local shapes, types, and moves with
        kind, axes and bytes; equal for equal segments of different models and plans.
      copies: the stretches, each as a region; the middle one represents all.
      trips: runs per step of each copy, above 1 inside of loops.
      ops: by copy, positions of the first and the last op in the region.
      blocks: ParallelBlocks with their first product in the middle copy.
      entry: values entering the middle copy.
      simulated: seconds of one run of the middle copy.
      program: the device-local program.
    """

    name: str
    key: str
    copies: tuple[LocalRegion, ...]
    trips: int
    ops: tuple[tuple[int, int], ...]
    blocks: tuple[ParallelBlock, ...]
    entry: tuple[Entry, ...]
    simulated: Simulated
    program: LocalProgram

    @property
    def instances(self) -> int:
        """Number of runs per step."""
        return len(self.copies) * self.trips

    @property
    def body(self) -> LocalRegion:
        """The representative copy."""
        return self.copies[len(self.copies) // 2]

    @property
    def steps(self) -> list[Instruction]:
        """Instructions of the middle copy."""
        return self.body.steps

    def joined(self, other: Segment) -> Segment:
        """The segment with the copies of an equal one."""
        return dataclasses.replace(
            self, copies=self.copies + other.copies, ops=self.ops + other.ops
        )

    def __repr__(self) -> str:
        return f"Segment({self.name}, {self.instances} times, key {self.key[:12]})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Segments(Shown):
    """Unique segments of a plan; printing shows a table.

    Attributes:
      unique: segments, by first run.
      sequence: (number of the segment, number of the copy) in order of execution; loops once.
      whole: the whole program as one segment.
      complete: True if the segments cover the program; False if some lie in loops, whose own work
        (slices of stacks, conditions) is then in no segment.
    """

    unique: tuple[Segment, ...]
    sequence: tuple[tuple[int, int], ...]
    whole: Segment
    complete: bool

    def composed(self, seconds: Mapping[str, float]) -> float:
        """Seconds of a step from seconds of segments by key: the sum over all runs.

        Raises:
          KeyError: a segment has no seconds.
        """
        return sum(each.instances * seconds[each.key] for each in self.unique)

    def __rich__(self) -> RenderableType:
        table = new_table(title=f"segments of {self._name}", title_justify="left")
        for column, justify in (
            *(("segment", "left"), ("runs", "right"), ("instructions", "right")),
            *(("blocks", "left"), ("enters tiled", "left"), ("from others", "right")),
            *(("compute", "right"), ("in all", "right"), ("key", "left")),
        ):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for each in self.unique:
            made = [x for x in each.entry if not x.argument]
            table.add_row(
                each.name,
                str(each.instances),
                str(len(each.steps)),
                ", ".join(dict.fromkeys(b.path.rpartition("/")[2] for b in each.blocks)),
                " ".join(dict.fromkeys(spec_text(x.spec) for x in made)),
                amount(sum(x.nbytes for x in made)),
                milliseconds(each.simulated.compute),
                milliseconds(each.simulated.seconds),
                each.key[:8],
            )
        return table

    @property
    def _name(self) -> str:
        return self.whole.program.partition.module.name


def spec_text(spec: PartitionSpec) -> str:
    """Axes per dim: "(data,-)"; "()" for a replicated value."""
    entries = ["+".join(e) if isinstance(e, tuple) else (e or "-") for e in spec]
    return f"({','.join(entries)})"


def type_text(dtype: object, shape: tuple[int, ...]) -> str:
    """Type of an array on one device, `bf16[8,128]`."""
    return f"{dtype_name(dtype)}[{','.join(map(str, shape))}]"
