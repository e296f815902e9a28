"""Casts of totals to narrower types, in front of the moves between stages and layers.

A total over microbatches of gradients in bf16 is in f32, and cast after the loop. In a pipeline
the total lies by stage, and an order by layer may need an all_gather or an all_to_all, of half of
the bytes after the cast.
"""

from __future__ import annotations

from typing import Any

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.role import Role
from partir_search.rules.registry import role_of


def early_casts(module: Module, loop: Op) -> dict[Value, Op]:
    """Casts to a narrower type by the result of the loop that each cast alone reads.

    Args:
      loop: op of the module's body.
    """
    uses, found = def_use(module), dict[Value, Op]()
    for x in loop.results[: int(loop.params["num_carry"])]:
        users = uses.users[x.id]
        if uses.counts[x.id] != 1 or len(users) != 1:
            continue
        (op,) = users
        if role_of(op) is Role.CAST and op.results[0].type.itemsize < x.type.itemsize:
            found[x] = op
    return found


def types_of_totals(loop: Op, casts: dict[Value, Op]) -> dict[Value, Any]:
    """Types of casts by the argument of the loop's body that carries the total."""
    first = int(loop.params["num_consts"])
    carries = zip(loop.regions[0].args[first:], loop.results, strict=False)
    return {a: casts[x].results[0].type.dtype for a, x in carries if x in casts}
