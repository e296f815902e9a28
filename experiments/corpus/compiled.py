"""Compiled plans of generated programs: rows of a file, with kernels and collectives."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.corpus.programs import generate
from partir_search.aot.computations import array_sizes, computations, instruction
from partir_search.aot.judge import judge

SLOWEST = 3.0  # seconds of a plan in the corpus, relative to the fastest known strategy
LEAST_CYCLES = 3000  # of a kernel in a row: 2 us on v5e
LEAST_BYTES = 1 << 20  # of a result that keeps a kernel with fewer cycles in a row

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_SOURCE = re.compile(r'op_name="([^"]*)"')


def plans_of(
    seed: int, target: str, mesh: str, number: int, names: Collection[str] = ()
) -> dict[str, ps.Plan]:
    """Plans of a generated program by known strategies that fit, by name; drawn by the seed.

    One is among the fastest third, the others among those of at most `SLOWEST` times the least
    seconds. Plans of equal seconds and bytes count as one.

    Args:
      number: of plans to draw.
      names: of strategies to take instead, as compiled before.
    """
    shape, machine = ps.MeshShape.parse(mesh), ps.Target.parse(target).machine
    program = generate(seed)
    step = ps.auto_partition(
        AbstractMesh(shape.sizes, shape.names),
        machine=machine.name,
        donate_argnums=0,
        progress=False,
    )(program.step)
    known = dict(step.known_plans(*program.abstract_args()))
    if names:
        return {name: known[name] for name in names}
    unlike: dict[tuple[float, float], str] = {}
    for name, plan in sorted(known.items(), key=lambda each: each[1].cost.seconds):
        figures = round(plan.cost.seconds, 6), round(plan.cost.peak_bytes / 1e6)
        if plan.fits:
            unlike.setdefault(figures, name)
    least = min(seconds for seconds, _ in unlike)
    near = [name for (seconds, _), name in unlike.items() if seconds <= SLOWEST * least]
    rng = random.Random(f"plans {seed}")
    first = rng.choice(near[: max(1, len(near) // 3)])
    rest = [name for name in near if name != first]
    return {name: known[name] for name in [first, *rng.sample(rest, min(number - 1, len(rest)))]}


def compiled_row(plan: ps.Plan, target: str) -> dict[str, Any]:
    """Figures of a plan by the compiler and by its judge."""
    found = plan.verify(target, cycles=True)
    machine = ps.Target.parse(target).machine
    judged = judge(found.hlo, plan.program.partition.mesh, machine)
    return {
        "judged_s": judged.total,
        "judged_compute_s": judged.compute,
        "unknown_loops": judged.unknown,
        "compiled_peak": found.peak_bytes[1],
        "confirmed": found.confirmed,
        "unexplained": list(found.unexplained),
        "collectives": [dataclasses.asdict(row) for row in found.rows],
        "kernels": list(kernels_of(found.hlo)),
        "compile_s": round(found.compile_seconds, 1),
        "jax": jax.__version__,
    }


def kernels_of(text: str) -> Iterator[tuple[str, str, str, int, int]]:
    """Kernels of a compiled program: opcode, type, source, cycles of one run, bytes stored."""
    for part in computations(text):
        for line in part.lines:
            cycles, match = _CYCLES.search(line), instruction(line)
            if not cycles or not match or int(cycles[1]) >= 1 << 62:
                continue
            stored = sum(n * size for n, size in array_sizes(match.type))
            if int(cycles[1]) >= LEAST_CYCLES or stored >= LEAST_BYTES:
                source = _SOURCE.search(line)
                kind = re.sub(r"\{[^}]*\}", "", match.type).strip()
                yield match.op, kind, source[1] if source else "", int(cycles[1]), stored


def read_rows(file: pathlib.Path) -> list[dict[str, Any]]:
    """Rows of a compressed file of JSON lines; none if there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def write_rows(file: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a compressed file of JSON lines."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
