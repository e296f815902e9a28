"""Text of device-local programs: one line per collective, slice, window or op.

    program := "def" name "on" mesh "{" slot* block "}"
    block   := line* "return" source*
    line    := slot "=" step "(" slot ")" axes dims monoid turn ["with" slot*] ["for" op]
             | slot* "=" op "(" source* ")" turn ["{" block ("} {" block)* "}"]
    slot    := "%" value ["#" copy] "[" axes* "]" ["+" monoid "(" axis ")"]* [":" type]

The brackets of a slot hold the axes that tile each dim; partial sums follow. Copies of one value in
one layout (blocks of a ring, parts of a halo) are numbered. Types are of the device's tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.ir.core import Literal
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.local_ir import Apply, Block, LocalProgram, Move
from partir_search.lowering.slots import Slot, Source

INDENT = "  "


def print_local(program: LocalProgram) -> str:
    """The text of a device-local program."""
    partition = program.partition
    printer = _Printer(partition.mesh)
    body = program.body
    lines = [f"def {partition.module.name} on mesh<{partition.mesh}> {{"]
    lines += [f"{INDENT}{printer.declared(slot)}" for slot in body.args]
    lines += [f"{INDENT}constant {printer.declared(s)}" for s in program.constants.values()]
    return "\n".join([*lines, *printer.block(body, 1), "}"])


class _Printer:
    def __init__(self, mesh: MeshShape) -> None:
        self._mesh = mesh
        self._alike: dict[str, list[Slot]] = {}

    def slot(self, slot: Slot) -> str:
        """Name and layout of a slot, and its partial sums."""
        axes = ", ".join(self._mesh.label(each) if each else "-" for each in slot.layout)
        partial = "".join(f" +{m}({self._mesh.names[a]})" for a, m in slot.pending)
        alike = self._alike.setdefault(f"%{slot.value.name}[{axes}]{partial}", [])
        if slot not in alike:
            alike.append(slot)
        number = alike.index(slot) + 1
        copy = f"#{number}" if number > 1 else ""
        return f"%{slot.value.name}{copy}[{axes}]{partial}"

    def declared(self, slot: Slot) -> str:
        """A slot with the type of its tile."""
        return f"{self.slot(slot)}: {dataclasses.replace(slot.value.type, shape=slot.shape)}"

    def source(self, source: Source) -> str:
        return str(source.value) if isinstance(source, Literal) else self.slot(source)

    def block(self, block: Block, level: int) -> Iterator[str]:
        """The instructions of a block, then its results."""
        indent = INDENT * level
        for item in block.steps:
            if isinstance(item, Move):
                yield indent + self.move(item)
            else:
                yield from self.op(item, level)
        yield f"{indent}return {self.sources(block.results)}"

    def sources(self, sources: Sequence[Source]) -> str:
        return ", ".join(map(self.source, sources))

    def move(self, move: Move) -> str:
        step = move.step
        told = [f'"{self._mesh.label(step.axes)}"'] if step.axes else []
        told += [f"dim {step.dim}"] if step.dim >= 0 else []
        told += [f"split {step.to_dim}"] if step.to_dim >= 0 else []
        told += [step.monoid] if step.monoid else []
        told += [f"turn {move.turn}"] if move.turn else []
        told += [f"with {self.sources(move.blocks)}"] if move.blocks else []
        told += ["regather"] if move.again else []
        user = f" for {move.op.prim}" if move.op else ""
        moved = f"{step.kind}({self.slot(move.source)}) {' '.join(told)}{user}"
        return f"{self.declared(move.target)} = {moved}"

    def op(self, item: Apply, level: int) -> Iterator[str]:
        """The line of an op, and the blocks of its regions."""
        made = ", ".join(map(self.declared, item.outs))
        turn = f" turn {item.turn + 1} of {item.turns}" if item.turns > 1 else ""
        line = f"{INDENT * level}{made} = {item.op.prim}({self.sources(item.ins)}){turn}"
        if not item.blocks:
            yield line
            return
        yield f"{line} {{"
        for i, block in enumerate(item.blocks):
            if i:
                yield f"{INDENT * level}}} {{"
            yield f"{INDENT * (level + 1)}({', '.join(map(self.declared, block.args))})"
            yield from self.block(block, level + 1)
        yield f"{INDENT * level}}}"
