"""Rewrites of the scheduling attributes of a program's instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any

from partir_search.lowering.local_ir import UNSCHEDULED, Block, Instruction, LocalOp, LocalProgram

Marks = Mapping[int, Mapping[str, Any]]
"""By position of an instruction, new values of fields of its `Scheduling`."""


def mark_body(program: LocalProgram, marks: Marks) -> LocalProgram:
    """Program with marks on instructions of the body."""
    return dataclasses.replace(program, body=_marked(program.body, marks)) if marks else program


def mark_blocks(program: LocalProgram, find: Callable[[Block, Set[int]], Marks]) -> LocalProgram:
    """Program with marks on instructions of every block.

    Args:
      find: function from a block, and ids of local values defined around the block, to marks.
    """
    constants = {local.id for local in program.constants.values()}
    return dataclasses.replace(program, body=_in_blocks(program.body, find, constants))


def unscheduled(program: LocalProgram) -> LocalProgram:
    """Program without scheduling."""

    def clear(block: Block) -> Block:
        steps = [
            dataclasses.replace(item, scheduling=UNSCHEDULED)
            if item.scheduling is not UNSCHEDULED
            else item
            for item in block.steps
        ]
        return _with_inner(dataclasses.replace(block, steps=steps), lambda inner, _: clear(inner))

    return LocalProgram(program.partition, clear(program.body), program.constants)


def _in_blocks(block: Block, find: Callable[[Block, Set[int]], Marks], outer: Set[int]) -> Block:
    def inside(inner: Block, at: int) -> Block:
        defined = {*outer, *(local.id for local in block.args)}
        defined.update(local.id for item in block.steps[:at] for local in item.outs)
        return _in_blocks(inner, find, defined)

    return _with_inner(_marked(block, find(block, outer)), inside)


def _with_inner(block: Block, change: Callable[[Block, int], Block]) -> Block:
    """Block with inner blocks changed; `change` takes a block and the position of the outer op."""
    steps: list[Instruction] = list(block.steps)
    for at, item in enumerate(steps):
        if isinstance(item, LocalOp) and item.blocks:
            blocks = tuple(change(inner, at) for inner in item.blocks)
            steps[at] = dataclasses.replace(item, blocks=blocks)
    return dataclasses.replace(block, steps=steps)


def _marked(block: Block, marks: Marks) -> Block:
    if not marks:
        return block
    steps = list(block.steps)
    for at, fields in marks.items():
        scheduling = dataclasses.replace(steps[at].scheduling, **fields)
        steps[at] = dataclasses.replace(steps[at], scheduling=scheduling)
    return dataclasses.replace(block, steps=steps)
