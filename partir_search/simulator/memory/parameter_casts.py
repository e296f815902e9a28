"""Arguments in another form that products make themselves, so that it is stored nowhere.

XLA:TPU fuses the conversion of a parameter to bf16 into each product that reads it, in the forward
pass and in the backward pass. What is sent or looked up is converted once and kept. So in 113
compiled programs of transformers and mixtures for v5e and v5p (`experiments.truth`; matrices of a
million elements and more), but for the first qkv of one transformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module, Op, TensorType, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.buffers import RegionTraffic

NOTHING: Set[int] = frozenset()


def find_casts(module: Module, rules: Sequence[OpRule], traffic: RegionTraffic) -> dict[int, int]:
    """By id of each such value that would be stored else, the argument that it is made of.

    Args:
      traffic: of the module's body.
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
    for at, read in traffic.reads.items():
        op = traffic.region.ops[at]
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


class Casts:
    """Those of a cost model's values (of a fold's, if it is folded).

    Attributes:
      mask: [values] whether a value is one.
    """

    def __init__(
        self,
        found: Mapping[int, int],
        stored: npt.NDArray[np.int64],
        class_of: npt.NDArray[np.int64],
        values: int,
    ) -> None:
        """`found` and `stored` are ids of the original's values, `class_of` gives the model's."""
        others = np.zeros(values, dtype=np.bool_)
        of = class_of[stored[~np.isin(stored, list(found))]]
        others[of[of >= 0]] = True
        self.mask = np.zeros(values, dtype=np.bool_)
        self._of: dict[int, set[int]] = {}
        for value, argument in found.items():
            cast = int(class_of[value])
            if cast >= 0 and not others[cast]:
                self.mask[cast] = True
                for source in (cast, int(class_of[argument])):
                    self._of.setdefault(source, set()).add(cast)

    def of(self, value: int) -> Set[int]:
        """Those that are stored if a value is sent: itself, or what is made of it."""
        return self._of.get(value, NOTHING)


def is_float(kind: TensorType, itemsize: int) -> bool:
    """True for a floating-point type of `itemsize` bytes. PRNG keys have no numpy type."""
    if kind.itemsize != itemsize or not isinstance(kind.dtype, np.dtype):
        return False
    return kind.dtype.kind not in "iub"


def changes_width(op: Op, rule: OpRule) -> int:
    """1 for a conversion to a wider type, -1 to a narrower one, else 0."""
    if not rule.elementwise or len(op.operands) != 1 or len(op.results) != 1:
        return 0
    a, b = op.operands[0].type, op.results[0].type
    if a.shape != b.shape or not (is_float(a, a.itemsize) and is_float(b, b.itemsize)):
        return 0
    return (b.itemsize > a.itemsize) - (b.itemsize < a.itemsize)
