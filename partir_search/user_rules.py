"""`register_rule`: a sharding rule for the user's own primitive, in einsum notation."""

from __future__ import annotations

import re

from partir_search.ir.core import Op, TensorType
from partir_search.ir.rule import NONE, OpRule
from partir_search.propagation.rules.registry import register

_NAME = re.compile(r"[A-Za-z]\w*")


def _parse(text: str) -> list[list[str]]:
    return [part.split() for part in text.split(",")]


def register_rule(primitive: object, equation: str, *, flops_per_point: float = 1.0) -> None:
    """Gives `primitive` a rule such as ``"b s d, d f -> b s f"``.

    Args:
      primitive: a jax primitive (or its name) that computes tile by tile when its operands are
        tiled alike: a Pallas kernel, a foreign function.
      equation: names of the dims of each operand, then of each result; `.` marks a dim that must
        stay whole. A name missing from the results is summed over.
      flops_per_point: operations per point of the iteration space, for the simulator.

    Raises:
      ValueError: the equation cannot be read, or the primitive has a rule already.
    """
    name = str(getattr(primitive, "name", primitive))
    if equation.count("->") != 1:
        raise ValueError(f"write the rule of {name!r} as 'a b, b c -> a c', not {equation!r}")
    left, right = (_parse(side) for side in equation.split("->"))
    names = list(dict.fromkeys(n for dims in (*left, *right) for n in dims if n != "."))
    bad = [n for n in names if not _NAME.fullmatch(n)]
    if bad:
        raise ValueError(f"{bad[0]!r} is no dim name in the rule {equation!r} of {name!r}")

    def rule(op: Op) -> OpRule:
        sizes: dict[str, int] = {}
        types = [x.type for x in (*op.operands, *op.results)]
        dims = [*left, *right]
        if len(left) != len(op.operands) or len(right) != len(op.results):
            raise ValueError(
                f"the rule {equation!r} of {name!r} has {len(left)} operands and {len(right)}"
                f" results, the op at {op.source} has {len(op.operands)} and {len(op.results)}"
            )
        for dim_names, kind in zip(dims, types, strict=True):
            _match(name, equation, dim_names, kind, sizes)
        index = {n: i for i, n in enumerate(names)}
        held = [all(n in r for r in right) for n in names]
        return OpRule(
            sizes=tuple(sizes[n] for n in names),
            operands=tuple(tuple(index.get(n, NONE) for n in d) for d in left),
            results=tuple(tuple(index.get(n, NONE) for n in d) for d in right),
            reducers=tuple("" if h else "sum" for h in held),
            flops_per_point=flops_per_point,
        )

    register(name)(rule)


def _match(
    name: str, equation: str, dims: list[str], kind: TensorType, sizes: dict[str, int]
) -> None:
    if len(dims) != len(kind.shape):
        raise ValueError(f"the rule {equation!r} of {name!r} does not fit a value of type {kind}")
    for n, size in zip(dims, kind.shape, strict=True):
        if n != "." and sizes.setdefault(n, size) != size:
            raise ValueError(
                f"the rule {equation!r} of {name!r} gives dim {n!r} the sizes {sizes[n]} and {size}"
            )
