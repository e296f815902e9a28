"""Kernels of a step on a GPU, by `jax.profiler`, with operations and bytes from the HLO text.

A fusion's kernel has the fusion's name. Calls of libraries have names of the library's own: they
are matched in order, if as many ran as the text has, or by the instruction that the profiler names.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from rich.table import Table

from partir_search.aot.computations import (
    Computation,
    array_sizes,
    called,
    computations,
    dot_flops,
    dots,
    instruction,
)

LIBRARIES = ("nvjet", "cutlass", "void cutlass", "sm80_", "sm90_", "cudnn", "ampere")
SMALL = 30e6  # bytes: kernels that move less are a row of their own

_GEMM = re.compile(r'"dot_dimension_numbers":(?P<numbers>\{.*?\})')


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A kernel that ran.

    Attributes:
      start / seconds: by the device's clock.
      op: name of the HLO instruction, if the profiler knows the name.
    """

    name: str
    start: float
    seconds: float
    op: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its work.

    Attributes:
      kind: product, Triton product, softmax, reduction, transpose, scatter, look-up, elementwise,
        library or other, and the floating-point types of the results.
      nbytes / flops: of operands and results, and of products.
    """

    kind: str
    seconds: float
    nbytes: float = 0.0
    flops: float = 0.0


def events_of(run: Callable[[], Any]) -> list[Event]:
    """Kernels of a call, in order."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
        data = jax.profiler.ProfileData.from_file(str(files[-1]))
    found = []
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device") else ():
            if line.name.startswith("Stream"):
                with warnings.catch_warnings(action="ignore"):
                    rows = [
                        (e.name, e.start_ns * 1e-9, e.duration_ns * 1e-9, _hlo_op(e))
                        for e in line.events
                    ]
                found += [Event(*row) for row in rows]
    return sorted(found, key=lambda event: event.start)


def _hlo_op(event: Any) -> str:
    """Name of an event's HLO instruction; empty if the profiler does not say."""
    return next((str(value) for name, value in event.stats if name == "hlo_op"), "")


def kernels_of(text: str, events: Sequence[Event]) -> Iterator[Kernel]:
    """Kernels of a compiled program's text, with the seconds of events.

    Args:
      text: `compiled.as_text()`.
    """
    parts = {part.name: part for part in computations(text)}
    named: dict[str, tuple[Computation, str]] = {}
    calls: list[tuple[Computation, str]] = []
    for part in parts.values():
        for line in part.lines:
            found = instruction(line)
            if found and found.op == "custom-call" and "__cu" in line:
                calls.append((part, line))
            elif found and (found.op == "fusion" or part.entry):
                named[re.sub(r"[.-]", "_", found.name)] = part, line
    types = {
        part.name: {m.name: m.type for m in map(instruction, part.lines) if m}
        for part in parts.values()
    }
    in_order = sum(e.name.startswith(LIBRARIES) for e in events) == len(calls)
    by_name = {i.name: (part, line) for part, line in calls if (i := instruction(line))}
    rest = iter(calls)
    for event in events:
        library = event.name.startswith(LIBRARIES)
        place = named.get(event.name)
        if place is None and library:
            place = next(rest) if in_order else by_name.get(event.op)
        if place is None:
            yield Kernel("library" if library else "other", event.seconds)
            continue
        part, line = place
        found = instruction(line)
        assert found
        own = types[part.name]
        made = re.sub(r"s8\[\d+\]", "", found.type)  # scratch of a library
        nbytes = _nbytes(made) + sum(_nbytes(own.get(x, "")) for x in found.operands)
        inside = [parts[x] for x in called(line) if x in parts]
        flops = _gemm_flops(line, found.operands, own, made) if library else 0.0
        flops += sum(n for each in inside for n, _ in dots(each))
        kind = _kind(event.name, line, library, flops)
        if kind == "elementwise" and any(" gather(" in each for x in inside for each in x.lines):
            kind = "look-up"  # reads few rows of the operands
        dtypes = sorted(set(re.findall(r"\b(bf16|f16|f32|f64)\[", made)))
        label = f"{kind}, {' and '.join(dtypes)}" if dtypes else kind
        yield Kernel(label, event.seconds, nbytes, flops)


def table(kernels: Sequence[Kernel]) -> Table:
    """Attained rates by kind, of kernels that move `SMALL` bytes at least, and of small ones."""
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for each in kernels:
        kind = "small" if each.nbytes < SMALL and not each.flops else each.kind
        row = sums[kind]
        for i, figure in enumerate((1, each.seconds, each.nbytes, each.flops)):
            row[i] += figure
    found = Table(title="kernels", title_justify="left")
    for i, column in enumerate(("kind", "number", "ms", "us each", "GB/s", "TFLOP/s")):
        found.add_column(column, justify="right" if i else "left")
    for kind, (count, seconds, nbytes, flops) in sorted(sums.items(), key=lambda s: -s[1][1]):
        found.add_row(
            *(kind, f"{count:.0f}", f"{seconds * 1e3:.2f}", f"{seconds / count * 1e6:.1f}"),
            *(f"{nbytes / seconds / 1e9:.0f}", f"{flops / seconds / 1e12:.0f}"),
        )
    return found


def _kind(name: str, line: str, library: bool, flops: float) -> str:
    if flops:
        return "product" if library else "Triton product"
    if library:
        return "library"
    if "kind=kCustom" in line:
        return "softmax"
    words = ("reduce", "reduction"), ("transpose", "transpose"), ("scatter", "scatter")
    return next((kind for word, kind in words if word in name), "elementwise")


def _nbytes(type_text: str) -> int:
    return sum(n * size for n, size in array_sizes(type_text))


def _gemm_flops(line: str, operands: Sequence[str], types: dict[str, str], made: str) -> float:
    found = _GEMM.search(line)
    if not found:
        return 0.0
    over = map(int, json.loads(found["numbers"])["lhs_contracting_dimensions"])
    return dot_flops(types[operands[0]], over, made)
