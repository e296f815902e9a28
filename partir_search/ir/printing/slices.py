"""Slices of operands, taken once at the head of a loop and named there."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Protocol

from partir_search.ir.core import Value
from partir_search.ir.printing.loops import Piece

Parts = tuple[Piece, ...]
Aliases = dict[tuple[int, Parts], str]  # names of slices, by value id and parts


class SliceNames(Protocol):
    """Names of values and of their slices."""

    def of(self, value: Value) -> str: ...

    def slice_of(self, value: Value, key: object) -> str: ...


def slice_lines(
    slices: Iterable[tuple[Value, Parts]], names: SliceNames, outer: Aliases
) -> tuple[list[str], Aliases]:
    """Lines `%xs = slice 0 %x[%batch]` at the head of a loop, and the names of all slices.

    Slices taken by outer loops have no line; values with equal parts share a line.
    """
    aliases = dict(outer)
    groups: dict[Parts, list[Value]] = collections.defaultdict(list)
    for value, parts in slices:
        if (value.id, parts) not in outer:
            groups[parts].append(value)
    lines = []
    for parts, values in groups.items():
        for v in values:
            aliases[v.id, parts] = names.slice_of(v, parts)
        made = ", ".join(f"%{aliases[v.id, parts]}" for v in values)
        texts = ", ".join(f"%{names.of(v)}" for v in values)
        lines.append(f"{made} = {_taken(parts, texts if len(values) == 1 else f'({texts})')}")
    return lines, aliases


def _taken(parts: Sequence[Piece], operand: str) -> str:
    """`slice 0,1 %x[%batch, %model]`; a window of a slice in brackets."""
    if all(p.word == "slice" and "," not in p.place for p in parts):
        dims = ",".join(str(p.dim) for p in parts)
        return f"slice {dims} {operand}[{', '.join(p.place for p in parts)}]"
    for part in parts:
        operand = part.of(operand)
    return operand[1:-1]
