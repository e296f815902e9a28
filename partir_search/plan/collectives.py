"""Collectives of a plan, with source lines and run counts."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.local_ir import LocalProgram


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the device-local program.

    Attributes:
      kind: primitive name, for example "all_gather".
      axes: mesh axes, major to minor.
      bytes: payload per device (the larger of input and output).
      value: name of the value moved.
      op: the op that produces or consumes the value.
      source: the user's source line of `op`.
      times: runs per step (product of the trip counts of enclosing loops).
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    value: str
    op: str
    source: str
    times: int


def collectives_of(program: LocalProgram) -> tuple[Collective, ...]:
    """Planned collectives in program order, then the collectives of the user's `shard_map`s.

    Branches of further platforms than the target's never run, and are left out.
    """
    names = program.partition.mesh.names
    planned = [
        Collective(
            kind=reshard.step.kind,
            axes=tuple(names[a] for a in reshard.step.axes),
            bytes=reshard.payload_bytes,
            value=reshard.source.value.name,
            op=reshard.op.prim if reshard.op else "return",
            source=reshard.op.source if reshard.op else "",
            times=times,
        )
        for reshard, times in program.reshards()
        if reshard.step.communicates
    ]
    written = [
        Collective(
            kind=c.kind,
            axes=c.axes,
            bytes=c.nbytes,
            value=c.value,
            op=op.prim,
            source=op.source,
            times=times,
        )
        for c, op, times in program.own_collectives()
    ]
    return tuple(c for c in (*planned, *written) if c.times)
