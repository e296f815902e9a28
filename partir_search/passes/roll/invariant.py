"""Stacks of values known before a loop, taken out of the loop.

In the body of a scan over microbatches, the parameters of the layers are constants of the scan.
"""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.role import Role
from partir_search.rules.registry import role_of


def with_stacks_outside(op: Op) -> list[Op]:
    """An op, after the stacks of constants in its body if the op is a scan."""
    if role_of(op) is not Role.SCAN:
        return [op]
    (body,), consts = op.regions, int(op.params["num_consts"])
    given = dict(zip(body.args[:consts], op.operands[:consts], strict=True))
    stacks = [
        inner
        for inner in body.ops
        if role_of(inner) is Role.LAYERS
        and all(isinstance(given.get(x), Value) for _, x in inner.inputs())
    ]
    if not stacks:
        return [op]
    ops = tuple(inner for inner in body.ops if inner not in stacks)
    read = {x for inner in ops for _, x in inner.inputs()}
    read |= {x for x in body.results if isinstance(x, Value)}
    kept = {a: given[a] for a in body.args[:consts] if a in read}
    outside: list[Op] = []
    for inner in stacks:
        (result,) = inner.results
        stack = Value(-1, result.type, result.name)
        operands = tuple([given[x] for _, x in inner.inputs()])
        outside.append(inner.with_parts(operands, (stack,), ()))
        kept[result] = stack
    params = {k: v for k, v in op.params.items() if k != "linear"}
    new = dataclasses.replace(
        op,
        operands=(*kept.values(), *op.operands[consts:]),
        regions=(Region((*kept, *body.args[consts:]), ops, body.results),),
        params={**params, "num_consts": len(kept)},
        key=None,
    )
    return [*outside, new]
