"""Scans in each other that are left early: bounded `while` loops that can be differentiated.

`equinox.internal.while_loop(kind="bounded")` is a nest of scans of 16 iterations. Each iteration
asks if the loop goes on and else passes its carry on. The nest could run the innermost body 16 to
the power of its depth times. A single scan with a branch that does nothing may be anything, and is
left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.ir.core import Op, Region, Value

_AGAIN = frozenset({"remat2", "checkpoint"})


def early_scans(region: Region) -> Iterator[Op]:
    """The scans of such nests, in a region and those inside of it."""
    for op in region.ops:
        if op.prim == "scan" and any(True for _ in _inside(op)):
            yield from _nest(op)
        for inner in op.regions:
            yield from early_scans(inner)


def _nest(op: Op) -> Iterator[Op]:
    """The scan and those in its branches."""
    yield op
    for inner in _inside(op):
        yield from _nest(inner)


def _asks(op: Op) -> bool:
    """Tells whether each iteration of a scan may do nothing."""
    return any(True for _ in _branches(op))


def _inside(op: Op) -> Iterator[Op]:
    """Scans, each iteration of which may do nothing, within what an iteration may do."""
    for branch in _branches(op):
        for inner in _direct(branch):
            if inner.prim == "scan" and _asks(inner):
                yield inner


def _branches(op: Op) -> Iterator[Region]:
    """Branches of an iteration that may do nothing, without the idle one."""
    for inner in _direct(op.regions[0]):
        if inner.prim == "cond" and any(map(_idle, inner.regions)):
            yield from (r for r in inner.regions if not _idle(r))


def _direct(region: Region) -> Iterator[Op]:
    """The ops of a region, also of those that are computed again."""
    for op in region.ops:
        if op.prim in _AGAIN:
            yield from _direct(op.regions[0])
        else:
            yield op


def _idle(region: Region) -> bool:
    """Tells whether a branch passes its operands on, or makes constants."""
    made: set[int] = set()
    for op in region.ops:
        if op.effect or op.regions:
            return False
        if any(isinstance(x, Value) and id(x) not in made for x in op.operands):
            return False
        made.update(map(id, op.results))
    return True
