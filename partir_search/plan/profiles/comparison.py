"""Predicted against measured seconds per scope of the user's program."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import os
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partir_search.ir.source_names import is_backward, scope_path
from partir_search.messages import validators
from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import duration, shown
from partir_search.plan.facts import PlanFacts
from partir_search.plan.profiles.xplane import MeasuredOp, read_xplane

if TYPE_CHECKING:
    from rich.console import RenderableType

_LOOPS = ("while", "cond")  # of HLO; a loop of the simulator is one op with its own scope
_KINDS = ("*.xplane.pb", "*.trace.json.gz", "*.trace.json", "perfetto_trace.json.gz")


@dataclasses.dataclass(frozen=True, slots=True)
class ScopeSeconds:
    """Seconds per step of one device in one scope.

    Attributes:
      scope: `backward of layer_0/mlp`; "" for ops outside of every scope.
      predicted: simulated seconds of compute and collectives, overlapped ones included.
      measured: seconds of the profile.
    """

    scope: str
    predicted: float
    measured: float


@dataclasses.dataclass(frozen=True, repr=False)
class TraceComparison(Shown):
    """Simulated beside measured seconds of a step; printing shows a table.

    Attributes:
      rows: by scope, the largest difference first.
      runs: number of measured runs of a step, one per device and step.
      path: the profile.
    """

    rows: tuple[ScopeSeconds, ...]
    runs: int
    path: str

    @property
    def predicted(self) -> float:
        """Simulated seconds of all scopes."""
        return sum(r.predicted for r in self.rows)

    @property
    def measured(self) -> float:
        """Measured seconds of all scopes."""
        return sum(r.measured for r in self.rows)

    def __rich__(self) -> RenderableType:
        table = new_table("scope")
        for column in ("predicted", "measured", "ratio"):
            table.add_column(column, justify="right")
        rows = [(r.scope or "(no scope)", r.predicted, r.measured) for r in self.rows]
        for name, predicted, measured in (*rows, ("all", self.predicted, self.measured)):
            ratio = f"{measured / predicted:.2f}" if predicted else "-"
            table.add_row(name, duration(predicted), duration(measured), ratio)
        return table


def compare_trace(
    plan: PlanFacts, profile: str | os.PathLike[str], *, hlo: str = "", depth: int | None = None
) -> TraceComparison:
    """Compares the simulated seconds of a plan with a profile of its step, scope by scope.

    Measured seconds are means over devices and steps. Ops inside of a loop count for the scope of
    the loop.

    Args:
      plan: the plan of the measured step.
      profile: folder given to `jax.profiler.trace`, or a file: `.xplane.pb`, `.trace.json.gz` or
        `perfetto_trace.json.gz`. The newest run in a folder is read, its `.xplane.pb` if there is
        one.
      hlo: text of the compiled program (`step.lower(...).compile().as_text()`), for traces in JSON
        without name stacks.
      depth: number of names of a scope to group by; None for all.

    Raises:
      FileNotFoundError: the folder contains no profile.
      ValueError: the profile contains no run of the plan's step, or no name stacks.
    """
    if not isinstance(plan, PlanFacts):
        raise TypeError(f"compare_trace: plan is a Plan, not {shown(plan)}")
    file = _newest(pathlib.Path(validators.path("profile", profile)))
    ops = read_xplane(file.read_bytes()) if file.suffix == ".pb" else _read_json(file)
    name = "jit_" + re.sub(r"[^\w.-]", "_", plan.module.name)
    own = [op for op in ops if op.module == name]
    if not own:
        found = ", ".join(sorted({op.module for op in ops if op.module})[:8]) or "no program"
        raise ValueError(f"{file} has no run of {name}; it has runs of {found}")
    known = _scopes_of_text(hlo)
    scopes = [known.get(op.name, op.scope) for op in own]
    if not any(scopes):
        raise ValueError(
            f"{file} has no name stacks; give the folder with the .xplane.pb, or the compiled"
            " program: hlo=step.lower(...).compile().as_text()"
        )
    runs = statistics.mode(op.runs for op in own)
    measured: dict[str, float] = collections.defaultdict(float)
    for op, scope in zip(own, scopes, strict=True):
        measured[row_of(scope, depth, True)] += op.seconds / runs
    predicted: dict[str, float] = collections.defaultdict(float)
    for event in plan.timeline.events:
        predicted[row_of(event.scope, depth, False)] += event.seconds
    return TraceComparison(_rows(predicted, measured), runs, str(file))


def _rows(
    predicted: Mapping[str, float], measured: Mapping[str, float]
) -> tuple[ScopeSeconds, ...]:
    rows = [
        ScopeSeconds(scope, predicted.get(scope, 0.0), measured.get(scope, 0.0))
        for scope in dict.fromkeys((*predicted, *measured))
    ]
    return tuple(sorted(rows, key=lambda r: (-abs(r.predicted - r.measured), r.scope)))


def row_of(scope: str, depth: int | None, measured: bool) -> str:
    """Scope of a row: names without transformations, with the pass."""
    backward = is_backward(scope)
    names: Sequence[str] = scope.split("/")
    if measured:  # jit(step)/shard_map/.../primitive
        names = [n for n in names[1:-1] if n != "shard_map"]
        end = next((i for i, n in enumerate(names) if n in _LOOPS), len(names))
        names = names[:end]
    path = scope_path("/".join(names))[:depth]
    return f"backward of {'/'.join(path)}" if backward and path else "/".join(path)


def _newest(path: pathlib.Path) -> pathlib.Path:
    """The profile at a path: the path itself, or the newest file of the best kind in a folder."""
    if path.is_file():
        return path
    for kind in _KINDS:
        found = sorted(path.rglob(kind), key=lambda p: p.stat().st_mtime)
        if found:
            return found[-1]
    raise FileNotFoundError(
        f"there is no profile in {path}: write one with jax.profiler.trace({str(path)!r}) around"
        " some steps"
    )


def _read_json(file: pathlib.Path) -> list[MeasuredOp]:
    """Ops measured in a trace of JSON events."""
    data = file.read_bytes()
    try:
        text = gzip.decompress(data) if file.suffix == ".gz" else data
        events = json.loads(text)["traceEvents"]
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(f"{file} is no trace of JSON events: {error}") from error
    found: dict[tuple[str, str], MeasuredOp] = {}
    for event in events:
        args = event.get("args") or {}
        if event.get("ph") != "X" or "hlo_op" not in args:
            continue
        module = re.sub(r"\(\d+\)$", "", str(args.get("hlo_module", "")))
        op = found.setdefault(
            (module, args["hlo_op"]),
            MeasuredOp(module, args["hlo_op"], str(args.get("tf_op", ""))),
        )
        op.seconds += float(event.get("dur", 0)) * 1e-6
        op.runs += 1
    return list(found.values())


def _scopes_of_text(hlo: str) -> dict[str, str]:
    """Name stack of each op in the text of a compiled program."""
    pattern = r"^\s*(?:ROOT )?%?([\w.-]+) = .*metadata=\{[^}]*op_name=\"([^\"]*)\""
    return dict(re.findall(pattern, hlo, re.MULTILINE))
