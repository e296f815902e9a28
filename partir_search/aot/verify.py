"""Verification: predictions for a plan against a program compiled ahead of time for a target.

Collectives are matched one by one by kind, axes and number of elements, to name XLA's changes.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from partir_search.aot.compile import compiled_program
from partir_search.aot.hlo import CompiledCollective, axes_of, hlo_collectives
from partir_search.aot.joined_sums import joined_sums
from partir_search.aot.targets import Target
from partir_search.aot.xla_changes import (
    Key,
    Rest,
    combined,
    complex_parts,
    gathered_sources,
    halos,
    joined,
    merged,
    narrowed,
    rematerialized,
    run_differences,
    surplus,
    unrolled,
    whole_reductions,
)
from partir_search.ir.analysis.repeats import copies, repeated_dims
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.halo import crossed
from partir_search.lowering.local_ir import LocalProgram, Reshard
from partir_search.lowering.reshard_steps import (
    COLLECTIVES,
    AllGather,
    HaloPermute,
    Permute,
    ReshardStep,
)
from partir_search.messages.console import grouped, new_table, text_of
from partir_search.simulator.simulator import CostModel

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Collectives of one kind along one set of axes.

    Attributes:
      predicted / compiled: number of operands.
      predicted_bytes / compiled_bytes: payload of a step on one device, with all iterations of
        loops; compiled bytes are None if one of the loops has an unknown trip count.
    """

    kind: str
    axes: tuple[str, ...]
    predicted: int
    compiled: int
    predicted_bytes: int
    compiled_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """Predicted and compiled figures of one program.

    Attributes:
      target: the compiler's target, ``tpu_v5e:4x4``.
      rows: collectives by kind and axes.
      changes: known changes of collectives by XLA, one sentence each.
      unexplained: collectives with a difference of unknown cause; empty if confirmed.
      peak_bytes / argument_bytes / flops: (predicted, compiled) on one device; compiled flops are
        NaN if the compiler gives none.
      main_bytes: compiled peak of main memory, which is what is predicted; None if code was
        generated. It is below the compiler's peak if the temporaries on the chip are the most.
      compile_seconds: wall time of the compilation.
      complete: code was generated; else compilation ended with the buffer assignment.
      hlo: text of the optimized program, with cycles of kernels if complete, on TPUs.
    """

    target: str
    rows: tuple[Row, ...]
    changes: tuple[str, ...]
    unexplained: tuple[str, ...]
    peak_bytes: tuple[float, float]
    argument_bytes: tuple[float, float]
    flops: tuple[float, float]
    compile_seconds: float
    complete: bool
    hlo: str = dataclasses.field(repr=False)
    main_bytes: int | None = None

    @property
    def confirmed(self) -> bool:
        """True if every collective was compiled as predicted, up to `changes`."""
        return not self.unexplained

    def table(self) -> Table:
        table = new_table(title=f"predicted and compiled for {self.target}", title_justify="left")
        for column in ("", "axes", "predicted", "compiled", "predicted bytes", "compiled bytes"):
            table.add_column(column, justify="right" if "ed" in column else "left")
        for row in self.rows:
            numbers = (row.predicted, row.compiled, row.predicted_bytes, row.compiled_bytes)
            cells = ("unknown" if n is None else f"{n:,}" for n in numbers)
            table.add_row(row.kind, ", ".join(row.axes), *cells)
        table.add_section()
        for name, (a, b), what in (
            ("argument bytes", self.argument_bytes, "{:,.0f}"),
            ("peak bytes", self.peak_bytes, "{:,.0f}"),
            ("flops", self.flops, "{:.4g}"),
        ):
            told = "" if math.isnan(b) else what.format(b)
            table.add_row(name, "", "", "", what.format(a), told)
        return table

    def __str__(self) -> str:
        lines = [f"XLA: {change}" for change in self.changes]
        lines += [f"unexplained: {line}" for line in self.unexplained]
        if self.main_bytes is not None and self.main_bytes < self.peak_bytes[1]:
            lines.append(
                f"the compiled peak has values on the chip; in main memory {self.main_bytes:,.0f}"
                " bytes lie at most"
            )
        if self.confirmed:
            lines.append("every collective is compiled as predicted, up to what is named")
        return text_of(grouped(self.table(), *lines))


def verify(
    program: LocalProgram, model: CostModel, target: Target, *, cycles: bool = False
) -> Verification:
    """Compiles `program` for `target` and compares the result with predictions of `model`.

    Args:
      cycles: generate code too, for cycles of kernels in the text and the compiler's flops; takes
        ten times as long or more on TPUs.

    If machine and target store dot operands in different types, predicted bytes of collectives
    assume the types of the program.

    Raises:
      ValueError: target and mesh differ in their number of devices.
      RuntimeError: the target's compiler is missing.
      jax.errors.JaxRuntimeError: XLA refuses the program (out of memory, for example).
    """
    mesh = target.mesh(program.partition.mesh)
    begin = time.perf_counter()
    compiled = compiled_program(program, mesh, target, cycles=cycles)
    compile_seconds = time.perf_counter() - begin
    widths = (m.traits.f32_dot_operand_bytes for m in (model.machine, target.machine))
    alike = len(set(widths)) == 1
    width = model.width if alike else as_written
    rows, changes, unexplained = compare(program, hlo_collectives(compiled.text), width)
    cost = model.evaluate(program)
    return Verification(
        target=str(target),
        rows=rows,
        changes=changes,
        unexplained=unexplained,
        peak_bytes=(cost.peak_bytes, compiled.peak_bytes),
        argument_bytes=(cost.argument_bytes, compiled.argument_bytes),
        flops=(cost.flops, compiled.flops),
        compile_seconds=compile_seconds,
        complete=compiled.complete,
        hlo=compiled.text,
        main_bytes=compiled.main_bytes,
    )


