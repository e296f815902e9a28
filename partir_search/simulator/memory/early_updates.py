"""Early updates of donated state (`XlaTraits.updates_early`).

A kernel with results in donated arguments alone takes no memory. Without asynchronous collectives
XLA:TPU orders a program for memory: the kernel runs as soon as all operands are made, and a
gradient need not wait for the end of the step, unless scaled by a global norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from partir_search.simulator.memory.materialize import Materialized


def early_ends(stored: Materialized, donated: Mapping[int, int]) -> dict[int, int]:
    """Last positions of the values with shorter lives if updates run early.

    Args:
      donated: by id of a result in a donated argument's buffer, the argument's id.

    Returns:
      By id of a stored value, the position of the last kernel to read the value.
    """
    ops = stored.region.ops
    written = {at: [r.id for r in ops[at].results] for at in stored.reads}
    updates = {at for at, results in written.items() if results and donated.keys() >= {*results}}
    readers: dict[int, list[int]] = {}
    for at, leaves in stored.reads.items():
        for v in leaves:
            readers.setdefault(v, []).append(at)
    ready = {at: _ready(at, stored, updates, written[at], donated, readers) for at in updates}
    found = {}
    for v, since in stored.made.items():
        if v in donated or updates.isdisjoint(readers.get(v, ())):
            continue
        last = max(ready.get(at, at) for at in readers[v])
        if max(last, since) < stored.last[v]:
            found[v] = max(last, since)
    return found


def _ready(
    at: int,
    stored: Materialized,
    updates: Set[int],
    results: list[int],
    donated: Mapping[int, int],
    readers: Mapping[int, list[int]],
) -> int:
    """First position of an update.

    All operands are made by then, and the arguments that it overwrites are read by no further
    kernel but updates.
    """
    made = (stored.made[v] for v in stored.reads[at] if v in stored.made and v not in donated)
    reads = (k for r in results for k in readers.get(donated[r], ()) if k not in updates)
    return max((*made, *reads), default=at)
