"""Storage dtypes: the width of each stored value, and the stored operands of dots.

Traits of `XlaTraits` that change the stored form of a value:

- `f32_dot_operand_bytes`: f32 values read by dots alone are stored and gathered in bf16.
- `keeps_dots_wide`: bf16 scores of the forward pass are stored in f32 if each use widens the scores
  again (`simulator/memory/softmax.py`). Gradients keep the program's type.
- `fuses_one_hot_updates`, `multiplies_outer_products`: one-hot updates of zeros, and dots that sum
  nothing, are recomputed, never stored.
- `materializes_dot_operands`, `materializes_softmax`: elementwise operands of dots are stored.
- `materializes_dilations`, `stores_concatenated_pieces`, `stores_repeated_images`,
  `stores_values_sliced_twice`: operands of moves are stored (`memory/stored_operands.py`).
- `adds_products_in_place`: sums of products are stored (`memory/summed_products.py`).
- `stores_split_broadcasts`: statistics of groups are stored once per element of the group.
- `scatters_into_one_dim`: results of scatters of single elements have a second form
  (`memory/scatters.py`).
- `transform_arrays`: Fourier transforms of real numbers are stored at full length
  (`memory/transforms.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.analysis.accumulators import find_accumulators
from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.analysis.reductions import is_zero, zero_values
from partir_search.ir.analysis.row_sums import find_row_sums
from partir_search.ir.core import Module, Value, walk_regions
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Bools, Floats
from partir_search.simulator.memory.float_types import changes_width, is_float
from partir_search.simulator.memory.operand_dims import operand_dims
from partir_search.simulator.memory.scatters import element_scatters
from partir_search.simulator.memory.softmax import DotOutputs, sums_few
from partir_search.simulator.memory.split_broadcasts import split_broadcasts
from partir_search.simulator.memory.stored_operands import stored_operands
from partir_search.simulator.memory.summed_products import summed_products
from partir_search.simulator.memory.transforms import transforms
from partir_search.simulator.op_kinds import is_batched
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Dtypes:
    """Storage of a module's values, where the compiler departs from the program's types.

    Attributes:
      names: [values] for printing.
      width: [values] stored bytes as a multiple of the type's; 1 for arguments.
      changed: widths other than 1, by value id.
      for_dots: [values] True for an f32 value read by dots alone.
      one_hot: ids of recomputed ops that are not elementwise: one-hot updates of zeros, outer
        products.
      materialized: ids of elementwise values stored for dots.
      padded_operands: ids of operands of batched dots whose matrices fill no tiles of the memory.
      wide_forward: ids of values with a second copy of twice the width in the forward pass.
      softmax_in_one_kernel: by id of a dot's result, True if the dot's kernel computes the softmax
        of the result, False if a second kernel computes and stores the exponentials. Softmaxes of
        values not listed take two kernels.
      row_sums: by id of a scatter into zeros, id of the addition of the rows to a carry: one
        kernel, writing rows into the carry (`ir/analysis/row_sums.py`).
      workspace: by id of the result of a transform or a scatter, bytes live while the op runs,
        beside the stored result, as a multiple of the value's.
    """

    names: Sequence[str]
    width: Floats
    changed: Mapping[int, float]
    for_dots: Bools
    one_hot: Set[int]
    materialized: Set[int]
    padded_operands: Set[int]
    wide_forward: Set[int]
    softmax_in_one_kernel: Mapping[int, bool]
    row_sums: Mapping[int, int]
    workspace: Mapping[int, float]

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
    """Assigns storage dtypes to a module's values on a target.

    Args:
      rules: per op id.
    """
    n = len(module.values)
    width, for_dots = np.ones(n), np.zeros(n, dtype=np.bool_)
    wide, in_one_kernel = set[int](), dict[int, bool]()
    one_hot = frozenset[int]()
    if traits.narrows_dot_operands or traits.keeps_dots_wide:
        for_dots = _set_widths(module, rules, traits, width, wide, in_one_kernel)
    if traits.stores_split_broadcasts:
        for v, times in split_broadcasts(module, rules, def_use(module)).items():
            width[v] *= times
    found = transforms(module, rules, traits.transform_arrays)
    for v, stored in found.stored.items():
        width[v] *= stored
    flat = element_scatters(module, rules) if traits.scatters_into_one_dim else ()
    if traits.fuses_one_hot_updates:
        updates = [op for op in module.ops if rules[op.id].one_hot]
        zeros = zero_values(module, rules) if updates else frozenset[int]()
        one_hot = frozenset(op.id for op in updates if is_zero(op.operands[0], zeros))
    if traits.multiplies_outer_products:
        one_hot |= _fused_outer_products(module, rules)
    materialized = frozenset[int]()
    if traits.materializes_softmax:
        materialized |= _softmax_weights(module, rules, traits.min_stored_softmax_keys)
    if traits.materializes_dot_operands:
        materialized |= _dot_operands(module, rules)
    materialized |= stored_operands(module, rules, traits)
    if traits.adds_products_in_place:
        materialized |= summed_products(module, rules)
    changed = {v: float(width[v]) for v in np.flatnonzero(width != 1.0).tolist()}
    names = [v.name for v in module.values]
    return Dtypes(
        names=names,
        width=width,
        changed=changed,
        for_dots=for_dots,
        one_hot=one_hot,
        materialized=materialized,
        padded_operands=_padded_operands(module, rules, traits),
        wide_forward=wide,
        softmax_in_one_kernel=in_one_kernel,
        row_sums=_row_sums(module, rules),
        workspace={**found.workspace, **dict.fromkeys(flat, 1.0)},
    )


def _row_sums(module: Module, rules: Sequence[OpRule]) -> dict[int, int]:
    """Ids of additions of rows to carries, by id of the scatter into zeros."""
    if not any(op.regions and rules[op.id].data_flow.accumulates for op in module.ops):
        return {}
    uses, zeros = def_use(module), zero_values(module, rules)
    accumulators = find_accumulators(module, rules, uses, zeros)
    found = find_row_sums(accumulators, rules, uses, zeros)
    return {each.scatter.id: addition for addition, each in found.items()}


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
    for op in reversed(module.ops):
        rule = rules[op.id]
        dots, widening = rule.contracts and not op.regions, False
        if rule.elementwise and not op.regions:
            change, results = changes_width(op, rule), [r.id for r in op.results]
            widening = change > 0 or all(for_widening[r] and used[r] for r in results)
            dots |= change < 0 or (rule.moves and all(for_dots[r] and used[r] for r in results))
        for _, v in op.inputs():
            used[v.id] = True
            for_dots[v.id] &= dots
            for_widening[v.id] &= widening
    narrow = np.array(for_dots) & np.array(used)
    outputs = DotOutputs(module, rules)
    for op in module.ops:
        rule = rules[op.id]
        forward_dot = rule.contracts and op.id not in outputs.gradients
        in_loop = bool(rule.data_flow.carries)  # results lie in the buffers of the loop's values
        for r in op.results:
            if narrow[r.id] and not in_loop and traits.narrows_dot_operands and is_float(r.type, 4):
                width[r.id] = traits.dot_operand_width
            elif (
                traits.keeps_dots_wide
                and forward_dot
                and used[r.id]
                and for_widening[r.id]
                and is_float(r.type, 2)
            ):
                if outputs.feeds_masked_softmax(op):
                    width[r.id] = 2.0
                    in_one_kernel[r.id] = True
                elif outputs.feeds_gather(op):
                    wide.add(r.id)
            if r.id not in in_one_kernel and forward_dot and outputs.feeds_max(op):
                few = sums_few(rule, traits.min_softmax_contraction_elements)
                in_one_kernel[r.id] = not few
    found: Bools = narrow & np.array([is_float(v.type, 4) for v in module.values])
    return found


def _softmax_weights(module: Module, rules: Sequence[OpRule], least_keys: int) -> frozenset[int]:
    """Ids of the softmax weights of masked bf16 or f16 scores, in the dtype of the dots."""
    found, outputs = set[int](), DotOutputs(module, rules)
    for op in module.ops:
        scores = rules[op.id].contracts and op.id not in outputs.gradients
        if scores and is_float(op.results[0].type, 2):
            found.update(outputs.softmax_weights(op, least_keys))
    return frozenset(found)


def _fused_outer_products(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of dots without summed dims, products element by element, unread by dots."""

    def sums_nothing(rule: OpRule) -> bool:
        if rule.role is not Role.DOT or len(rule.operands) != 2:
            return False
        return not (set(rule.operands[0]) & set(rule.operands[1])) - set(rule.results[0])

    found = [op for op in module.ops if sums_nothing(rules[op.id])]
    users = def_use(module).users if found else ()
    return frozenset(
        op.id
        for op in found
        if not any(rules[u.id].contracts for r in op.results for u in users[r.id])
    )


