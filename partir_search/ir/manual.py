"""The user's own `shard_map` inside of a partitioned program: a body that runs on tiles as it is.

What it needs and makes is tiled as its specs say; its collectives are the user's. Its body is read
like any other and run op by op, because what jax checks inside of a `shard_map` of its own
(varying and invariant values) it does not know inside of ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.bind import bind, constant
from partir_search.ir.core import Literal, Op, Operand, Region, TensorType, walk_regions
from partir_search.ir.data_flow import Emit

Spec = tuple[tuple[str, ...], ...]  # per dim, the axes that tile it, major to minor
EmitOf = Callable[[Op], Emit]


@dataclasses.dataclass(frozen=True, slots=True)
class OwnCollective:
    """A collective that the user wrote.

    Attributes:
      nbytes: of the larger side on one device; `itemsize` of one element.
      times: runs per run of the region.
    """

    kind: str
    axes: tuple[str, ...]
    value: str
    nbytes: int
    itemsize: int
    times: int


@dataclasses.dataclass(frozen=True, slots=True)
class Manual:
    """A `shard_map` as its jaxpr has it.

    Attributes:
      axes: names and sizes of the axes that it is manual over.
      needs / makes: specs of operands and results.
      text: its jaxpr; what makes two of them equal.
      body: on local tiles.
      constants: arrays that it closes over, by `id` of their values.
      collectives: its own.
    """

    axes: tuple[tuple[str, int], ...]
    needs: tuple[Spec, ...]
    makes: tuple[Spec, ...]
    text: str
    body: Region = dataclasses.field(compare=False, repr=False)
    constants: Mapping[int, Any] = dataclasses.field(compare=False, repr=False)
    collectives: tuple[OwnCollective, ...] = ()


def manual_axes(params: Mapping[str, Any], body: Region) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the axes that a `shard_map`, or one inside of it, is manual over."""
    found = {name: params["mesh"].shape[name] for name in params["newly_manual_axes"]}
    for region in walk_regions(body):
        for op in region.ops:
            if "manual" in op.params:
                found.update(op.params["manual"].axes)
    return tuple(sorted(found.items()))


def spec_of(spec: Any, kind: TensorType) -> Spec:
    """A PartitionSpec with one tuple of axes per dim."""
    entries = [*spec, *(None,) * (len(kind.shape) - len(spec))]
    return tuple(() if e is None else e if isinstance(e, tuple) else (e,) for e in entries)


def run_manual(manual: Manual, args: Sequence[Any], emit_of: EmitOf) -> list[Any]:
    """The results of a body on local tiles, inside of a manual region over its axes.

    Args:
      emit_of: emitter of a region op.
    """
    held = {i: constant(array) for i, array in manual.constants.items()}
    return _region(manual.body, args, emit_of, held)


def _region(
    region: Region, args: Sequence[Any], emit_of: EmitOf, outer: Mapping[int, Any]
) -> list[Any]:
    env = dict(outer)
    env.update((id(v), a) for v, a in zip(region.args, args, strict=True))

    def read(x: Operand) -> Any:
        return jnp.asarray(x.value, x.type.dtype) if isinstance(x, Literal) else env[id(x)]

    for op in region.ops:
        ins = [read(x) for x in op.operands]
        if op.regions:
            blocks = [lambda *inner, r=r: _region(r, inner, emit_of, outer) for r in op.regions]
            outs = emit_of(op)(op, blocks, ins)
        elif inner := op.params.get("manual"):
            outs = _nested(inner, ins, emit_of)
        else:
            outs = _run(op, ins)
        env.update((id(r), o) for r, o in zip(op.results, outs, strict=True))
    return [read(r) for r in region.results]


def _nested(manual: Manual, ins: Sequence[Any], emit_of: EmitOf) -> list[Any]:
    """A region over other axes inside of one: along these all devices hold the operands whole, and
    are to hold the results.
    """
    sizes, args = dict(manual.axes), list(ins)
    for i, spec in enumerate(manual.needs):
        for dim, axes in enumerate(spec):
            for name in axes:
                n = args[i].shape[dim] // sizes[name]
                args[i] = lax.dynamic_slice_in_dim(args[i], lax.axis_index(name) * n, n, dim)
    outs = run_manual(manual, args, emit_of)
    for i, spec in enumerate(manual.makes):
        for dim, axes in enumerate(spec):
            if axes:
                outs[i] = lax.all_gather(outs[i], axes, axis=dim, tiled=True)
    return outs


def _psum(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    return [lax.psum(x, op.params["axes"]) for x in args]


# What jax writes where it checks which axes values vary over, without the check; and constraints
# along axes that a region leaves to the compiler, along which arrays are whole in ours.
_UNCHECKED: Mapping[str, Callable[[Op, Sequence[Any]], Sequence[Any]]] = {
    "pvary": lambda _, args: args,
    "sharding_constraint": lambda _, args: args,
    "psum_invariant": _psum,
}


def _run(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    unchecked = _UNCHECKED.get(op.prim)
    return bind(op, op.params, args) if unchecked is None else unchecked(op, args)
