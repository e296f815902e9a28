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
from partir_search.ir.core import Literal, Op, Operand, Region

Spec = tuple[tuple[str, ...], ...]  # per dim, the axes that tile it, major to minor
Emitters = Mapping[str, Callable[..., Sequence[Any]]]


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


def run_manual(manual: Manual, args: Sequence[Any], emitters: Emitters) -> list[Any]:
    """The results of a body on local tiles, inside of a manual region over its axes."""
    held = {i: constant(array) for i, array in manual.constants.items()}
    return _region(manual.body, args, emitters, held)


def _region(
    region: Region, args: Sequence[Any], emitters: Emitters, outer: Mapping[int, Any]
) -> list[Any]:
    env = dict(outer)
    env.update((id(v), a) for v, a in zip(region.args, args, strict=True))

    def read(x: Operand) -> Any:
        return jnp.asarray(x.value, x.type.dtype) if isinstance(x, Literal) else env[id(x)]

    for op in region.ops:
        ins = [read(x) for x in op.operands]
        if op.regions:
            blocks = [lambda *inner, r=r: _region(r, inner, emitters, outer) for r in op.regions]
            outs = emitters[op.prim](op, blocks, ins)
        else:
            outs = _run(op, ins)
        env.update((id(r), o) for r, o in zip(op.results, outs, strict=True))
    return [read(r) for r in region.results]


def _psum(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    return [lax.psum(x, op.params["axes"]) for x in args]


# What jax writes where it checks which axes values vary over, without the check.
_UNCHECKED: Mapping[str, Callable[[Op, Sequence[Any]], Sequence[Any]]] = {
    "pvary": lambda _, args: args,
    "psum_invariant": _psum,
}


def _run(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    unchecked = _UNCHECKED.get(op.prim)
    return bind(op, op.params, args) if unchecked is None else unchecked(op, args)
