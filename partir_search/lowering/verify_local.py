"""Checks of device-local programs: operands defined, layouts as claimed, partial sums finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from partir_search.ir.core import Literal
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue, Source


class InvalidLocalProgram(AssertionError):
    """Raised for a device-local program with a fault; the message names instruction and value."""


def verify_local(program: LocalProgram) -> None:
    """Checks definitions, layouts, orders and results of a program.

    Raises:
      InvalidLocalProgram: an instruction reads a local value before the value's definition, a
        step's layout differs from the target's, an op reads a partial sum and makes none, or a
        result of the program is a partial sum.
    """
    _verify(program.body, set(program.constants.values()), "the program")
    for at, argument in program.results_after:
        if argument not in program.body.args or at not in range(len(program.body.results)):
            raise InvalidLocalProgram(f"result {at} waits for {_named(argument)}, no argument")
    for result in program.body.results:
        if isinstance(result, LocalValue) and result.partial:
            raise InvalidLocalProgram(f"the result {_named(result)} is a partial sum")


def _verify(body: LocalRegion, outer: Iterable[LocalValue], where: str) -> None:
    defined = {*outer, *body.args}

    def check(sources: Iterable[Source], user: str) -> None:
        for source in sources:
            if not isinstance(source, Literal) and source not in defined:
                raise InvalidLocalProgram(f"{user} in {where} reads {_named(source)} too early")

    for item in body.steps:
        order = item.scheduling
        named = item.step.kind if isinstance(item, Reshard) else item.op.prim
        check(
            (*order.after, *order.operands_after, *(order.barrier or ())), f"the order of {named}"
        )
        check(order.before or (), f"the order of {named}")
        if not {*order.row_major, *order.by_columns, *order.in_order} <= set(item.outs):
            raise InvalidLocalProgram(f"{named} in {where} lays out a value of other instructions")
        if isinstance(item, Reshard):
            check((item.source, *item.received), f"{item.step.kind} to {_named(item.target)}")
            _reshard(item)
            defined.add(item.target)
        else:
            _local_op(item, check, defined)
    check(body.results, "the end")


def _local_op(
    item: LocalOp, check: Callable[[Iterable[Source], str], None], defined: set[LocalValue]
) -> None:
    check((*item.ins, *item.received), item.op.prim)
    if not item.regions:
        _sums(item)
    for inner in item.regions:
        _verify(inner, defined, f"a region of {item.op.prim}")
    defined.update(item.outs)


def _sums(item: LocalOp) -> None:
    for source in item.ins:
        if isinstance(source, LocalValue):
            for axis in source.partial:
                if not all(axis in out.partial for out in item.outs):
                    raise InvalidLocalProgram(
                        f"{item.op.prim} reads {_named(source)} and makes a finished result"
                    )


def _reshard(item: Reshard) -> None:
    if item.target.value is not item.source.value:
        raise InvalidLocalProgram(
            f"{item.step.kind} makes {_named(item.target)} of {_named(item.source)}"
        )
    claimed = item.step.layout, item.step.partial
    if (item.target.layout, item.target.partial) != claimed:
        raise InvalidLocalProgram(
            f"{item.step.kind} to {_named(item.target)} says {claimed[0]}, partial {claimed[1]}"
        )


def _named(local: LocalValue) -> str:
    sums = f", partial {local.partial}" if local.partial else ""
    return f"%{local.value.name} in layout {local.layout}{sums}"
