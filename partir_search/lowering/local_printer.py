"""Text of device-local programs: one line per instruction.

    program := "def" name "on" mesh "{" (["constant"] local ":" type)* region "}"
    region  := line* "return" (source ["after" local])*
    line    := local ":" type "=" step "(" local ")" axes detail* mark* ["for" op]
             | (local ":" type)* "=" op "(" source* ")" turn* mark* ["{" inner ("} {" inner)* "}"]
    inner   := "(" (local ":" type)* ")" region
    step    := "slice" | "all_gather" | "all_reduce" | "reduce_scatter" | "all_to_all"
             | "collective_permute" | "halo" | "mask"
    detail  := "dim" n | "split" n | monoid | "elements" n ":" n | "size" n | "apart"
             | "turn" n | "regather" | "with" local*
    turn    := "turn" n "of" n | "block" n | "zigzag" | "chunks" n | "adds" local*
    mark    := ("after" | "operands_after" | "before" | "barrier") "=[" local* "]"
             | "layout=row_major[" local* "]" | "layout=by_columns[" local* "]"
             | "layout=in_order[" local* "]" | "tiles_first"
    source  := local | number
    local   := "%" value ["#" copy] "[" axes* "]" ["+" monoid "(" axis ")"]*

Brackets of a local value hold the tiling mesh axes of each dim; partial sums follow. Copies of one
value in one layout (blocks of a ring, pieces of a halo) are numbered. Types are of one device's
tile. Marks are the instruction's `Scheduling`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from partir_search.ir.core import Literal
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.local_ir import (
    UNSCHEDULED,
    LocalOp,
    LocalProgram,
    LocalRegion,
    Reshard,
    Scheduling,
)
from partir_search.lowering.local_value import LocalValue, Source

INDENT = "  "


def print_local(program: LocalProgram) -> str:
    """Text of a device-local program."""
    partition = program.partition
    printer = _Printer(partition.mesh)
    body = program.body
    lines = [f"def {partition.module.name} on {partition.mesh.text} {{"]
    lines += [f"{INDENT}{printer.declared(local)}" for local in body.args]
    lines += [f"{INDENT}constant {printer.declared(x)}" for x in program.constants.values()]
    lines += printer.region(body, 1, dict(program.results_after))
    return "\n".join([*lines, "}"])


class _Printer:
    def __init__(self, mesh: MeshShape) -> None:
        self._mesh = mesh
        self._alike: dict[str, list[LocalValue]] = {}

    def local(self, local: LocalValue) -> str:
        """Name, layout and partial sums of a local value."""
        axes = ", ".join(self._mesh.label(each) if each else "-" for each in local.layout)
        sums = "".join(f" +{m}({self._mesh.names[a]})" for a, m in local.partial)
        alike = self._alike.setdefault(f"%{local.value.name}[{axes}]{sums}", [])
        if local not in alike:
            alike.append(local)
        number = alike.index(local) + 1
        copy = f"#{number}" if number > 1 else ""
        return f"%{local.value.name}{copy}[{axes}]{sums}"

    def declared(self, local: LocalValue) -> str:
        """A local value with the tile's type."""
        return f"{self.local(local)}: {dataclasses.replace(local.value.type, shape=local.shape)}"

    def source(self, source: Source) -> str:
        return str(source.value) if isinstance(source, Literal) else self.local(source)

    def region(
        self, body: LocalRegion, level: int, after: Mapping[int, LocalValue] = MappingProxyType({})
    ) -> Iterator[str]:
        """Lines of a region's instructions, then of the results with the values awaited."""
        indent = INDENT * level
        for item in body.steps:
            if isinstance(item, Reshard):
                yield indent + self.reshard(item)
            else:
                yield from self.op(item, level)
        results = (
            f"{self.source(x)} after {self.local(after[at])}" if at in after else self.source(x)
            for at, x in enumerate(body.results)
        )
        yield f"{indent}return {', '.join(results)}"

    def sources(self, sources: Sequence[Source]) -> str:
        return ", ".join(map(self.source, sources))

    def reshard(self, item: Reshard) -> str:
        step = item.step
        said = [f'"{self._mesh.label(step.axes)}"'] if step.axes else []
        said += [*step.details(), *item.details()]
        said += [f"with {self.sources(item.received)}"] if item.received else []
        said += self.marks(item.scheduling)
        said += [f"for {item.op.prim}"] if item.op else []
        call = f"{step.kind}({self.local(item.source)})"
        return f"{self.declared(item.target)} = {' '.join([call, *said])}"

    def marks(self, scheduling: Scheduling) -> Iterator[str]:
        """Scheduling of an instruction, as marks."""
        if scheduling is UNSCHEDULED:
            return
        for name in ("after", "operands_after"):
            if values := getattr(scheduling, name):
                yield f"{name}=[{self.sources(values)}]"
        for name in ("before", "barrier"):
            if (values := getattr(scheduling, name)) is not None:
                yield f"{name}=[{self.sources(values)}]"
        if scheduling.row_major:
            yield f"layout=row_major[{self.sources(scheduling.row_major)}]"
        if scheduling.by_columns:
            yield f"layout=by_columns[{self.sources(scheduling.by_columns)}]"
        if scheduling.in_order:
            yield f"layout=in_order[{self.sources(scheduling.in_order)}]"
        if scheduling.tiles_first:
            yield "tiles_first"

    def op(self, item: LocalOp, level: int) -> Iterator[str]:
        """Lines of an op and of its regions."""
        made = ", ".join(map(self.declared, item.outs))
        said = [f"{item.op.prim}({self.sources(item.ins)})", *item.details()]
        said += [f"adds {self.sources(item.received)}"] if item.received else []
        said += self.marks(item.scheduling)
        line = f"{INDENT * level}{made} = {' '.join(said)}"
        if not item.regions:
            yield line
            return
        yield f"{line} {{"
        for i, body in enumerate(item.regions):
            if i:
                yield f"{INDENT * level}}} {{"
            yield f"{INDENT * (level + 1)}({', '.join(map(self.declared, body.args))})"
            yield from self.region(body, level + 1)
        yield f"{INDENT * level}}}"
