"""Contents of kernels: texts that are equal for kernels of equal ops, types and forms.

Sizes are left out: kernels of one content differ in extents alone. Names of values, source lines
and params are left out as well; rules hold the form of an op.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Op
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Ints
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_sizes import LocalSizes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class KernelContents:
    """Contents of the L leading kernels of a module, fused kernels included.

    Attributes:
      kernel: [L] numbers of the leading kernels.
      kinds: [L] kind of the leading op and type of the first operand: ``contraction bfloat16``.
      contents: [L] leading primitive, number of further ops, and a digest of all.
      sizes: extents of the leading ops' factors.
    """

    kernel: Ints
    kinds: Sequence[str]
    contents: Sequence[str]
    sizes: LocalSizes


def kernel_contents(module: Module, rules: Sequence[OpRule], kernels: Kernels) -> KernelContents:
    """Contents of a module's leading kernels.

    Args:
      rules: per op id.
    """
    members: dict[int, list[int]] = {}
    for op_id, leader in zip(kernels.op.tolist(), kernels.leader.tolist(), strict=True):
        members.setdefault(leader, []).append(op_id)
    leading = np.array(sorted(members), dtype=np.int64)
    kinds, contents = [], []
    for k in leading.tolist():
        ops = [module.ops[i] for i in members[k]]
        text = ";".join(_text(op, rules[op.id]) for op in ops)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        kinds.append(f"{rules[ops[0].id].kind.value} {kernels.dtype[k]}")
        contents.append(f"{ops[0].prim}+{len(ops) - 1}:{digest}")
    sizes = LocalSizes.of(module, rules, kernels.op[leading])
    return KernelContents(leading, kinds, contents, sizes)


def _text(op: Op, rule: OpRule) -> str:
    types = [str(x.type.dtype) for x in (*op.operands, *op.results)]
    return f"{op.prim} {rule.operands} {rule.results} {rule.reducers} {types}"
