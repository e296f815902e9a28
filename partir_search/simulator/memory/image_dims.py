"""Minor dims of images, the operands and results of convolutions.

XLA:TPU reads and writes images with the batch and the features as minor dims, in the order of less
padding: 64 images of 128 x 128 pixels with 3 channels have 64 of 128 lanes. One feature counts as
many as a tile has sublanes: 8 images of one channel lie in 128 lanes each, 16 in one row of lanes.
Results of elementwise ops keep the order, as do reshapes that add or remove dims of one element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.memory.operand_dims import Minors


def image_dims(module: Module, rules: Sequence[OpRule]) -> Mapping[int, Minors]:
    """By value id, the minor dims of images and of elementwise functions of images.

    Args:
      rules: per op id.
    """
    found: dict[int, Minors] = {}
    for op in module.ops:
        rule = rules[op.id]
        if rule.role is Role.CONVOLUTION:
            for v, minors in _of_convolution(op, rule):
                found.setdefault(v.id, minors)
        elif rule.elementwise and len(op.results) == 1 and not op.regions:
            for _, v in op.inputs():
                kept = _kept(rule, found[v.id], v, op.results[0]) if v.id in found else None
                if kept is not None:
                    found.setdefault(op.results[0].id, kept)
    for op in reversed(module.ops):
        rule = rules[op.id]
        if rule.elementwise and len(op.results) == 1 and not op.regions:
            wanted = found.get(op.results[0].id)
            for _, v in op.inputs():
                kept = _kept(rule, wanted, op.results[0], v) if wanted else None
                if kept is not None:
                    found.setdefault(v.id, kept)
    for v in module.body.args:
        found.pop(v.id, None)
    return found


def _kept(rule: OpRule, minors: Minors, value: Value, other: Value) -> Minors | None:
    """Minor dims of `other`, given those of `value`; None if the op keeps no order.

    Args:
      rule: of an elementwise op that reads one value and makes the other.
      minors: of `value`.
    """
    if not rule.moves:
        return minors if value.type.shape == other.type.shape else None
    large = [[d for d, n in enumerate(x.type.shape) if n > 1] for x in (value, other)]
    sizes = [[x.type.shape[d] for d in dims] for x, dims in zip((value, other), large, strict=True)]
    if rule.role not in (Role.RESHAPE, Role.SQUEEZE, Role.BROADCAST) or sizes[0] != sizes[1]:
        return None
    places = dict(zip(*large, strict=True))
    return tuple((places.get(dim, NONE), size) for dim, size in minors)


def _of_convolution(op: Op, rule: OpRule) -> list[tuple[Value, Minors]]:
    """The image and the result of a convolution with a sliding window, and minor dims."""
    windows = {read.dim for read in rule.reads if read.operand == 0}
    image, (result,) = op.operands[0], op.results
    slid = {rule.operands[0][d] for d in windows}
    into = [d for d, f in enumerate(rule.operands[0]) if d not in windows and f != NONE]
    out = [d for d, f in enumerate(rule.results[0]) if f not in slid and f != NONE]
    found: list[tuple[Value, Minors]] = []
    for value, dims in ((image, into), (result, out)):
        if windows and isinstance(value, Value) and len(dims) == 2:
            shape = value.type.shape
            lane, sublane = sorted(dims, key=lambda d: (shape[d] > 1, -shape[d]))
            found.append((value, ((lane, shape[lane]), (sublane, shape[sublane]))))
    return found
