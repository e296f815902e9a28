"""Prints device-local programs: one line per collective, slice, window or op.

program    := "def" name "(" slot* ")" "on" mesh "{" block "}"
block      := instruction* "return" source*
instruction:= slot "=" step "(" slot ")" attributes ["for" op]
|  slot* "=" op "(" source* ")" attributes ["{" block "}"]*
slot       := "%" value "[" axes* "]" ["+" monoid "(" axes ")"]     axes of each dim; partial
"""

from __future__ import annotations

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

    def slot(self, slot: Slot) -> str:
        """Name and layout of a slot, and its partial sums."""
        axes = ", ".join(self._mesh.label(each) if each else "-" for each in slot.layout)
        partial = "".join(f" +{m}({self._mesh.names[a]})" for a, m in slot.pending)
        return f"%{slot.value.name}[{axes}]{partial}"

    def declared(self, slot: Slot) -> str:
        """A slot with the type of its tile."""
        shape = ", ".join(map(str, slot.shape))
        return f"{self.slot(slot)}: {slot.value.type.dtype}[{shape}]"

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
