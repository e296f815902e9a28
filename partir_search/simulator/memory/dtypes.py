"""Stored dtypes: values that a compiler keeps in another width than the program says.

Three traits change widths. A target that multiplies f32 in bf16 stores and gathers f32 values as
bf16 where dots alone read them (`f32_dot_operand_bytes`). A dot that is rounded to bf16 only to be
widened again is stored wide, for the forward pass or for both (`keeps_dots_wide`,
`simulator/memory/softmax.py`). One-hot updates of zeros are never stored (`fuses_one_hot_updates`).
Two more store elementwise operands of dots: `materializes_dot_operands`, `materializes_softmax`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.analysis.def_use import is_zero, zero_values
from partir_search.ir.core import Module, Value, walk_regions
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Bools, Floats
from partir_search.simulator.memory.float_types import changes_width, is_float
from partir_search.simulator.memory.softmax import DotOutputs, sums_few
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Dtypes:
    """Stored form of a module's values where a target's compiler differs from the program.

    Attributes:
      names: [values] for printing.
      width: [values] stored bytes as a multiple of the type's. Arguments are stored as they are.
      changed: by id of a value whose width is not 1, the width.
      for_dots: [values] whether the value is f32 and dots alone read it.
      one_hot: ids of ops that are recomputed in their consumers though they are not elementwise.
      materialized: ids of elementwise values that are stored, as dots read them.
      wide_forward: ids of values of which a form twice as wide is stored too, for the forward pass.
      softmax_in_one_kernel: by id of a dot's result, whether the dot's kernel computes the softmax
        of the result (else a second one, which stores the exponentials); softmaxes of all other
        values take two kernels.
    """

    names: Sequence[str]
    width: Floats
    changed: Mapping[int, float]
    for_dots: Bools
    one_hot: Set[int]
    materialized: Set[int]
    wide_forward: Set[int]
    softmax_in_one_kernel: Mapping[int, bool]

    def __str__(self) -> str:
        rows: list[tuple[object, ...]] = [
            (self.names[v], f"{width:g} times as wide") for v, width in self.changed.items()
        ]
        rows += [(self.names[v], "stored for dots") for v in sorted(self.materialized)]
        rows += [
            (self.names[v], "twice, wide until its last forward use") for v in self.wide_forward
        ]
        return table("Dtypes", ("value", "stored"), rows)


def assign_dtypes(module: Module, rules: Sequence[OpRule], traits: XlaTraits) -> Dtypes:
    """Stored form of a module's values on a target.

    Args:
      rules: per op id.
    """
    n = len(module.values)
    width, for_dots = np.ones(n), np.zeros(n, dtype=np.bool_)
    wide, in_one_kernel = set[int](), dict[int, bool]()
    one_hot = frozenset[int]()
    if traits.narrows_dot_operands or traits.keeps_dots_wide:
        for_dots = _set_widths(module, rules, traits, width, wide, in_one_kernel)
    if traits.fuses_one_hot_updates:
        zeros = zero_values(module, rules)
        updates = (op for op in module.ops if rules[op.id].one_hot)
        one_hot = frozenset(op.id for op in updates if is_zero(op.operands[0], zeros))
    materialized = frozenset[int]()
    if traits.materializes_softmax:
        materialized |= _softmax_weights(module, rules)
    if traits.materializes_dot_operands:
        materialized |= _dot_operands(module, rules)
    changed = {v: float(width[v]) for v in np.flatnonzero(width != 1.0).tolist()}
    names = [v.name for v in module.values]
    return Dtypes(names, width, changed, for_dots, one_hot, materialized, wide, in_one_kernel)


def _set_widths(
    module: Module,
    rules: Sequence[OpRule],
    traits: XlaTraits,
    width: Floats,
    wide: set[int],
    in_one_kernel: dict[int, bool],
) -> Bools:
    """Fills `width`, `wide` and `in_one_kernel` (see `Dtypes`); returns `for_dots`."""
    n = len(module.values)
    for_dots, for_widening = [True] * n, [True] * n
    for region in walk_regions(module.body):
        for x in region.results:
            if isinstance(x, Value):
                for_dots[x.id] = for_widening[x.id] = False
    used = [False] * n
    converted = [True] * n  # every use is a conversion itself
    for op in reversed(module.ops):
        rule = rules[op.id]
        dots, widening, converts = rule.contracts and not op.regions, False, False
        if rule.elementwise and not op.regions:
            change, results = changes_width(op, rule), [r.id for r in op.results]
            converts = change > 0
            widening = converts or all(for_widening[r] and used[r] for r in results)
            dots |= change < 0 or (
                not rule.flops_per_point and all(for_dots[r] and used[r] for r in results)
            )
        for _, v in op.inputs():
            used[v.id] = True
            for_dots[v.id] &= dots
            for_widening[v.id] &= widening
            converted[v.id] &= converts
    narrow = np.array(for_dots) & np.array(used)
    outputs = DotOutputs(module, rules)
    for op in module.ops:
        rule, gradient = rules[op.id], op.id in outputs.gradients
        for r in op.results:
            if narrow[r.id] and traits.narrows_dot_operands and is_float(r.type, 4):
                width[r.id] = traits.dot_operand_width
            elif (
                traits.keeps_dots_wide
                and rule.contracts
                and used[r.id]
                and for_widening[r.id]
                and is_float(r.type, 2)
            ):
                if not converted[r.id] if gradient else outputs.feeds_masked_softmax(op):
                    width[r.id] = 2.0
                    if not gradient:
                        in_one_kernel[r.id] = True
                elif not gradient and outputs.feeds_gather(op):
                    wide.add(r.id)
            forward_dot = rule.contracts and not gradient
            if r.id not in in_one_kernel and forward_dot and outputs.feeds_max(op):
                few = sums_few(rule, traits.min_softmax_contraction_elements)
                in_one_kernel[r.id] = not few
    found: Bools = narrow & np.array([is_float(v.type, 4) for v in module.values])
    return found


def _softmax_weights(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of the softmax weights of narrow masked scores, as dots read them."""
    found, outputs = set[int](), DotOutputs(module, rules)
    for op in module.ops:
        scores = rules[op.id].contracts and op.id not in outputs.gradients
        if scores and is_float(op.results[0].type, 2):
            found.update(outputs.softmax_weights(op))
    return frozenset(found)


def _dot_operands(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of elementwise values that dots read, before their dims are moved about."""
    made = {r.id: op for op in module.ops for r in op.results}
    found: set[int] = set()
    for op in module.ops:
        for _, v in op.inputs() if rules[op.id].contracts else ():
            value: Value | None = v
            while value is not None:
                maker = made.get(value.id)
                if maker is None or not rules[maker.id].elementwise:
                    break
                if rules[maker.id].flops_per_point or changes_width(maker, rules[maker.id]):
                    found.add(value.id)
                    break
                value = next((x for _, x in maker.inputs()), None)
    return frozenset(found)
