"""Callbacks: each runs once, on the first device, with whole operands, in order if ordered.

jax refuses ordered effects on more than one device. Here the order is a data dependency: each
ordered callback takes the token returned by the previous one. `LocalContext.once` selects the
device.

A callback that raises stops every device; any device left running would wait for the first device
in the next collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from partir_search.ir.bind import bind
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.rules.registry import register, whole

FLAG = jax.ShapeDtypeStruct((), jnp.int32)


@register("debug_callback", "debug_print", "io_callback", "pure_callback")
def callback(op: Op) -> OpRule:
    """Operands are needed whole; callbacks on shards take them as tiled."""
    watches = op.prim in ("debug_callback", "debug_print")
    if op.params.get("partitioned"):
        return whole(
            op, Kind.EFFECT, accepts_any_layout=True, local=local_shards, debug_only=watches
        )
    return whole(op, Kind.EFFECT, local=local_callback, has_collectives=True, debug_only=watches)


@register("inspect_sharding")
def inspect_sharding(op: Op) -> OpRule:
    """Shows the operand's sharding, without changing it."""
    return whole(op, Kind.EFFECT, accepts_any_layout=True, local=local_inspect, debug_only=True)


@register("check")
def check(op: Op) -> OpRule:
    """A `debug_check` outside of `checkify` does nothing, as under jax.jit.

    Raises:
      ValueError: for a `check`, as under jax.jit.
    """
    if not op.params["debug"]:
        raise ValueError(
            f"checkify.check at {op.source} is not functionalized: partition"
            " checkify.checkify(step), which returns the error next to the step's results"
        )
    return whole(
        op, Kind.EFFECT, accepts_any_layout=True, local=lambda _, op, args: [], debug_only=True
    )


def local_shards(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results of the callback on every device, with the device's shards."""
    return list(bind(op, op.params, args))


def local_inspect(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Calls `inspect_array_sharding`'s callback during compilation, as jax.jit does."""
    for sharding in ctx.shardings():
        op.params["callback"](sharding)
    return []


def local_callback(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results, on all devices, of the callback on one device."""
    ordered = is_ordered(op)
    if op.prim == "debug_print" and not ordered:
        return list(ctx.once(lambda: list(bind(op, op.params, args))))
    pure = op.prim == "pure_callback"
    shapes = [jax.ShapeDtypeStruct(r.type.shape, r.type.dtype) for r in op.results]
    last = ctx.last_effects() if ordered else ()
    raised: list[BaseException] = []

    def host(*data: Any) -> Any:
        try:
            out = _python(op)(*data[: len(args)])
            return [np.int32(0), *map(np.asarray, out or ())]
        except Exception as error:
            raised[:] = [error]
            return [np.int32(1), *(np.zeros(s.shape, s.dtype) for s in shapes)]

    def run() -> list[Any]:
        if pure:
            return list(jax.pure_callback(host, [FLAG, *shapes], *args))
        return list(io_callback(host, [FLAG, *shapes], *args, *last))

    made = _or_stop(op, raised, ctx.once(run), [FLAG, *shapes], pure)
    if ordered:
        ctx.ran(made[0])
    return made[1:]


def _or_stop(
    op: Op, raised: list[BaseException], made: Sequence[Any], shapes: Sequence[Any], pure: bool
) -> list[Any]:
    """Results of the callback; raises its exception on every device if the flag is set.

    The results pass through the branch: none of their users runs after an exception.
    """
    where = op.source

    def again() -> Any:
        if raised:
            raise raised[0]
        raise RuntimeError(f"the callback at {where} raised on the first device")

    call: Callable[..., Any] = jax.pure_callback if pure else io_callback

    def stop(*_: Any) -> list[Any]:
        return list(call(again, shapes))

    return list(lax.cond(made[0] > 0, stop, lambda *x: list(x), *made))


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
