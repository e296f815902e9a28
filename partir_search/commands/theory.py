"""Subcommand theory: closed forms of a model on a number of devices."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from typing import Any

from partir_search.commands.named_objects import UsageError
from partir_search.messages.console import new_console
from partir_search.simulator.target.machine import MACHINES, find_machine
from partir_search.theory.model_sizes import MODEL_SIZES, find_model
from partir_search.theory.rows import Row
from partir_search.theory.setting import Setting
from partir_search.theory.table import theory_rows

TENSOR, STAGES = 8, 16  # of the lecture's table of Llama 3


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    about = "print the theory of a model on a number of devices"
    command: argparse.ArgumentParser = commands.add_parser(
        "theory", help=about, description=f"{about[0].upper()}{about[1:]} (docs/theory.md)."
    )
    names = ", ".join(MODEL_SIZES)
    command.add_argument(
        "--model",
        required=True,
        help=f"{names}, or sizes: layers:32,width:4096,heads:32,kv_heads:8,ffn:14336,vocab:128256",
    )
    machines = ", ".join(sorted(MACHINES))
    command.add_argument("--machine", required=True, help=f"{machines}, or a calibration's file")
    command.add_argument("--devices", type=int, required=True, help="in all")
    command.add_argument("--tokens", type=int, default=2**24, help="of a step (default: 16 Mi)")
    command.add_argument(
        "--tensor", type=int, help=f"devices of tensor parallelism (default: at most {TENSOR})"
    )
    command.add_argument(
        "--stages", type=int, help=f"of a pipeline, 1 for none (default: at most {STAGES})"
    )
    command.add_argument("--chunks", type=int, default=4, help="of a pipeline (default: 4)")
    command.add_argument("--debug", action="store_true", help="show tracebacks")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run_theory(args: argparse.Namespace) -> int:
    """Prints the table, or its rows as JSON."""
    if args.devices < 1:
        raise UsageError(f"--devices is at least 1, not {args.devices}")
    tensor = args.tensor if args.tensor is not None else math.gcd(args.devices, TENSOR)
    stages = args.stages
    if stages is None:
        stages = math.gcd(args.devices // max(tensor, 1), STAGES)
    setting = Setting(
        find_model(args.model),
        find_machine(args.machine),
        args.devices,
        args.tokens,
        tensor,
        stages,
        args.chunks,
    )
    rows = theory_rows(setting)
    if args.json:
        about = {
            "model": args.model,
            **dataclasses.asdict(setting.model),
            "machine": setting.machine.name,
            **{k: getattr(setting, k) for k in ("devices", "tokens", "tensor", "stages", "chunks")},
            "microbatches": setting.microbatches,
        }
        found = {"setting": about, "rows": [dataclasses.asdict(row) for row in rows]}
        print(json.dumps(found, indent=1))
    else:
        _print(args.model, setting, rows)
    return 0


def _print(model: str, s: Setting, rows: list[Row]) -> None:
    """Prints the rows by topic, in columns."""
    heading = f"{model} on {s.devices:,} {s.machine.name}, {s.tokens:,} tokens a step"
    titles = ("quantity", "value", "formula", "lecture")
    columns = zip(titles, *map(_cells, rows), strict=True)
    name, value, formula = (max(map(len, column)) for column in list(columns)[:3])

    def line(cells: tuple[str, str, str, str]) -> str:
        a, b, c, d = cells
        return f"{a:{name}}  {b:>{value}}  {c:{formula}}  {d}".rstrip()

    lines = [heading, "", line(titles)]
    for topic, of_topic in itertools.groupby(rows, key=lambda row: row.topic):
        lines += ["", topic, *(line(_cells(row)) for row in of_topic)]
    new_console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _cells(row: Row) -> tuple[str, str, str, str]:
    return row.name, row.text, row.formula, row.lecture
