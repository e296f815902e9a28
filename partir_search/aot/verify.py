"""Holds a plan's prediction against what a real compiler makes of it.

The device-local program is compiled ahead of time for a target; collectives are matched one by one
by kind, axes and number of elements, so that what XLA changed can be named.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from partir_search.aot.hlo import CompiledCollective, axes_of, hlo_collectives
from partir_search.aot.targets import TPUS, Target
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.halo import Fetch, crossed
from partir_search.lowering.local_ir import LocalProgram, Move
from partir_search.lowering.reshard import COLLECTIVES, Shuffle, Step
from partir_search.lowering.shard_map import argument_specs, lifted_specs, result_specs, sharded
from partir_search.messages.console import new_console, new_table
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.traits import traits_of

if TYPE_CHECKING:
    from rich.table import Table

Key = tuple[str, tuple[str, ...]]  # kind and axes


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Collectives of one kind along one set of axes: operands and payload bytes on a device."""

    kind: str
    axes: tuple[str, ...]
    predicted: int
    compiled: int
    predicted_bytes: int
    compiled_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """Predicted against compiled.

    Attributes:
      changes: what XLA did to the collectives, in words.
      unexplained: collectives that differ for no known reason; empty means confirmed.
      peak_bytes / argument_bytes / flops: (predicted, compiled), on one device; compiled flops are
        NaN where the compiler does not tell.
      compile_seconds: what compiling took.
      hlo: the optimized program.
    """

    target: str
    rows: tuple[Row, ...]
    changes: tuple[str, ...]
    unexplained: tuple[str, ...]
    peak_bytes: tuple[float, float]
    argument_bytes: tuple[float, float]
    flops: tuple[float, float]
    compile_seconds: float
    hlo: str = dataclasses.field(repr=False)

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
            table.add_row(row.kind, ", ".join(row.axes), *(f"{n:,}" for n in numbers))
        table.add_section()
        for name, (a, b), what in (
            ("argument bytes", self.argument_bytes, "{:,.0f}"),
            ("peak bytes", self.peak_bytes, "{:,.0f}"),
            ("flops", self.flops, "{:.4g}"),
        ):
            table.add_row(name, "", "", "", what.format(a), what.format(b))
        return table

    def __str__(self) -> str:
        console = new_console(width=110)
        with console.capture() as capture:
            console.print(self.table())
            for change in self.changes:
                console.print(f"XLA: {change}", highlight=False)
            for line in self.unexplained:
                console.print(f"unexplained: {line}", highlight=False)
            if self.confirmed:
                console.print("every collective is compiled as predicted, up to what is named")
        return capture.get()


def verify(program: LocalProgram, model: CostModel, target: Target) -> Verification:
    """Compiles `program` for `target` and compares it with what the cost model predicts.

    Where the model is of another kind of machine, the bytes of collectives are the program's own.

    Raises:
      ValueError: the target has another number of devices than the mesh.
      RuntimeError: there is no compiler for the target.
      jax.errors.JaxRuntimeError: XLA refuses the program (e.g. it does not fit the memory).
    """
    mesh = target.mesh(program.partition.mesh)
    begin = time.perf_counter()
    compiled, text = _compile(program, mesh, target)
    spent = time.perf_counter() - begin
    memory = compiled.memory_analysis()
    analysis = compiled.cost_analysis() or {}
    widths = (m.traits.f32_dot_operand_bytes for m in (model.machine, target.machine))
    alike = len(set(widths)) == 1
    width = model.width if alike else as_written
    rows, changes, unexplained = compare(program, hlo_collectives(text), width)
    cost = model.evaluate(program)
    return Verification(
        target=str(target),
        rows=rows,
        changes=changes,
        unexplained=unexplained,
        peak_bytes=(cost.peak_bytes, memory.peak_memory_in_bytes),
        argument_bytes=(cost.argument_bytes, memory.argument_size_in_bytes),
        flops=(cost.flops, analysis.get("flops", float("nan"))),
        compile_seconds=spent,
        hlo=text,
    )


def _compile(program: LocalProgram, mesh: Mesh, target: Target) -> tuple[Any, str]:
    """The compiled program and its text.

    Some programs that libtpu writes for v5p (gathers on the SparseCore) jaxlib cannot read: their
    text is what the compiler dumps.
    """
    if target.name not in TPUS:
        compiled = compile_for(program, mesh, target.compiler_options)
        return compiled, compiled.as_text()
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_for(program, mesh, target.compiler_options | {"xla_dump_to": folder})
        try:
            return compiled, compiled.as_text()
        except jax.errors.JaxRuntimeError:
            found = sorted(pathlib.Path(folder).glob("*.jit_run.*.after_codegen.txt"))
            if not found:
                raise
            return compiled, found[-1].read_text()


