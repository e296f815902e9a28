"""Checks of device-local programs: operands defined, layouts as claimed, partial sums finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from partir_search.ir.core import Literal
from partir_search.lowering.local_ir import Apply, Block, LocalProgram, Move
from partir_search.lowering.slots import Slot, Source


class InvalidLocalProgram(AssertionError):
    """A device-local program that cannot run; the message names instruction and slot."""


def verify_local(program: LocalProgram) -> None:
    """Checks a program.

    Raises:
      InvalidLocalProgram: an instruction reads a slot that no earlier one defines, a step leaves
        another layout than it says, or a result of the program is a partial sum.
    """
    _block(program.body, set(program.constants.values()), "the program")
    for result in program.body.results:
        if isinstance(result, Slot) and result.pending:
            raise InvalidLocalProgram(f"the result {_named(result)} is a partial sum")


def _block(block: Block, outer: Iterable[Slot], where: str) -> None:
    defined = {*outer, *block.args}

    def check(sources: Iterable[Source], user: str) -> None:
        for source in sources:
            if not isinstance(source, Literal) and source not in defined:
                raise InvalidLocalProgram(f"{user} in {where} reads {_named(source)} too early")

    for item in block.steps:
        if isinstance(item, Move):
            check((item.source, *item.blocks), f"{item.step.kind} to {_named(item.target)}")
            _move(item)
            defined.add(item.target)
        else:
            _apply(item, check, defined)
    check(block.results, "the end")


def _apply(item: Apply, check: Callable[[Iterable[Source], str], None], defined: set[Slot]) -> None:
    check((*item.ins, *item.arrived), item.op.prim)
    for inner in item.blocks:
        _block(inner, defined, f"a region of {item.op.prim}")
    defined.update(item.outs)


def _move(move: Move) -> None:
    if move.target.value is not move.source.value:
        raise InvalidLocalProgram(
            f"{move.step.kind} makes {_named(move.target)} of {_named(move.source)}"
        )
    claimed = move.step.layout, move.step.pending
    if (move.target.layout, move.target.pending) != claimed:
        raise InvalidLocalProgram(
            f"{move.step.kind} to {_named(move.target)} says {claimed[0]}, partial {claimed[1]}"
        )


def _named(slot: Slot) -> str:
    partial = f", partial {slot.pending}" if slot.pending else ""
    return f"%{slot.value.name} in layout {slot.layout}{partial}"
