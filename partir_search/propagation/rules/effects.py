"""Callbacks: run once in all, by the first device, on whole operands, and in order where asked.

jax refuses ordered effects on more than one device. Here the order is a data dependency: each
ordered callback takes what the one before gave back. `LocalContext.once` knows the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from partir_search.ir.bind import bind
from partir_search.ir.core import Op
from partir_search.ir.rule import OpRule
from partir_search.propagation.rules.registry import register, whole


@register("debug_callback", "debug_print", "io_callback")
def callback(op: Op) -> OpRule:
    """Operands are needed whole."""
    return whole(op, local=local_callback, together=True)


def local_callback(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """The callback on one device; its results on all."""
    if not is_ordered(op):
        return list(ctx.once(lambda: list(bind(op, op.params, args))))
    shapes = [jax.ShapeDtypeStruct(r.type.shape, r.type.dtype) for r in op.results]
    last = ctx.last_effects()

    def host(*data: Any) -> Any:
        out = _python(op)(*data[: len(args)])
        return [np.int32(0), *map(np.asarray, out or ())]

    def run() -> list[Any]:
        wanted = [jax.ShapeDtypeStruct((), jnp.int32), *shapes]
        return list(io_callback(host, wanted, *args, *last))

    token, *results = ctx.once(run)
    ctx.ran(token)
    return list(results)


def is_ordered(op: Op) -> bool:
    return bool(op.params.get("ordered")) or "Ordered" in str(op.params.get("effect", ""))


def _python(op: Op) -> Any:
    """The user's function of flat arrays on the host."""
    if op.prim != "debug_print":
        return op.params["callback"]
    p = op.params

    def show(*arrays: Any) -> None:
        fixed, dynamic = dict(p["static_args"]), iter(arrays)
        count = len(fixed) + len(arrays)
        flat = [fixed[i] if i in fixed else next(dynamic) for i in range(count)]
        args, kwargs = jax.tree.unflatten(p["in_tree"], flat)
        with np.printoptions(**dict(p["np_printoptions"])):
            print(p["fmt"].format(*args, **kwargs))

    return show
