"""Text of device-local programs, and their verifier."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.lowering.local_ir import LocalOp, LocalProgram, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.verify_local import InvalidLocalProgram, verify_local

MESH = AbstractMesh((2, 4), ("batch", "model"))


def shape(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    def loss(w1: Any, w2: Any) -> Any:
        return jnp.sum(jnp.sin(x @ w1) @ w2)

    g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - 0.1 * g1, w2 - 0.1 * g2


def scanned(x: Any, ws: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, ws)[0].sum()


def branch(x: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: x * 2, x)


def stencil(x: Any) -> Any:
    return x[2:] - 2 * x[1:-1] + x[:-2]


def gathered(x: Any, w: Any) -> Any:
    return jnp.take(w, x, axis=0)


BATCH = ps.ManualPartition({"x": 0}, axis="batch")
MLP_ARGS = shape(16, 8), shape(8, 32), shape(32, 8)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[Any]]] = {
    "data_parallel": (mlp, MLP_ARGS, [BATCH]),
    "megatron": (mlp, MLP_ARGS, [BATCH, ps.ManualPartition({"w1": 1}, axis="model")]),
    "zero3": (mlp, MLP_ARGS, [BATCH, ps.ManualPartition({"w1": 0, "w2": 0}, axis="batch")]),
    "collective_matmul": (
        mlp,
        MLP_ARGS,
        [ps.ManualPartition({"x": 0, "w1": 1}, axis="model"), ps.CollectiveMatmul(("model",))],
    ),
    "scan": (scanned, (shape(16, 8), shape(3, 8, 8)), [BATCH]),
    "cond": (branch, (shape(16, 8), shape(8, 8)), [BATCH]),
    "stencil": (stencil, (shape(16, 4),), [ps.ManualPartition({"x": 0}, axis="model")]),
    "vocabulary": (
        gathered,
        (jax.ShapeDtypeStruct((16,), jnp.int32), shape(32, 8)),
        [BATCH, ps.ManualPartition({"w": 0}, axis="model")],
    ),
    "all_to_all": (
        lambda x: jnp.sort(jnp.sort(x, 0), 1),
        (shape(16, 8),),
        [ps.ManualPartition({"x": 1}, axis="model")],
    ),
    "replicated": (mlp, MLP_ARGS, [ps.ManualPartition({"x": ps.REPLICATED}, axis="batch")]),
}


def local(name: str) -> ps.Plan:
    fn, args, schedule = PROGRAMS[name]
    return ps.auto_partition(MESH, machine="tpu_v5e", schedule=schedule)(fn).plan(*args)


LOCAL = r"%[^\s\[#]+(#\d+)?\[[^\]]*\]( \+\w+\([^)]+\))*"
SOURCE = rf"({LOCAL}|[^%\s,]+)"
TYPED = rf"{LOCAL}: \S+"
STEP = "(slice|all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute|halo|mask)"
DETAIL = (
    r"( (dim|split|size|turn) \d+| elements \d+:\d+| (sum|max|min|and|or)\b| apart| regather"
    rf"| with {LOCAL}(, {LOCAL})*)*"
)
TURN = rf"( turn \d+ of \d+| block [+-]\d+| zigzag| chunks \d+| adds {LOCAL}(, {LOCAL})*)*"
MARK = (
    rf"( (after|operands_after|before|barrier)=\[({LOCAL}(, {LOCAL})*)?\]"
    rf"| layout=(row_major|by_columns|in_order)\[{LOCAL}(, {LOCAL})*\]| tiles_first)*"
)
LINE = re.compile(
    rf"(constant )?{TYPED}"
    rf'|{TYPED} = {STEP}\({LOCAL}\)( "[^"]+")?{DETAIL}{MARK}( for \S+)?'
    rf"|({TYPED}(, {TYPED})*)? = \S+?\(({SOURCE}(, {SOURCE})*)?\){TURN}{MARK}( {{)?"
    rf"|\(({TYPED}(, {TYPED})*)?\)|}} {{|}}"
    rf"|return ({SOURCE}( after {LOCAL})?(, {SOURCE}( after {LOCAL})?)*)?"
)
"""A line by the grammar of `lowering/local_printer.py`."""


def assert_grammar(text: str) -> None:
    first, *lines = text.splitlines()
    assert re.fullmatch(r"def \S+ on mesh<.*> {", first)
    assert not [line for line in lines if not LINE.fullmatch(line.strip())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_local(name: str, golden: Callable[[str], None]) -> None:
    plan = local(name)
    verify_local(plan.program)
    text = plan.local_ir()
    for kind, count in plan.collective_counts.items():
        assert text.count(f" = {kind}(") == count
    assert_grammar(text)
    golden(text)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-scan-tiny",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("transformer-tiny", "moe-tiny", "unet-tiny")
        ),
    ],
)
def test_known_strategies_are_valid(name: str) -> None:
    entry = MODELS[name]
    step = ps.auto_partition(MESH, machine="tpu_v5e", rings=True)(entry.step)
    for plan in step.known_plans(*entry.abstract_args(8)).values():
        verify_local(plan.program)
        assert len(plan.local_ir().splitlines()) > plan.program.size
        assert_grammar(plan.local_ir())


def test_invalid_programs_are_found() -> None:
    program = local("megatron").program
    moves = [item for item in program.body.steps if isinstance(item, Reshard)]
    unfinished = next(item.source for item in moves if item.source.partial)
    with pytest.raises(InvalidLocalProgram, match=r"is a partial sum"):
        verify_local(_with(program, results=(unfinished, *program.body.results[1:])))
    with pytest.raises(InvalidLocalProgram, match=r"reads .* too early"):
        verify_local(_with(program, steps=program.body.steps[1:]))
    first = next(i for i, item in enumerate(program.body.steps) if isinstance(item, Reshard))
    move = program.body.steps[first]
    assert isinstance(move, Reshard)
    wrong = dataclasses.replace(move, target=move.source)
    steps = [*program.body.steps[:first], wrong, *program.body.steps[first + 1 :]]
    with pytest.raises(InvalidLocalProgram, match=f"{move.step.kind} to .* says"):
        verify_local(_with(program, steps=steps))
    other = next(
        out
        for item in program.body.steps
        for out in (item.outs if isinstance(item, LocalOp) else ())
        if out.value is not move.source.value
    )
    steps[first] = dataclasses.replace(move, target=other)
    with pytest.raises(InvalidLocalProgram, match=f"{move.step.kind} makes"):
        verify_local(_with(program, steps=steps))
    steps = list(program.body.steps)
    sums = {item.target: item.source for item in moves if item.source.partial}
    at, reader = next(
        (i, item)
        for i, item in enumerate(steps)
        if isinstance(item, LocalOp)
        and any(isinstance(x, LocalValue) and x in sums for x in item.ins)
    )
    ins = tuple(sums.get(x, x) if isinstance(x, LocalValue) else x for x in reader.ins)
    steps[at] = dataclasses.replace(reader, ins=ins)
    with pytest.raises(InvalidLocalProgram, match=r"reads .* partial .* makes a finished result"):
        verify_local(_with(program, steps=steps))


def _with(program: LocalProgram, **changes: Any) -> LocalProgram:
    return dataclasses.replace(program, body=dataclasses.replace(program.body, **changes))
