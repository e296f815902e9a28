"""Types, operands and lists as text; lines of at most `WIDTH` columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from partir_search.ir.core import Literal, Module, Op, Operand, Region, Value
from partir_search.ir.partition import Layout, Partition

_MARKS = re.compile(r"[][(){} ]")
WIDTH = 100  # columns; longer lists of arguments and results have a line per item


def type_text(partition: Partition, value: Value) -> str:
    """`f32[8,4]{batch:0, model:sum}`: global type, tiled dims and unfinished reductions."""
    p, names = partition, partition.mesh.names
    notes = [
        f"{names[a]}:{d}"
        for a in p.order
        if value.type.shape and (d := p.axes[a].tiles[value.id]) >= 0
    ]
    notes += [f"{names[a]}:{monoid}" for a, monoid in p.partial_at_rest(value)]
    return f"{value.type}{{{', '.join(notes)}}}" if notes else str(value.type)


def layout_text(partition: Partition, x: Operand, layout: Layout) -> str:
    """Type of an argument or result in a given layout."""
    names = partition.mesh.names
    notes = [f"{names[a]}:{d}" for d, axes in enumerate(layout) for a in axes]
    return f"{x.type}{{{', '.join(notes)}}}"


def order_text(module: Module, argument: int) -> str:
    """` layers<stages:4 dim:0>` for an argument of a staged state, "" for others."""
    order = module.staged.of_argument(argument)
    return f" {order}" if order else ""


def literal_text(literal: Literal) -> str:
    value = literal.value
    return str(value.item() if hasattr(value, "item") else value)


def assigned(results: str) -> str:
    """`%x = `, or nothing for ops without results."""
    return f"{results} = " if results else ""


def listed(begin: str, items: Sequence[str], end: str) -> list[str]:
    """A list in one line if it fits, or with a line per item."""
    line = f"{begin}{', '.join(items)}{end}"
    if len(line) <= WIDTH or len(items) == 1:
        return [line]
    indent = " " * (len(begin) - len(begin.lstrip()))
    inside = [f"{indent}  {item}," for item in items]
    if not end:  # no bracket closes the list
        inside[-1] = inside[-1].removesuffix(",")
        return [begin.rstrip(), *inside]
    return [begin, *inside, indent + end]


def fitted(line: str) -> list[str]:
    """The line in pieces of at most `WIDTH` columns; all but the first are indented by 4 more.

    A word of the length of a line or longer has a smaller indent, and a break after a comma.
    """
    if len(line) <= WIDTH:
        return [line]
    indent = min(_indent(line) + 4, WIDTH // 2)
    lines = []
    while len(line) > WIDTH:
        at = _break(line)
        lines.append(line[:at])
        rest = line[at:].lstrip()
        word = len(rest.partition(" ")[0])
        line = " " * max(min(indent, WIDTH - word), 0) + rest
    return [*lines, line]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _break(line: str) -> int:
    """Column of the space to break a line at.

    In the right half, in the fewest brackets, after a comma or before a type if possible, the last
    one. A line without spaces breaks after a comma.
    """
    begin = _indent(line)
    depth, best, found = 0, (len(line), True), 0
    for mark in _MARKS.finditer(line, 0, WIDTH + 1):
        at, c = mark.start(), mark[0]
        if c != " ":
            depth += 1 if c in "([{" else -1
        elif at >= max(WIDTH // 2, begin) and not _tied(line, at):
            rank = (depth, not (line[at - 1] == "," or line[at + 1] == ":"))
            if rank <= best:
                best, found = rank, at
    if found:
        return found
    comma = line.rfind(",", begin, WIDTH) + 1
    return comma if comma > begin else WIDTH


def _tied(line: str, at: int) -> bool:
    """True for a space that no line is broken at: after `=`, before a bracket."""
    return line[at - 1] in "=:" or line[at + 1] in "{)"


def used_outside(region: Region, ops: Sequence[Op]) -> set[int]:
    """Ids of values used by the region's results or by its ops not in `ops`."""
    inside = {op.id for op in ops}
    used = {x.id for x in region.results if isinstance(x, Value)}
    for op in region.ops:
        if op.id not in inside:
            used.update(v.id for _, v in op.inputs())
    return used
