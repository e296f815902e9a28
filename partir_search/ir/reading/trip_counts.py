"""Trip counts of a module just read: exact, given by the user, or assumed.

The cost of a data-dependent loop depends on an unknown count. Nested loops of unknown count share
one assumption: the innermost body runs `ASSUMED` times in all, not this number to the power of the
depth. A loop with a smaller limit gets its limit, and the remaining loops share the rest.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from partir_search.ir.core import Module, Op, Region
from partir_search.ir.reading.counted_loops import Counted
from partir_search.ir.reading.early_exit import early_scans
from partir_search.ir.trip_counts import ASSUMED, Trips, loop_name


def set_trips(
    module: Module,
    counts: Mapping[int, Counted | None],
    said: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Adds the `trips` param to each loop of a module whose count is not a plain length.

    Args:
      counts: bound found in the program, by `id` of a `while`.
      said: the user's trip counts, by glob on a loop's source line, name stack or name.

    Raises:
      ValueError: a glob matches no loop with a data-dependent count.
    """
    counts = dict(counts)
    unknown, known = dict[int, Op](), list[Op]()
    for op in early_scans(module.body):
        counts[id(op)] = Counted(int(op.params["length"]), exact=False)
        unknown[id(op)] = op
    for op in _whiles(module.body):
        count = counts.get(id(op))
        if count is not None and count.exact:
            _give(op, Trips(max(1, count.most), count.most, "program"))
            known.append(op)
        else:
            unknown[id(op)] = op
    loops = list(unknown.values())
    used: set[str] = set()
    for op in loops if said else ():
        for glob, count_said in said.items():
            if any(fnmatch.fnmatchcase(text, glob) for text in _texts(op)):
                used.add(glob)
                if id(op) in unknown:
                    _say(op, unknown, counts, count_said)
    for glob in said:
        if glob not in used:
            raise ValueError(_no_loop(glob, loops, known))
    for op in module.body.ops:
        _assume(op, unknown, counts, float(ASSUMED))


def _whiles(region: Region) -> Iterator[Op]:
    for op in region.ops:
        if op.prim == "while":
            yield op
        for inner in op.regions:
            yield from _whiles(inner)


def _give(op: Op, trips: Trips) -> None:
    op.params = {**op.params, "trips": trips}


def _most(counts: Mapping[int, Counted | None], op: Op) -> int | None:
    found = counts.get(id(op))
    return None if found is None else found.most


def _say(op: Op, unknown: dict[int, Op], counts: Mapping[int, Counted | None], count: int) -> None:
    """Applies the user's count; on a nest of scans with early exit, to all of the nest together."""
    if op.prim == "while":
        _give(op, Trips(count, _most(counts, op), "user"))
        del unknown[id(op)]
        return
    nest = {i: unknown.pop(i) for i in map(id, early_scans(Region((), (op,), ()))) if i in unknown}
    _assume(op, nest, counts, float(count), "user")


def _limits(
    op: Op, unknown: Mapping[int, Any], counts: Mapping[int, Counted | None]
) -> list[int | None]:
    """Limits of nested loops of unknown count, from `op` inward; None for a loop without one."""
    inner = [_limits(o, unknown, counts) for r in op.regions for o in r.ops if o.regions]
    own = [_most(counts, op)] if id(op) in unknown else []
    return own + max(inner, key=len, default=[])


def _share(limits: list[int | None], runs: float) -> float:
    """Common count of nested loops for `runs` runs of the innermost body.

    Loops with limits below the common count are excluded.
    """
    free = list(limits)
    while True:
        share = float(runs ** (1 / len(free)))
        small = [m for m in free if m is not None and m < share]
        if len(small) in (0, len(free)):
            return share
        for m in small:
            runs /= max(1, m)
            free.remove(m)


def _assume(
    op: Op,
    unknown: Mapping[int, Any],
    counts: Mapping[int, Counted | None],
    runs: float,
    said: str = "assumed",
) -> None:
    """Distributes `runs` iterations over nested loops of unknown count."""
    if not op.regions:
        return
    if id(op) in unknown:
        most = _most(counts, op)
        count = max(1, round(_share(_limits(op, unknown, counts), runs)))
        count = count if most is None else max(1, min(count, most))
        _give(op, Trips(count, most, said))
        runs = max(1.0, runs / count)
    for region in op.regions:
        for inner in region.ops:
            _assume(inner, unknown, counts, runs, said)


def _texts(op: Op) -> tuple[str, ...]:
    return op.source, op.scope, loop_name(op)


def _no_loop(glob: str, left: list[Op], known: list[Op]) -> str:
    exact = [o for o in known if any(fnmatch.fnmatchcase(t, glob) for t in _texts(o))]
    if exact:
        trips: Trips = exact[0].params["trips"]
        return (
            f"trip_counts: {glob!r} matches a loop at {exact[0].source or loop_name(exact[0])} that"
            f" the program itself runs {trips.count} times"
        )
    shown = ", ".join(f"{loop_name(o)} at {o.source or '?'}" for o in left[:5])
    more = ", ..." if len(left) > 5 else ""
    return (
        f"trip_counts: {glob!r} matches no loop whose count depends on data (a glob is matched"
        " with a loop's source line, name stack and name); "
        + (f"they are: {shown}{more}" if left else "the program has none")
    )
