"""Fused weight casts: conversions of parameters inside of the dots, without a stored result.

With `XlaTraits.fuses_weight_casts` each dot converts a parameter to bf16 as the dot reads the
parameter, in the forward and in the backward pass. A parameter sent by a collective, or with
rows gathered, is converted once and stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.analysis.def_use import def_use
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
    """Finds casts computed inside of dots and stored otherwise.

    Args:
      rules: per op id.
      stored: stored values of the module's body.

    Returns:
      By id of a cast's result, the id of the converted argument.
    """
    arguments = {v.id: v for v in module.body.args}
    returned = {x.id for x in module.body.results if isinstance(x, Value)}
    users = def_use(module).users
    known: dict[int, bool] = {}

    def for_dots(value: Value) -> bool:
        """Returns True for a value read by dots alone, directly or converted or transposed."""
        return value.id not in returned and all(
            for_dots(op.results[0]) if _reforms(op, rules[op.id]) else rules[op.id].contracts
            for op in users[value.id]
        )

    def fused(argument: Value) -> bool:
        """Returns True if dots alone read the narrower forms of an argument."""
        if argument.id not in known:
            converted = (op for op in users[argument.id] if changes_width(op, rules[op.id]) < 0)
            known[argument.id] = all(for_dots(op.results[0]) for op in converted)
        return known[argument.id]

    found: dict[int, int] = {}
    for at, read in stored.reads.items():
        op = stored.region.ops[at]
        if len(read) != 1 or read[0] not in arguments or not _reforms(op, rules[op.id]):
            continue
        argument, result = arguments[read[0]], op.results[0]
        size, n = result.type.nbytes, len(users[result.id])
        # Read the argument in each dot, or once to write the cast, which each dot then reads.
        fewer_bytes = n * argument.type.nbytes < argument.type.nbytes + (n + 1) * size
        if fewer_bytes and for_dots(result) and fused(argument):
            found[result.id] = argument.id
    return found


def _reforms(op: Op, rule: OpRule) -> bool:
    """True for an op without arithmetic on one operand: a conversion, a transpose, a reshape."""
    single = rule.elementwise and len(op.operands) == len(op.results) == 1
    return single and (rule.moves or bool(changes_width(op, rule)))


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class FusedCasts:
    """Fused weight casts among the values of a cost model's module.

    Attributes:
      mask: [values] True for a cast computed inside of dots.
      by_source: by id of a cast, or of the argument of a cast, ids of the casts stored if a
        collective sends the value.
    """

    mask: Bools
    by_source: Mapping[int, Set[int]]

    def __str__(self) -> str:
        rows = [(v, sorted(casts)) for v, casts in self.by_source.items()]
        return table("FusedCasts", ("value id sent", "casts stored then"), rows)

    def stored_with(self, value: int) -> Set[int]:
        """Ids of the casts stored if a collective sends a value."""
        return self.by_source.get(value, NOTHING)


def fuse_weight_casts(
    found: Mapping[int, int], stored: Ints, class_of: Ints, values: int
) -> FusedCasts:
    """Maps weight casts to a model's values: a value is fused if all its instances are casts.

    Args:
      found: result of `find_weight_casts` for the original.
      stored: ids of the original's values with live ranges.
      class_of: id of the model's value for each of the original's, or -1.
      values: number of the model's values.
    """
    not_casts = np.zeros(values, dtype=np.bool_)
    classes = class_of[stored[~np.isin(stored, list(found))]]
    not_casts[classes[classes >= 0]] = True
    mask = np.zeros(values, dtype=np.bool_)
    by_source: dict[int, set[int]] = {}
    for value, argument in found.items():
        cast = int(class_of[value])
        if cast >= 0 and not not_casts[cast]:
            mask[cast] = True
            for source in (cast, int(class_of[argument])):
                by_source.setdefault(source, set()).add(cast)
    return FusedCasts(mask, by_source)
