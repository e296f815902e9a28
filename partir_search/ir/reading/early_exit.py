"""Nests of scans with early exit: bounded `while` loops with a derivative.

`equinox.internal.while_loop(kind="bounded")` is a nest of scans of 16 iterations. Each iteration
either continues the loop or passes its carry on. Without the exit, the innermost body would run 16
to the power of the depth times. A single scan with an idle branch is ambiguous and not included.
"""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.ir.core import Op, Region, Value

_AGAIN = frozenset({"remat2", "checkpoint"})


def early_scans(region: Region) -> Iterator[Op]:
    """Scans of nests with early exit, in a region and nested regions."""
    for op in region.ops:
        if op.prim == "scan" and any(True for _ in _inside(op)):
            yield from _nest(op)
        for inner in op.regions:
            yield from early_scans(inner)


def _nest(op: Op) -> Iterator[Op]:
    """The scan and the scans in its branches."""
    yield op
    for inner in _inside(op):
        yield from _nest(inner)


def _asks(op: Op) -> bool:
    """True if each iteration of a scan may be idle."""
    return any(True for _ in _branches(op))


def _inside(op: Op) -> Iterator[Op]:
    """Scans with idle iterations in the branches of another one's iteration."""
    for branch in _branches(op):
        for inner in _direct(branch):
            if inner.prim == "scan" and _asks(inner):
                yield inner


def _branches(op: Op) -> Iterator[Region]:
    """Branches of an iteration with an idle alternative, without the idle one."""
    for inner in _direct(op.regions[0]):
        if inner.prim == "cond" and any(map(_idle, inner.regions)):
            yield from (r for r in inner.regions if not _idle(r))


def _direct(region: Region) -> Iterator[Op]:
    """Ops of a region, those inside of remat included."""
    for op in region.ops:
        if op.prim in _AGAIN:
            yield from _direct(op.regions[0])
        else:
            yield op


def _idle(region: Region) -> bool:
    """True if a branch only returns its operands or constants."""
    made: set[int] = set()
    for op in region.ops:
        if op.effect or op.regions:
            return False
        if any(isinstance(x, Value) and id(x) not in made for x in op.operands):
            return False
        made.update(map(id, op.results))
    return True
