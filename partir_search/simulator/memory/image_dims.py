"""Minor dims of images, the operands and results of convolutions.

XLA:TPU reads and writes images with the batch and the features as minor dims, in the order of less
padding: 64 images of 128 x 128 pixels with 3 channels have 64 of 128 lanes. One feature counts as
many as a tile has sublanes: 8 images of one channel lie in 128 lanes each, 16 in one row of lanes.
Results of elementwise ops keep the order.
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
            shape = op.results[0].type.shape
            for _, v in op.inputs():
                if v.id in found and v.type.shape == shape and not rule.moves:
                    found.setdefault(op.results[0].id, found[v.id])
    for op in reversed(module.ops):
        rule = rules[op.id]
        if rule.elementwise and len(op.results) == 1 and not op.regions and not rule.moves:
            wanted = found.get(op.results[0].id)
            for _, v in op.inputs():
                if wanted and v.type.shape == op.results[0].type.shape:
                    found.setdefault(v.id, wanted)
    for v in module.body.args:
        found.pop(v.id, None)
    return found


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
