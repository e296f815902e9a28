"""The full form: a line per op, with all attributes and names unique in the program.

Neighbouring ops in the same loop nest are printed in one loop. An operand made outside of a loop is
sliced once at the loop's head; values made inside are used unsliced. Every line fits in `WIDTH`
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.partition import Partition
from partir_search.ir.printing.attributes import all_attributes
from partir_search.ir.printing.loops import (
    RING,
    Loop,
    Nests,
    head_text,
    joins,
    passing,
    pieces,
)
from partir_search.ir.printing.names import WholeNames
from partir_search.ir.printing.slices import Aliases, Parts, slice_lines
from partir_search.ir.printing.text import (
    assigned,
    fitted,
    layout_text,
    listed,
    literal_text,
    order_text,
    type_text,
    used_outside,
)
from partir_search.ir.rule import NONE

Keep = Callable[[Op], bool]


def print_full(partition: Partition, keep: Keep | None = None) -> str:
    """Text of the module under `partition`; with `keep`, only of the selected ops of the body."""
    module = partition.module
    printer = _Printer(partition)
    enters, leaves = dict(partition.modes.argument_layouts), dict(partition.modes.result_layouts)
    args = [
        f"%{v.name}: "
        + (layout_text(partition, v, enters[i]) if i in enters else type_text(partition, v))
        + order_text(module, i)
        for i, v in enumerate(module.body.args)
    ]
    begin, end = f"func {module.name}(", f") {partition.mesh.text} {{"
    head = listed(begin, args if keep is None else ["..."], end)
    ops = [op for op in module.body.ops if keep is None or keep(op)]
    lines = printer.ops(ops, 0, used_outside(module.body, ops), {})
    results = [
        _operand(r) + (f": {layout_text(partition, r, leaves[i])}" if i in leaves else "")
        for i, r in enumerate(module.body.results)
    ]
    tail = listed("  return ", results, "") if keep is None else []
    lines = [*head, *("  " + line for line in lines), *tail, "}"]
    return "\n".join(piece for line in lines for piece in fitted(line))


class _Printer:
    def __init__(self, partition: Partition) -> None:
        self.partition, self.names = partition, WholeNames(partition.module)
        self.nests = Nests(partition)
        self.local: dict[int, set[int]] = {}  # per axis, values made in the loop being printed

    def ops(self, ops: Sequence[Op], level: int, outside: set[int], outer: Aliases) -> list[str]:
        """Lines of ops with the first `level` loops in common.

        Args:
          outside: ids of values used by ops not in `ops`.
          outer: slices taken by loops around.
        """
        parts = {op.id: self.parts(op) for op in ops if len(self.nests[op.id]) == level}
        slices = {
            (x, part): None
            for op in ops
            for x, part in zip(op.operands, parts.get(op.id, ()), strict=False)
            if part and isinstance(x, Value)
        }
        lines, aliases = slice_lines(slices, self.names, outer)
        last = {v.id: at for at, op in enumerate(ops) for _, v in op.inputs()}
        i = 0
        while i < len(ops):
            nest = self.nests[ops[i].id]
            if len(nest) <= level:
                lines += self.statement(ops[i], parts[ops[i].id], aliases)
                i += 1
                continue
            loop, j, made = nest[level], i, set[int]()
            while j == i or (
                j < len(ops)
                and joins(self.partition, ops[j], self.nests[ops[j].id], level, loop, made)
            ):
                made.update(r.id for r in ops[j].results)
                j += 1
            results = [r for op in ops[i:j] for r in op.results]
            shown = [r for r in results if r.id in outside or last.get(r.id, NONE) >= j]
            lines += self.loop(ops[i:j], loop, level, shown, aliases)
            i = j
        return lines

    def joins(self, op: Op, level: int, loop: Loop, made: set[int]) -> bool:
        return joins(self.partition, op, self.nests[op.id], level, loop, made)

    def loop(
        self, run: Sequence[Op], loop: Loop, level: int, shown: Sequence[Value], outer: Aliases
    ) -> list[str]:
        axis = loop.axes[0]
        before = self.local.get(axis, set())
        if not loop.in_time:
            self.local[axis] = {r.id for op in run for r in op.results}
        inner = self.ops(run, level + 1, {r.id for r in shown}, outer)
        self.local[axis] = before
        names = ", ".join(f"%{r.name}" for r in shown)
        yields = names
        if loop.kind == RING and (ring := self.partition.ring(run[0])):
            yields = passing(self.partition, run[0], ring, f"%{run[0].results[0].name}")
        return [
            f"{assigned(names)}{head_text(self.partition, loop)} {{",
            *("  " + line for line in inner),
            f"  yield {yields}".rstrip(),
            "}",
        ]

    def parts(self, op: Op) -> tuple[Parts, ...]:
        """Slices taken of each operand by the op's loops."""
        return tuple(
            tuple(pieces(self.partition, op, i, self.local)) for i in range(len(op.operands))
        )

    def statement(self, op: Op, parts: Sequence[Parts], aliases: Aliases) -> list[str]:
        operands = ", ".join(
            f"%{aliases[x.id, part]}" if part and isinstance(x, Value) else _operand(x)
            for x, part in zip(op.operands, parts, strict=True)
        )
        results = ", ".join(f"%{r.name}" for r in op.results)
        text = f"{assigned(results)}{op.prim}{all_attributes(op)} {operands}".rstrip()
        if op.results:
            text += f" : {', '.join(type_text(self.partition, r) for r in op.results)}"
        if not op.regions:
            return [text]
        lines = [f"{text} {{"]
        for region in op.regions:
            args = ", ".join(f"%{v.name}: {type_text(self.partition, v)}" for v in region.args)
            lines.append(f"  ({args}) {{")
            inner = self.ops(region.ops, 0, used_outside(region, region.ops), {})
            lines += ["    " + line for line in inner]
            lines.append(f"    yield {', '.join(map(_operand, region.results))}")
            lines.append("  }")
        return [*lines, "}"]


def _operand(operand: Operand) -> str:
    return literal_text(operand) if isinstance(operand, Literal) else f"%{operand.name}"
