"""Subcommands: plan, strategies, replay, compare, explain, verify, theory."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any

from jax.sharding import AbstractMesh

from partir_search.aot.targets import Target
from partir_search.api import auto_partition
from partir_search.commands.flags import confirm, schedule_of, tactics
from partir_search.commands.named_objects import UsageError, step_and_inputs
from partir_search.commands.theory import run_theory
from partir_search.ir.mesh import MeshShape
from partir_search.known import known_strategies
from partir_search.messages.console import new_console
from partir_search.messages.files import make_folder
from partir_search.plan.compare import compare
from partir_search.plan.plan import Plan
from partir_search.plan.report.data import comparison_data, report_data, strategies_data
from partir_search.plan.report.schema import REPORT_SCHEMA
from partir_search.plan.serialization import load_plan
from partir_search.plan.spec import PlanSpec
from partir_search.simulator.target.machine import find_machine

DOES_NOT_FIT = 3
STOPPED = 130  # 128 + SIGINT, as of a shell's command


def run(args: argparse.Namespace) -> int:
    """Runs a subcommand; returns the exit status."""
    if args.command == "schema":
        print(json.dumps(REPORT_SCHEMA, indent=1))
        return 0
    return int(_COMMANDS[args.command](args))


def _plan(args: argparse.Namespace) -> int:
    """Searches, or applies the schedule; prints the report and writes the outputs."""
    step, inputs = step_and_inputs(args.step, args.args)
    mesh = MeshShape.parse(args.mesh)
    find_machine(args.machine)
    _check_outputs(args)
    if args.cache is not None:
        make_folder(args.cache, "--cache")
    if args.verify:
        Target.parse(args.verify).mesh(mesh)
    over = AbstractMesh(mesh.sizes, mesh.names)
    options: dict[str, Any] = {
        "machine": args.machine,
        "profile": args.profile,
        "donate_argnums": args.donate,
        "goals": args.goals,
        "microbatches": args.microbatches,
        "scan_layers": args.scan_layers,
        "progress": True,
    }
    schedule: Any = None
    if args.schedule == "none":
        schedule = []
    elif args.schedule and ":" in args.schedule:
        schedule = tactics(args.schedule)
    elif args.schedule:
        known = auto_partition(over, **{**options, "microbatches": args.microbatches[:1]})(step)
        schedule = schedule_of(args.schedule, known_strategies(known, over, *inputs))
    partitioned = auto_partition(
        over,
        **options,
        schedule=schedule,
        episodes=args.episodes,
        seed=args.seed,
        remat=args.remat,
        rings=args.rings,
        cache=args.cache,
        confirm=confirm(args.confirm, args.confirm_memory),
        dump_dir=args.dump_dir,
    )(step)
    plan, stopped = _plan_or_best_so_far(partitioned, inputs)
    _show(args, plan)
    if stopped:
        return STOPPED
    if args.verify:
        found = plan.verify(args.verify)
        new_console(stderr=args.json).print(str(found), markup=False)
    return 0 if plan.fits else DOES_NOT_FIT


def _plan_or_best_so_far(partitioned: Any, inputs: Any) -> tuple[Plan, bool]:
    """The plan, or the plan of the best strategy until ctrl-C; True for the latter.

    Raises:
      KeyboardInterrupt: before a search, or again.
    """
    try:
        return partitioned.plan(*inputs), False
    except KeyboardInterrupt as stop:
        if not hasattr(stop, "__notes__"):  # no search had begun
            raise
        text = "stopped; the plan of the best strategy so far follows (ctrl-C again: no plan)"
        print(f"partir-search: {text}", file=sys.stderr, flush=True)
    return partitioned.best_so_far(*inputs), True


def _show(args: argparse.Namespace, plan: Plan) -> None:
    """Prints a plan, and writes the files of `--out`."""
    if args.json:
        print(json.dumps(report_data(plan), indent=1))
    else:
        plan.report(new_console())
    if not args.out:
        return
    folder = make_folder(args.out, "--out")
    plan.save(folder / "plan.json")
    text = plan.ir(full=getattr(args, "full_ir", False))
    (folder / "plan.ir").write_text(text + "\n")
    plan.save_report(folder / "report.html")
    (folder / "report.json").write_text(json.dumps(report_data(plan), indent=1) + "\n")
    plan.save_search(folder)
    files = "plan.json, plan.ir, report.html, report.json and the search"
    new_console(stderr=args.json).print(f"wrote {files} to {folder}", soft_wrap=True)


def _check_outputs(args: argparse.Namespace) -> None:
    """Checks the folder of `--out` before a search.

    Raises:
      UsageError: the folder cannot be written to.
    """
    if args.out is not None:
        folder = make_folder(args.out, "--out")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"--out: {folder} cannot be written to; choose another folder")


def _strategies(args: argparse.Namespace) -> int:
    step, inputs = step_and_inputs(args.step, args.args)
    mesh = MeshShape.parse(args.mesh)
    find_machine(args.machine)
    over = AbstractMesh(mesh.sizes, mesh.names)
    found = known_strategies(step, over, *inputs, machine=args.machine)
    if args.json:
        print(json.dumps(strategies_data(found), indent=1))
    else:
        new_console().print(found)
    return 0


# Saved plans -------------------------------------------------------------------------------------


def _replayed(args: argparse.Namespace, *files: str) -> list[Plan]:
    """Plans of files, applied to the step."""
    specs = [load_plan(file, on_change=args.on_change) for file in files]
    step, inputs = step_and_inputs(args.step, args.args)
    return [_replay_one(args, spec, step, inputs) for spec in specs]


def _replay_one(args: argparse.Namespace, spec: PlanSpec, step: Any, inputs: Any) -> Plan:
    mesh = MeshShape.parse(args.mesh) if args.mesh else spec.mesh.user
    partitioned = auto_partition(
        AbstractMesh(mesh.sizes, mesh.names),
        machine=args.machine or spec.machine,
        schedule=spec,
        donate_argnums=getattr(args, "donate", None),
    )(step)
    plan: Plan = partitioned.plan(*inputs)
    return plan


def _replay(args: argparse.Namespace) -> int:
    _check_outputs(args)
    (plan,) = _replayed(args, args.plan)
    _show(args, plan)
    return 0 if plan.fits else DOES_NOT_FIT


def _compare(args: argparse.Namespace) -> int:
    before, after = _replayed(args, args.before, args.after)
    found = compare(before, after)
    if args.json:
        print(json.dumps(comparison_data(found), indent=1))
    else:
        new_console().print(found)
    return 0


def _explain(args: argparse.Namespace) -> int:
    (plan,) = _replayed(args, args.plan)
    text = plan.explain(args.path)
    if args.json:
        print(json.dumps({"path": args.path, "lines": text.splitlines()}, indent=1))
    else:
        print(text)
    return 0


def _verify(args: argparse.Namespace) -> int:
    target = Target.parse(args.target)
    spec = load_plan(pathlib.Path(args.plan), on_change=args.on_change)
    target.mesh(MeshShape.parse(args.mesh) if args.mesh else spec.mesh.user)
    (plan,) = _replayed(args, args.plan)
    found = plan.verify(args.target)
    if args.json:
        data = {
            "target": found.target,
            "confirmed": found.confirmed,
            "changes": list(found.changes),
            "unexplained": list(found.unexplained),
            "peak_bytes": list(found.peak_bytes),
            "compile_seconds": found.compile_seconds,
        }
        print(json.dumps(data, indent=1))
    else:
        print(found)
    return 0 if found.confirmed else DOES_NOT_FIT


_COMMANDS = {
    "plan": _plan,
    "strategies": _strategies,
    "experts": _strategies,
    "replay": _replay,
    "compare": _compare,
    "explain": _explain,
    "verify": _verify,
    "theory": run_theory,
}
