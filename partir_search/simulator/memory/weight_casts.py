"""Casts of weights that dots compute themselves, and that are stored nowhere.

Under `XlaTraits.fuses_weight_casts` the conversion of a parameter to bf16 is part of each dot that
reads it, in the forward and in the backward pass. A parameter that is sent or gathered by rows is
converted once and kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.memory.float_types import changes_width
from partir_search.simulator.memory.materialize import Materialized
from partir_search.simulator.printing import table

NOTHING: Set[int] = frozenset()


def find_weight_casts(
    module: Module, rules: Sequence[OpRule], stored: Materialized
) -> dict[int, int]:
    """By id of a cast that would be stored otherwise, the id of the argument that it converts.

    Args:
      stored: values of the module's body.
    """
    arguments = {v.id: v for v in module.body.args}
    kept = {x.id for x in module.body.results if isinstance(x, Value)}
    users = module.users()
    known: dict[int, bool] = {}

    def for_products(value: Value) -> bool:
        """Tells whether products alone read a value, as it is or in another form."""
        return value.id not in kept and all(
            for_products(op.results[0]) if _reforms(op, rules[op.id]) else rules[op.id].contracts
            for op in users[value.id]
        )

    def fused(argument: Value) -> bool:
        """Tells whether products alone read an argument's converted form: it is converted once."""
        if argument.id not in known:
            converted = (op for op in users[argument.id] if changes_width(op, rules[op.id]) < 0)
            known[argument.id] = all(for_products(op.results[0]) for op in converted)
        return known[argument.id]

    found: dict[int, int] = {}
    for at, read in stored.reads.items():
        op = stored.region.ops[at]
        if len(read) != 1 or read[0] not in arguments or not _reforms(op, rules[op.id]):
            continue
        argument, result = arguments[read[0]], op.results[0]
        size, n = result.type.nbytes, len(users[result.id])
        cheap = n * argument.type.nbytes < argument.type.nbytes + (n + 1) * size
        if cheap and for_products(result) and fused(argument):
            found[result.id] = argument.id
    return found


def _reforms(op: Op, rule: OpRule) -> bool:
    """True if an op gives its operand another form: a type or an order of dims."""
    single = rule.elementwise and len(op.operands) == len(op.results) == 1
    return single and (not rule.flops_per_point or bool(changes_width(op, rule)))


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class FusedCasts:
    """Casts of a cost model's values (of a quotient's, if the module is folded).

    Attributes:
      mask: [values] whether a value is a cast that dots compute themselves.
      by_source: by id of a cast or of the argument that it is made of, ids of casts that are
        stored if the value is sent.
    """

    mask: Bools
    by_source: Mapping[int, Set[int]]

    def __str__(self) -> str:
        rows = [(v, sorted(casts)) for v, casts in self.by_source.items()]
        return table("FusedCasts", ("value id sent", "casts stored then"), rows)

    def stored_with(self, value: int) -> Set[int]:
        """Ids of casts that are stored if a value is sent."""
        return self.by_source.get(value, NOTHING)


def fuse_weight_casts(
    found: Mapping[int, int], stored: Ints, class_of: Ints, values: int
) -> FusedCasts:
    """Casts that dots compute themselves in every instance.

    Args:
      found: see `find_weight_casts`; of the original's values.
      stored: ids of the original's values with live ranges.
      class_of: id of the model's value for each of the original's.
      values: number of the model's values.
    """
    others = np.zeros(values, dtype=np.bool_)
    of = class_of[stored[~np.isin(stored, list(found))]]
    others[of[of >= 0]] = True
    mask = np.zeros(values, dtype=np.bool_)
    by_source: dict[int, set[int]] = {}
    for value, argument in found.items():
        cast = int(class_of[value])
        if cast >= 0 and not others[cast]:
            mask[cast] = True
            for source in (cast, int(class_of[argument])):
                by_source.setdefault(source, set()).add(cast)
    return FusedCasts(mask, by_source)
