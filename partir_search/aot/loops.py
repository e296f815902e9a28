"""Trip counts of loops in compiled programs, and runs per step of each computation.

XLA:CPU and XLA:GPU write `known_trip_count`. XLA:TPU does not: the count follows from the
comparison in the loop's condition, and from the first value and the step of the counter.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Sequence

from partir_search.aot.computations import Computation, Instruction, called, instruction

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(?P<n>\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_INTEGER = re.compile(r"-?\d+")
PASSED_ON = ("copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "opt-barrier")
INLINED = ("fusion", "call")
WHOLE = -1  # index of a carried value that is no tuple


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """Integer `offset`, plus an element of the loop's carried tuple unless `element` is None."""

    element: int | None
    offset: int

    def plus(self, other: Affine, sign: int) -> Affine | None:
        """Sum or difference; None beyond one element with sign 1."""
        if other.element is None:
            return Affine(self.element, self.offset + sign * other.offset)
        if self.element is None and sign == 1:
            return Affine(other.element, self.offset + other.offset)
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Scope:
    """A computation, and the values of its parameters.

    Attributes:
      name: of the computation.
      carried: parameter 0 stands for the carried tuple of the loop in question.
      given: (scope, name) of each operand, for a fusion or a call.
    """

    name: str
    carried: bool = False
    given: tuple[tuple[_Scope, str], ...] = ()


class Loops:
    """Loops of a compiled program."""

    def __init__(self, program: Sequence[Computation]) -> None:
        self._parts = {part.name: part for part in program}
        self._instructions: dict[str, dict[str, Instruction]] = {}
        self._caller: dict[str, tuple[str, Instruction]] = {}  # of a loop's body
        self._calls: dict[str, list[tuple[str, Instruction]]] = collections.defaultdict(list)
        for part in program:
            for line in part.lines:
                body = _BODY.search(line) if " while(" in line else None
                found = instruction(line) if body or " call(" in line else None
                if body and found:
                    self._caller[body[1]] = (part.name, found)
                elif found:
                    for name in called(line):
                        self._calls[name].append((part.name, found))

    def trips(self, line: str) -> int | None:
        """Runs of the body of a `while` instruction; None if unknown."""
        if known := _TRIPS.search(line):
            return int(known["n"])
        body, condition = _BODY.search(line), _CONDITION.search(line)
        if not body or not condition or body[1] not in self._caller:
            return None
        sides = self._comparison(_Scope(condition[1], carried=True), None)
        if sides is None:
            return None
        left, right, direction = sides
        starts, steps = zip(*(self._course(body[1], side) for side in (left, right)), strict=True)
        if None in starts or None in steps:
            return None
        return _turns(starts[0] - starts[1], steps[0] - steps[1], direction)

    def _course(self, body: str, side: Affine) -> tuple[int | None, int | None]:
        """First value of a comparison's side, and its change by each run of the body."""
        if side.element is None:
            return side.offset, 0
        step = self._step(body, side.element)
        caller, loop = self._caller[body]
        first = self._element(_Scope(caller), loop.operands[0], side.element)
        if step is None or first is None or first.element is not None:
            return None, None
        return first.offset + side.offset, step

    def _step(self, body: str, element: int) -> int | None:
        """Change of a carried element by one run of a loop's body; None if unknown."""
        new = self._element(_Scope(body, carried=True), None, element)
        return new.offset if new is not None and new.element == element else None

    def _find(self, scope: _Scope, name: str | None) -> Instruction | None:
        """An instruction by name; the root without a name."""
        if scope.name not in self._instructions:
            lines = self._parts[scope.name].lines if scope.name in self._parts else ()
            held = [found for found in map(instruction, lines) if found]
            self._instructions[scope.name] = {each.name: each for each in held}
        held_here = self._instructions[scope.name]
        if name is not None:
            return held_here.get(name)
        return next((each for each in held_here.values() if each.root), None)

    def _inside(self, scope: _Scope, found: Instruction) -> _Scope | None:
        """Scope of a fusion's or call's computation."""
        names = called(found.line)
        given = tuple((scope, operand) for operand in found.operands)
        return _Scope(names[0], given=given) if names else None

    def _comparison(self, scope: _Scope, name: str | None) -> tuple[Affine, Affine, str] | None:
        """Sides and direction of a predicate that compares two integers."""
        found = self._find(scope, name)
        if found is None:
            return None
        if found.op in INLINED:
            inner = self._inside(scope, found)
            return None if inner is None else self._comparison(inner, None)
        if found.op in PASSED_ON:
            return self._comparison(scope, found.operands[0])
        direction = _DIRECTION.search(found.line)
        if not direction or len(found.operands) != 2:
            return None
        left, right = (self._value(scope, operand) for operand in found.operands)
        return (left, right, direction[1]) if left is not None and right is not None else None

    def _value(self, scope: _Scope, name: str | None) -> Affine | None:
        """An integer by the name of its instruction; None if unknown."""
        tuple_name, _, index_text = (name or "").rpartition("#")
        if tuple_name:  # XLA's short form of get-tuple-element
            return self._element(scope, tuple_name, int(index_text))
        found = self._find(scope, name)
        if found is None:
            return None
        match found.op:
            case "constant":
                literal = _INTEGER.fullmatch(found.arguments)
                return Affine(None, int(literal[0])) if literal else None
            case "parameter":
                return self._parameter(scope, found, WHOLE)
            case "get-tuple-element":
                index = _INDEX.search(found.line)
                return self._element(scope, found.operands[0], int(index[1])) if index else None
            case "add" | "subtract":
                left, right = (self._value(scope, operand) for operand in found.operands)
                sign = 1 if found.op == "add" else -1
                return left.plus(right, sign) if left is not None and right is not None else None
            case "while":
                return self._element(scope, name, WHOLE)
        if found.op in PASSED_ON:
            return self._value(scope, found.operands[0])
        inner = self._inside(scope, found) if found.op in INLINED else None
        return None if inner is None else self._value(inner, None)

    def _element(self, scope: _Scope, name: str | None, index: int) -> Affine | None:
        """Element of a tuple, or the value itself by the index `WHOLE`."""
        found = self._find(scope, name)
        if found is None:
            return None
        match found.op:
            case "tuple":
                return self._value(scope, found.operands[index]) if index != WHOLE else None
            case "parameter":
                return self._parameter(scope, found, index)
            case "while":  # an element that no run changes
                body = _BODY.search(found.line)
                kept = body and self._step(body[1], index) == 0
                return self._element(scope, found.operands[0], index) if kept else None
        if index == WHOLE:
            return self._value(scope, name)
        if found.op in PASSED_ON:
            return self._element(scope, found.operands[0], index)
        inner = self._inside(scope, found) if found.op in INLINED else None
        return None if inner is None else self._element(inner, None, index)

    def _parameter(self, scope: _Scope, found: Instruction, index: int) -> Affine | None:
        """A parameter, or an element of it: of a loop, a fusion, a call, or an enclosing loop."""
        if scope.carried:
            return Affine(index, 0)
        if scope.given:
            return self._element(*scope.given[int(found.arguments)], index)
        if len(self._calls[scope.name]) == 1:
            ((caller, call),) = self._calls[scope.name]
            return self._element(_Scope(caller), call.operands[int(found.arguments)], index)
        if scope.name not in self._caller or self._step(scope.name, index) != 0:
            return None
        caller, loop = self._caller[scope.name]
        return self._element(_Scope(caller), loop.operands[0], index)