def _padded_operands(module: Module, rules: Sequence[OpRule], traits: XlaTraits) -> frozenset[int]:
    """Ids of operands of batched dots alone whose larger minor dim fills no tile."""
    if traits.tile_lanes == 1:
        return frozenset()
    dims = operand_dims(module, rules, def_use(module))
    return frozenset(v for v, ((_, size), _) in dims.items() if size % traits.tile_lanes)


def _dot_operands(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of elementwise operands of dots, before transposes and broadcasts.

    Without results of dots changed element by element at little cost, as by ReLU: a next dot
    without batch dims makes such operands from the first dot's result.
    """
    makers = def_use(module).makers
    found: set[int] = set()

    def of_dot(value: Value | None) -> bool:
        while value is not None and (maker := makers[value.id]) is not None:
            rule = rules[maker.id]
            if not rule.elementwise or rule.expensive:
                return rule.contracts
            large = [x for _, x in maker.inputs() if x.type.nbytes >= value.type.nbytes]
            value = large[0] if len(large) == 1 else None
        return False

    def computed(value: Value | None) -> Value | None:
        """The value of an elementwise op behind moves and broadcasts, if any."""
        while value is not None:
            maker = makers[value.id]
            if maker is None or not rules[maker.id].elementwise:
                return None
            rule = rules[maker.id]
            joins = rule.role is Role.CONCATENATION
            if joins or not rule.moves or changes_width(maker, rule):
                return value
            value = next((x for _, x in maker.inputs()), None)
        return None

    for op in module.ops:
        rule = rules[op.id]
        if not rule.contracts:
            continue
        makes_operands = rule.role is not Role.CONVOLUTION and not is_batched(rule)
        for value in filter(None, (computed(v) for _, v in op.inputs())):
            if not (makes_operands and of_dot(value)):
                found.add(value.id)
    return frozenset(found)