def compile_for(program: LocalProgram, mesh: Mesh, options: dict[str, Any] | None = None) -> Any:
    """`jax.stages.Compiled` of the whole program over flat arguments on `mesh`."""
    module: Module = program.partition.module
    results = tuple(NamedSharding(mesh, s) for s in result_specs(program))
    jitted = jax.jit(
        sharded(program, mesh, traits_of(mesh)),
        donate_argnums=tuple(sorted(module.donated)),
        keep_unused=True,
        out_shardings=results,
    )
    values = [*module.body.args, *(module.values[i] for i in program.lifted)]
    specs = [*argument_specs(program), *lifted_specs(program)]
    structs = [
        jax.ShapeDtypeStruct(v.type.shape, v.type.dtype, sharding=NamedSharding(mesh, s))
        for v, s in zip(values, specs, strict=True)
    ]
    return jitted.lower(*structs).compile(compiler_options=options or None)


def as_written(_: Move) -> float:
    """The width of what a move carries, where that is the program's own."""
    return 1.0


def compare(
    program: LocalProgram,
    found: list[CompiledCollective],
    width: Callable[[Move], float] = as_written,
) -> tuple[tuple[Row, ...], tuple[str, ...], tuple[str, ...]]:
    """Rows by kind and axes, changes that XLA is known to make, and the rest.

    Args:
      width: bytes that a move carries, as a multiple of the program's.
    """
    mesh = program.partition.mesh
    planned: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    runs: Runs = collections.defaultdict(lambda: [0, 0])
    pairs: Rest = collections.defaultdict(collections.Counter)  # of complex numbers
    for move, times in program.moves():
        if move.step.kind in COLLECTIVES:
            axes = tuple(mesh.names[a] for a in _axes(move.step, mesh) if mesh.sizes[a] > 1)
            size = move.source.value.type.itemsize
            carried = round(size * width(move))
            planned[move.step.kind, axes].append((move.payload_bytes // size, carried))
            if jnp.issubdtype(move.source.value.type.dtype, np.complexfloating):
                pairs[move.step.kind, axes][move.payload_bytes // size] += 1
            runs[move.step.kind, axes][0] += move.payload_bytes // size * times
    for own, _, times in program.own_collectives():
        axes = tuple(n for n in mesh.whole if n in own.axes and mesh.as_dict()[n] > 1)
        planned[own.kind, axes].append((own.nbytes // own.itemsize, own.itemsize))
        runs[own.kind, axes][0] += own.nbytes // own.itemsize * times
    compiled: dict[Key, list[tuple[int, int]]] = collections.defaultdict(list)
    for c in found:
        key = c.kind, axes_of(c.groups, mesh) or ("?",)
        compiled[key].append((c.elements, c.itemsize))
        runs[key][1] += c.elements * c.times if c.times else UNKNOWN
    order = sorted({*planned, *compiled}, key=lambda k: (COLLECTIVES.index(k[0]), k[1]))
    rows = tuple(
        Row(
            *key,
            len(planned[key]),
            len(compiled[key]),
            sum(n * size for n, size in planned[key]),
            sum(n * size for n, size in compiled[key]),
        )
        for key in order
    )
    missing = {k: _less(planned[k], compiled[k]) for k in order}
    extra = {k: _less(compiled[k], planned[k]) for k in order}
    changes = [*_parts(extra, pairs), *_unrolled(missing, extra, runs, planned, compiled)]
    changes += [*_whole_reductions(missing, extra), *_halos(extra, found, mesh)]
    changes += _combined(missing, extra, compiled)
    changes += [*_merged(missing, extra, compiled), *_combined(missing, extra, compiled)]
    changes += _again(extra, found, mesh)
    changes += [
        f"{n} {kind} along {', '.join(axes)} move narrower elements than predicted"
        for (kind, axes), n in _narrowed(planned, compiled).items()
    ]
    unexplained = [
        f"{n} {kind} of {elements:,} elements along {', '.join(axes)} {what}"
        for rest, what in ((missing, "predicted, not compiled"), (extra, "compiled, not predicted"))
        for (kind, axes), counts in rest.items()
        for elements, n in sorted(counts.items())
    ]
    return rows, tuple(changes), tuple(unexplained)


def _axes(step: Step, mesh: MeshShape) -> tuple[int, ...]:
    """A step's axes in the mesh's order; of a permute those that its pairs cross."""
    axes = step.axes
    if isinstance(step.detail, Fetch | Shuffle):
        axes = crossed(step.detail.pairs, {a: mesh.sizes[a] for a in axes})
    return tuple(sorted(axes))


Rest = dict[Key, "collections.Counter[int]"]
Runs = dict[Key, list[int]]  # elements per step, predicted and compiled
UNKNOWN = -(10**18)  # elements of a loop whose trip count is not told


def _less(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> collections.Counter[int]:
    return collections.Counter(n for n, _ in a) - collections.Counter(n for n, _ in b)


def _parts(extra: Rest, pairs: Rest) -> Iterator[str]:
    """XLA:TPU knows no complex numbers: their parts move one by one."""
    for key, counts in pairs.items():
        both = extra[key] & counts
        if both:
            extra[key] = extra[key] - both
            kind, axes = key
            yield f"{both.total()} {kind} along {', '.join(axes)} of complex numbers move in parts"


def _unrolled(
    missing: Rest,
    extra: Rest,
    runs: Runs,
    planned: dict[Key, list[tuple[int, int]]],
    compiled: dict[Key, list[tuple[int, int]]],
) -> Iterator[str]:
    """XLA:GPU takes iterations out of loops: more lines of text, as many elements per step."""
    for key in list(missing):
        wanted, got = runs[key]
        looped = sum(n for n, _ in planned[key]) < wanted
        if not looped or not compiled[key] or not (missing[key] or extra[key]):
            continue
        spare = wanted - got
        merged = spare > 0 and sum(n == spare for n, _ in planned[key]) >= 2
        if spare == 0 or merged:
            missing[key] = extra[key] = collections.Counter()
            kind, axes = key
            same = "after 1 merged with an equal one" if merged else "as before"
            yield (
                f"{len(planned[key])} {kind} along {', '.join(axes)} became {len(compiled[key])}:"
                f" iterations were taken out of loops; {got:,} elements a step, {same}"
            )


def _whole_reductions(missing: Rest, extra: Rest) -> Iterator[str]:
    """XLA turns some reduce_scatters back into all_reduces and slices, and some small all_gathers
    into all_reduces of tiles padded with zeros, which it can combine with others.
    """
    for (kind, axes), counts in list(missing.items()):
        other = extra.get(("all_reduce", axes))
        if kind not in ("reduce_scatter", "all_gather") or not other:
            continue
        both = counts & other
        if both:
            missing[kind, axes] = counts - both
            extra["all_reduce", axes] = other - both
            became = "all_reduce + slice" if kind == "reduce_scatter" else "all_reduce"
            yield f"{both.total()} {kind} along {', '.join(axes)} became {became}"


def _halos(extra: Rest, found: list[CompiledCollective], mesh: MeshShape) -> Iterator[str]:
    """A reduce_scatter whose tiles XLA pads is mended by a permute between neighbours."""
    for (kind, axes), counts in list(extra.items()):
        padded = sum(c.padded and axes_of(c.groups, mesh) == axes for c in found)
        if kind == "collective_permute" and 0 < counts.total() <= padded:
            extra[kind, axes] = collections.Counter()
            yield (
                f"{counts.total()} collective_permute of {sum(counts.elements()):,} elements along"
                f" {', '.join(axes)}: halo of reduce_scatters whose tiles it pads"
            )


def _again(extra: Rest, found: list[CompiledCollective], mesh: MeshShape) -> Iterator[str]:
    """Near the memory's limit XLA makes some values again, by what they were gathered with."""
    repeated: Rest = collections.defaultdict(collections.Counter)
    for c in found:
        if c.again:
            repeated[c.kind, axes_of(c.groups, mesh) or ("?",)][c.elements] += 1
    for (kind, axes), counts in repeated.items():
        both = counts & extra[kind, axes]
        if both:
            extra[kind, axes] = extra[kind, axes] - both
            yield f"{both.total()} {kind} along {', '.join(axes)} made again to save memory"


def _merged(
    missing: Rest, extra: Rest, compiled: dict[Key, list[tuple[int, int]]]
) -> Iterator[str]:
    """Equal collectives, or sums that are only added together, become one.

    So does a reduce_scatter that was made an all_reduce equal to another.
    """
    for key, counts in list(missing.items()):
        there = {n for n, _ in compiled[key]}
        if key[0] == "reduce_scatter":
            there |= {n for n, _ in compiled.get(("all_reduce", key[1]), ())}
        merged = collections.Counter({n: c for n, c in counts.items() if n in there})
        if merged:
            missing[key] = counts - merged
            kind, axes = key
            yield f"{merged.total()} {kind} along {', '.join(axes)} merged with equal ones"


def _combined(
    missing: Rest, extra: Rest, compiled: dict[Key, list[tuple[int, int]]]
) -> Iterator[str]:
    """XLA:GPU puts small reductions of one kind one after the other into one buffer."""
    for key, counts in list(missing.items()):
        other = extra.get(key, collections.Counter())
        if key[0] != "all_reduce" or not other:
            continue
        spare = sum(counts.elements()) - sum(other.elements())
        # Of equal ones all may have merged with one that is there, or all but one before.
        there = {n for n, _ in compiled[key]}
        most = {n: c if n in there else c - 1 for n, c in counts.items()}
        before = (k for n, c in most.items() for k in range(c + 1) if n * k == spare)
        if (times := next(before, None)) is not None:
            missing[key] = extra[key] = collections.Counter()
            kind, axes = key
            merged = f", after {times} merged with equal ones" if times else ""
            along = f"{kind} along {', '.join(axes)}"
            yield f"{counts.total()} {along} combined into {other.total()}{merged}"


def _narrowed(
    planned: dict[Key, list[tuple[int, int]]], compiled: dict[Key, list[tuple[int, int]]]
) -> dict[Key, int]:
    """Number of collectives, by kind and axes, that move narrower elements than predicted."""
    out = {}
    for key, moved in compiled.items():
        widest: dict[int, int] = {}
        for n, size in planned[key]:
            widest[n] = max(size, widest.get(n, 0))
        narrower = sum(size < widest.get(n, 0) for n, size in moved)
        if narrower:
            out[key] = narrower
    return out