def _turns(start: int, step: int, direction: str) -> int | None:
    """Runs while `start + run * step` compares with 0 in a direction; None without an end."""
    if direction in ("GT", "GE"):
        start, step, direction = -start, -step, direction.replace("G", "L")
    if direction == "LE":
        start, direction = start - 1, "LT"
    match direction:
        case "LT" if start >= 0:
            return 0
        case "LT" if step > 0:
            return -(start // step)
        case "NE" if start == 0:
            return 0
        case "NE" if step and start % step == 0 and -start // step > 0:
            return -start // step
        case "EQ" if start != 0:
            return 0
        case "EQ" if step:
            return 1
    return None


def runs(program: Sequence[Computation]) -> dict[str, int | None]:
    """Runs per step of each computation; None inside of a loop of unknown trip count.

    Branches of conditionals count as run.
    """
    loops = Loops(program)
    callers: dict[str, list[tuple[str, int | None]]] = collections.defaultdict(list)
    for computation in program:
        for line in computation.lines:
            names = called(line)
            trips = loops.trips(line) if names and " while(" in line else 1
            for name in names:
                callers[name].append((computation.name, trips))

    @functools.cache
    def runs_of(computation: str) -> int | None:
        total = 0
        for by, trips in callers[computation]:
            times = runs_of(by)
            if times is None or trips is None:
                return None
            total += times * trips
        return total if callers[computation] else 1

    return {each.name: runs_of(each.name) for each in program}