def as_written(_: Reshard) -> float:
    """1.0: a reshard carries elements of the program's type."""
    return 1.0


def compare(
    program: LocalProgram,
    found: list[CompiledCollective],
    width: Callable[[Reshard], float] = as_written,
) -> tuple[tuple[Row, ...], tuple[str, ...], tuple[str, ...]]:
    """Compares the collectives of a local program with compiled ones.

    Args:
      found: collectives of the compiled program.
      width: payload bytes of a reshard, as a multiple of bytes in the program's type.

    Returns:
      Rows by kind and axes; known changes by XLA and unexplained differences, as sentences.
    """
    mesh = program.partition.mesh
    planned: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    runs: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    pairs: Rest = collections.defaultdict(collections.Counter)  # of complex numbers
    repeated: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    repeats = repeated_dims(program.partition.module, program.partition.rules)

    def plan(key: Key, elements: int, itemsize: int, times: int) -> None:
        if elements:  # XLA removes the others (empty slices of an associative scan)
            planned[key].append((elements, itemsize))
            runs[key].append((elements, times))

    for reshard, times in program.reshards():
        if reshard.step.communicates:
            axes = tuple(mesh.names[a] for a in _axes(reshard.step, mesh) if mesh.sizes[a] > 1)
            size = reshard.source.value.type.itemsize
            elements = reshard.payload_bytes // size
            plan((reshard.step.kind, axes), elements, round(size * width(reshard)), times)
            if jnp.issubdtype(reshard.source.value.type.dtype, np.complexfloating):
                pairs[reshard.step.kind, axes][elements] += 1
            dims = repeats.get(reshard.source.value.id, frozenset())
            if dims and isinstance(reshard.step, AllGather):
                source = elements // copies(dims, reshard.target.shape)
                repeated[reshard.step.kind, axes].append((elements, source))
    for own, _, times in program.own_collectives():
        axes = tuple(n for n in mesh.whole if n in own.axes and mesh.as_dict()[n] > 1)
        plan((own.kind, axes), own.nbytes // own.itemsize, own.itemsize, times)
    compiled: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    compiled_runs: dict[Key, list[tuple[int, int | None]]] = collections.defaultdict(list)
    for c in found:
        key = c.kind, axes_of(c.groups, mesh) or ("?",)
        compiled[key].append((c.elements, c.itemsize))
        compiled_runs[key].append((c.elements, c.times))
    order = sorted({*planned, *compiled}, key=lambda k: (COLLECTIVES.index(k[0]), k[1]))
    rows = tuple(
        Row(
            *key,
            len(planned[key]),
            len(compiled[key]),
            _bytes(planned[key], runs[key]) or 0,
            _bytes(compiled[key], compiled_runs[key]),
        )
        for key in order
    )
    missing = {k: surplus(planned[k], compiled[k]) for k in order}
    extra = {k: surplus(compiled[k], planned[k]) for k in order}
    changes = [*complex_parts(missing, extra, pairs), *gathered_sources(missing, extra, repeated)]
    changes += [*unrolled(missing, extra, runs, compiled_runs)]
    changes += [*whole_reductions(missing, extra), *halos(extra, found, mesh)]
    changes += combined(missing, extra, compiled)
    changes += [*merged(missing, extra, compiled), *combined(missing, extra, compiled)]
    smaller: dict[Key, list[int]] = collections.defaultdict(list)
    for sum_axes, elements in joined_sums(program):
        smaller["all_reduce", tuple(mesh.names[a] for a in sum_axes)].append(elements)
    changes += joined(missing, {k: sizes for k, sizes in smaller.items() if k in missing})
    changes += rematerialized(extra, found, mesh)
    changes += [
        f"{n} {kind} along {', '.join(axes)} move narrower elements than predicted"
        for (kind, axes), n in narrowed(planned, compiled).items()
    ]
    moved, others = run_differences(runs, compiled_runs)
    changes += moved
    unexplained = [
        f"{n} {kind} of {elements:,} elements along {', '.join(axes)} {what}"
        for rest, what in ((missing, "predicted, not compiled"), (extra, "compiled, not predicted"))
        for (kind, axes), counts in rest.items()
        for elements, n in sorted(counts.items())
    ]
    return rows, tuple(changes), (*unexplained, *others)


def _bytes(sizes: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int | None]]) -> int | None:
    """Bytes of a step, of (elements, itemsize) and (elements, runs) of equal collectives."""
    total = 0
    for (elements, itemsize), (_, times) in zip(sizes, runs, strict=True):
        if times is None:
            return None
        total += elements * itemsize * times
    return total


def _axes(step: ReshardStep, mesh: MeshShape) -> tuple[int, ...]:
    """Axes of a step in the mesh's order; of a permute, the axes crossed by its pairs."""
    axes = step.axes
    if isinstance(step, Permute | HaloPermute):
        axes = crossed(step.pairs, {a: mesh.sizes[a] for a in axes})
    return tuple(sorted(axes))
