"""Rewrites of the scheduling attributes of a program's instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any

from partir_search.lowering.local_ir import (
    UNSCHEDULED,
    Instruction,
    LocalOp,
    LocalProgram,
    LocalRegion,
)

Marks = Mapping[int, Mapping[str, Any]]
"""By position of an instruction, new values of fields of its `Scheduling`."""


def mark_body(program: LocalProgram, marks: Marks) -> LocalProgram:
    """Program with marks on instructions of the body."""
    return dataclasses.replace(program, body=_marked(program.body, marks)) if marks else program


def mark_regions(
    program: LocalProgram, find: Callable[[LocalRegion, Set[int]], Marks]
) -> LocalProgram:
    """Program with marks on instructions of every region.

    Args:
      find: function from a region, and ids of local values defined around the region, to marks.
    """
    constants = {local.id for local in program.constants.values()}
    return dataclasses.replace(program, body=_in_regions(program.body, find, constants))


def unscheduled(program: LocalProgram) -> LocalProgram:
    """Program without scheduling."""

    def clear(body: LocalRegion) -> LocalRegion:
        steps = [
            dataclasses.replace(item, scheduling=UNSCHEDULED)
            if item.scheduling is not UNSCHEDULED
            else item
            for item in body.steps
        ]
        return _with_inner(dataclasses.replace(body, steps=steps), lambda inner, _: clear(inner))

    return LocalProgram(program.partition, clear(program.body), program.constants)


def _in_regions(
    body: LocalRegion, find: Callable[[LocalRegion, Set[int]], Marks], outer: Set[int]
) -> LocalRegion:
    defined = {*outer, *(local.id for local in body.args)}
    seen = 0  # instructions with results in `defined`

    def inside(inner: LocalRegion, at: int) -> LocalRegion:
        nonlocal seen
        defined.update(local.id for item in body.steps[seen:at] for local in item.outs)
        seen = at
        return _in_regions(inner, find, defined)

    return _with_inner(_marked(body, find(body, outer)), inside)


def _with_inner(
    body: LocalRegion, change: Callable[[LocalRegion, int], LocalRegion]
) -> LocalRegion:
    """Region with inner regions changed; `change` takes one and the position of the outer op."""
    steps: list[Instruction] = list(body.steps)
    for at, item in enumerate(steps):
        if isinstance(item, LocalOp) and item.regions:
            regions = tuple(change(inner, at) for inner in item.regions)
            steps[at] = dataclasses.replace(item, regions=regions)
    return dataclasses.replace(body, steps=steps)


def _marked(body: LocalRegion, marks: Marks) -> LocalRegion:
    if not marks:
        return body
    steps = list(body.steps)
    for at, fields in marks.items():
        scheduling = dataclasses.replace(steps[at].scheduling, **fields)
        steps[at] = dataclasses.replace(steps[at], scheduling=scheduling)
    return dataclasses.replace(body, steps=steps)
