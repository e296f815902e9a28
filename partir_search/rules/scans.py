"""Constructor of scans."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.from_jaxpr import FunctionReader

Entering = Sequence[tuple[Operand, Value]]  # operand of a scan, argument of its body


def scan_of(
    consts: Entering,
    carries: Entering,
    stacked: Entering,
    body: Region,
    results: Sequence[Value],
    *,
    length: int,
    reverse: bool = False,
    near: Op | None = None,
    **params: Any,
) -> Op:
    """A scan.

    Args:
      consts, carries, stacked: constants, first values of carries, and stacked operands, with the
        body's arguments.
      body: ops and results of an iteration, without arguments: next values of the carries,
        then elements of stacked results.
      results: last values of the carries, then stacked results.
      length: number of iterations.
      reverse: True if the last element of the stacks is read first.
      near: op whose source, scope and pass the scan has; None for none.
      params: further parameters.
    """
    entering = [*consts, *carries, *stacked]
    template = _template()
    kept = {k: v for k, v in template.params.items() if k != "linear"}
    return dataclasses.replace(
        template,
        operands=tuple(x for x, _ in entering),
        results=tuple(results),
        regions=(dataclasses.replace(body, args=tuple(v for _, v in entering)),),
        params={
            **kept,
            "length": length,
            "reverse": reverse,
            "num_consts": len(consts),
            "num_carry": len(carries),
            **params,
        },
        origin=near.origin if near else template.origin,
        scope=near.scope if near else "",
        backward=near.backward if near else False,
        key=None,
    )


@functools.cache
def _template() -> Op:
    """A scan with the parameters of the installed jax."""

    def counting() -> list[Any]:
        return [lax.scan(lambda x, _: (x + 1, None), jnp.int32(0), length=2)[0]]

    ops, _ = FunctionReader(()).read(counting, ())
    return ops[0]
