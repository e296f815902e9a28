"""Stacks that a scan reads row by row keep the order of their dims on TPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.lowering.local_ir import Instruction, LocalProgram, Reshard
from partir_search.lowering.scheduling.scanned_rows import pin_scanned_rows
from partir_search.lowering.traits import NEUTRAL

TPU = dataclasses.replace(NEUTRAL, pins_scanned_rows=True)
TIME, BATCH, WIDTH = 4, 8, 16


def step(w: Any, own: Any, x: Any) -> Any:
    def cell(h: Any, row: Any) -> Any:
        return jnp.tanh(row + h @ own), None

    return jax.lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x @ w)[0]


def lowered() -> LocalProgram:
    """Program whose product is a partial sum, reduced before the scan."""
    shapes = (WIDTH, WIDTH), (WIDTH, WIDTH), (TIME, BATCH, WIDTH)
    tactics = [ps.ManualPartition({"w": 0}, axis="batch")]
    mesh = AbstractMesh((8,), ("batch",))
    partitioned = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(step)
    return partitioned.plan(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).program


def pinned(program: LocalProgram) -> list[str]:
    steps = pin_scanned_rows(program, TPU).body.steps
    return [x.value.name for item in steps for x in item.scheduling.in_order]


def test_a_reduced_product_is_pinned() -> None:
    program = lowered()
    assert any(isinstance(item, Reshard) for item in program.body.steps)
    assert len(pinned(program)) == 1
    assert not pin_scanned_rows(program, NEUTRAL).body.steps[0].scheduling.in_order


def test_values_moved_there_and_back() -> None:
    """A value resharded and back is made twice: the search for the product ends."""
    program = lowered()
    steps: list[Instruction] = []
    for item in program.body.steps:
        steps.append(item)
        if isinstance(item, Reshard):
            steps.append(dataclasses.replace(item, source=item.target, target=item.source))
    body = dataclasses.replace(program.body, steps=steps)
    assert pinned(dataclasses.replace(program, body=body)) == pinned(program)
