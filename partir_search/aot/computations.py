"""Computations and instructions in the text of compiled programs."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \((?P<args>.*)\) -> ")
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]+\d*\w*)\[(?P<dims>[\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:(?:body|calls|to_apply|(?:true_|false_)?computation)=%?(?P<name>[\w.-]+)"
    r"|branch_computations=\{(?P<names>[^}]*)\})"
)
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = "
    r"(?P<type>.*?)(?P<op>[a-z][\w-]*)\((?P<arguments>[^)]*)"
)
_DOT = re.compile(
    r" = (?P<type>\S+) dot\(%?(?P<lhs>[\w.-]+),.*?lhs_contracting_dims=\{(?P<dims>[\d,]*)\}"
)
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True)
class Computation:
    """One computation of HLO text: name, text of the arguments, a line per instruction."""

    name: str
    arguments: str
    lines: tuple[str, ...]
    entry: bool = False


def computations(text: str) -> list[Computation]:
    """Computations of HLO text, in the order of the text."""
    found: list[tuple[re.Match[str], list[str]]] = []
    lines: list[str] = []
    for line in text.splitlines():
        header = None if line.startswith(" ") else _COMPUTATION.match(line)
        if header:
            lines = []
            found.append((header, lines))
        elif line.startswith(" "):
            lines.append(line)
    return [
        Computation(h["name"], h["args"], tuple(body), h["entry"] is not None) for h, body in found
    ]


def called(line: str) -> list[str]:
    """Names of the computations called by an instruction."""
    return [
        name.strip(" %")
        for found in _CALLED.finditer(line)
        for name in (found["name"] or found["names"]).split(",")
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of HLO text.

    Attributes:
      name: of the result.
      type: text of the result's type.
      op: HLO's opcode, `get-tuple-element`.
      arguments: text between the opcode's parentheses: operands, or a constant.
      root: the computation's result.
      line: the whole text.
    """

    name: str
    type: str
    op: str
    arguments: str
    root: bool
    line: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands; ``name#1`` is an element of a tuple."""
        return [each.strip(" %") for each in _COMMENT.sub("", self.arguments).split(",") if each]


def instruction(line: str) -> Instruction | None:
    """The instruction in a line; None if there is none."""
    m = _INSTRUCTION.match(line)
    if not m:
        return None
    return Instruction(m["name"], m["type"], m["op"], m["arguments"], bool(m["root"]), line)


def array_sizes(text: str) -> Iterator[tuple[int, int]]:
    """(elements, itemsize) of each array type in the text."""
    for m in _ARRAY.finditer(text):
        dims = [int(d) for d in m["dims"].split(",") if d]
        bits = re.search(r"\d+", m["dtype"])
        yield math.prod(dims), max(1, int(bits.group()) // 8) if bits else 1


def dots(part: Computation) -> Iterator[tuple[float, str]]:
    """Operations of each dot in a computation, and the type of its first operand (``bf16``)."""
    types = {m.name: m.type for m in map(instruction, part.lines) if m}
    for dot in filter(None, map(_DOT.search, part.lines)):
        of = types[dot["lhs"]]
        over = [int(d) for d in dot["dims"].split(",") if d]
        yield dot_flops(of, over, dot["type"]), of[: of.index("[")]


def dot_flops(operand: str, over: Iterable[int], result: str) -> float:
    """Operations of a dot.

    Args:
      operand: text of the first operand's type.
      over: contracted dims of that operand.
      result: text of the result's type, of the first array if it has several.
    """
    sides = [int(n) for n in operand[operand.index("[") + 1 : operand.index("]")].split(",")]
    elements, _ = next(array_sizes(result))
    return 2.0 * elements * math.prod(sides[d] for d in over)
