"""In what width a compiler keeps values, where that is not the program's.

A target that multiplies f32 operands in bf16 (XLA:TPU at default precision) stores and gathers
f32 values as bf16 if products are all that they are for. And where a product is rounded to bf16
only to be widened again, the rounding is left out (excess precision): the wide form is stored, for
the forward pass or for both (`simulator/memory/softmax.py`).
Found by compiling transformers for v5e (`experiments.verify`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from partir_search.ir.analysis.def_use import is_zero, zero_values
from partir_search.ir.core import Module, Value, walk_regions
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.buffers import (
    AS_WRITTEN,
    Floats,
    RegionTraffic,
    Storage,
    analyse,
)
from partir_search.simulator.memory.parameter_casts import changes_width, find_casts, is_float
from partir_search.simulator.memory.softmax import Widened, sums_few
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.latency_hiding import unawaited


@dataclasses.dataclass(frozen=True, slots=True)
class Widths:
    """Stored widths of a module's values.

    Attributes:
      width: [values] stored bytes as a multiple of the type's. Arguments are stored as they are.
      for_products: [values] whether the value is f32 and products alone read it.
      storage: the rest, which traffic needs.
    """

    width: Floats
    for_products: npt.NDArray[np.bool_]
    storage: Storage


def stored_widths(module: Module, rules: list[OpRule], traits: XlaTraits) -> Widths:
    """Widths of a module's values on a target that stores some in another width than written."""
    n = len(module.values)
    for_products, for_widening = [True] * n, [True] * n
    for region in walk_regions(module.body):
        for x in region.results:
            if isinstance(x, Value):
                for_products[x.id] = for_widening[x.id] = False
    used = [False] * n
    converted = [True] * n  # every use is a conversion itself
    for op in reversed(module.ops):
        rule = rules[op.id]
        products, widening, converts = rule.contracts and not op.regions, False, False
        if rule.elementwise and not op.regions:
            change, results = changes_width(op, rule), [r.id for r in op.results]
            converts = change > 0
            widening = converts or all(for_widening[r] and used[r] for r in results)
            products |= change < 0 or (
                not rule.flops_per_point and all(for_products[r] and used[r] for r in results)
            )
        for _, v in op.inputs():
            used[v.id] = True
            for_products[v.id] &= products
            for_widening[v.id] &= widening
            converted[v.id] &= converts
    width, wide, at_once = np.ones(n), set[int](), dict[int, bool]()
    narrow = np.array(for_products) & np.array(used)
    widened = Widened(module, rules)
    for op in module.ops:
        rule, gradient = rules[op.id], op.id in widened.gradients
        for r in op.results:
            if narrow[r.id] and traits.narrows_dot_operands and is_float(r.type, 4):
                width[r.id] = traits.dot_operand_width
            elif not traits.keeps_dots_wide:
                pass
            elif rule.contracts and used[r.id] and for_widening[r.id] and is_float(r.type, 2):
                if not converted[r.id] if gradient else widened.masked(op):
                    width[r.id] = 2.0
                    if not gradient:
                        at_once[r.id] = True
                elif not gradient and widened.looked_up(op):
                    wide.add(r.id)
            if r.id not in at_once and rule.contracts and not gradient and widened.plain(op):
                at_once[r.id] = not sums_few(rule, traits.min_softmax_contraction_elements)
    one_hot = frozenset[int]()
    if traits.fuses_one_hot_updates:
        zeros = zero_values(module, rules)
        updates = (op for op in module.ops if rules[op.id].one_hot)
        one_hot = frozenset(op.id for op in updates if is_zero(op.operands[0], zeros))
    narrowed = {v: float(width[v]) for v in np.flatnonzero(width != 1.0).tolist()}
    products = narrow & np.array([is_float(v.type, 4) for v in module.values])
    return Widths(width, products, Storage(one_hot, wide=wide, width=narrowed, at_once=at_once))


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Storage and traffic of a whole program on a machine: the dear part of a cost model.

    Attributes:
      widths: None where values are stored as the program says.
      unawaited: values that no product waits for, where the machine makes use of that.
      casts: values that products make themselves, with the argument that each is made of.
    """

    widths: Widths | None
    traffic: RegionTraffic
    unawaited: frozenset[int] = frozenset()
    casts: Mapping[int, int] = dataclasses.field(default_factory=dict)


def usage_of(module: Module, rules: list[OpRule], machine: Machine) -> Usage:
    """Usage of a program that is not folded; models of it and of its fold may share it."""
    traits = machine.traits
    widths = stored_widths(module, rules, traits) if _differs(traits) else None
    storage = storage_of(module, rules, machine, widths)
    scheduled = traits.defers_weight_gradients or traits.async_all_gather != "never"
    late = unawaited(module, rules) if scheduled else frozenset[int]()
    traffic = analyse(module, rules, storage)
    casts = find_casts(module, rules, traffic) if traits.fuses_weight_casts else {}
    return Usage(widths, traffic, late, casts)


def _differs(traits: XlaTraits) -> bool:
    """True if a target stores some values in another width, or recomputes one-hot updates."""
    return traits.narrows_dot_operands or traits.keeps_dots_wide or traits.fuses_one_hot_updates


def storage_of(
    module: Module, rules: list[OpRule], machine: Machine, widths: Widths | None
) -> Storage:
    """Storage on a machine where it differs from the program's."""
    storage = widths.storage if widths else AS_WRITTEN
    traits = machine.traits
    storage = dataclasses.replace(storage, traits=traits)
    if traits.materializes_softmax:
        weights = _softmax(module, rules)
        storage = dataclasses.replace(storage, operands=storage.operands | weights)
    if traits.materializes_dot_operands:
        storage = dataclasses.replace(storage, operands=storage.operands | _operands(module, rules))
    return storage


def _softmax(module: Module, rules: list[OpRule]) -> frozenset[int]:
    """Ids of the softmax weights of narrow masked scores, as products read them."""
    found, widened = set[int](), Widened(module, rules)
    for op in module.ops:
        scores = rules[op.id].contracts and op.id not in widened.gradients
        if scores and is_float(op.results[0].type, 2):
            found.update(widened.softmax(op))
    return frozenset(found)


def _operands(module: Module, rules: list[OpRule]) -> frozenset[int]:
    """Elementwise values that products read, as they are before their dims are moved about."""
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
