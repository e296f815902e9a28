"""The command `partir-search`: plans any importable step, with nothing allocated.

partir-search plan package.module:train_step --args=package.module:example_args \
        --mesh=data:8,model:8 --machine=tpu_v5p --donate=0 --out=plans/
partir-search experts package.module:train_step --args=... --mesh=... --machine=...
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh
from rich.console import Console

from partir_search.api import AutoPartitioned, auto_partition
from partir_search.ir.mesh import MeshShape
from partir_search.known import experts
from partir_search.machine import MACHINES
from partir_search.planner import DEFAULT_EPISODES


class UsageError(Exception):
    """Something that the user named is not there, or is not what it should be."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 0, or 2 with a message on stderr for bad input."""
    args = _parser().parse_args(argv)
    sys.path.insert(0, os.getcwd())
    try:
        step, inputs = _step(args)
        mesh = MeshShape.parse(args.mesh)
        console = Console()
        {"plan": _plan, "experts": _experts}[args.command](args, step, inputs, mesh, console)
    except (UsageError, ValueError, TypeError, RuntimeError) as error:
        print(f"partir-search: {error}", file=sys.stderr)
        return 2
    return 0


def _plan(
    args: argparse.Namespace, step: Any, inputs: Any, mesh: MeshShape, console: Console
) -> None:
    """Searches, prints the report, writes plan, IR and page."""
    partitioned = auto_partition(
        AbstractMesh(mesh.sizes, mesh.names),
        machine=args.machine,
        episodes=args.episodes,
        seed=args.seed,
        donate_argnums=args.donate,
        rings=args.rings,
        cache=args.cache,
    )(step)
    plan = partitioned.plan(*inputs)
    plan.report(console)
    if args.out:
        folder = pathlib.Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan.json")
        (folder / "plan.ir").write_text(plan.ir() + "\n")
        plan.save_report(folder / "report.html")
        plan.save_search(folder)
        console.print(f"wrote plan.json, plan.ir, report.html and the search to {folder}")
    if args.verify:
        console.print(str(plan.verify(args.verify)), markup=False)
    if not plan.fits:
        for remedy in plan.remedies():
            console.print(f"does not fit; what would help: {remedy}", markup=False)


def _experts(
    args: argparse.Namespace, step: Any, inputs: Any, mesh: MeshShape, console: Console
) -> None:
    """Prints the known strategies in one table."""
    found = experts(step, AbstractMesh(mesh.sizes, mesh.names), *inputs, machine=args.machine)
    console.print(found)


def _step(args: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step for one device, and its abstract arguments."""
    step = named_object(args.step)
    if isinstance(step, AutoPartitioned):
        step = step.plain
    make = named_object(args.args)
    if not callable(step) or not callable(make):
        raise UsageError(f"{args.step} and {args.args} must both be functions")
    try:
        inputs = jax.eval_shape(make)
    except Exception as error:  # the user's own code
        raise UsageError(f"{args.args}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(inputs, tuple | list):
        raise UsageError(
            f"{args.args}() returns {type(inputs).__name__}; return the step's arguments as a tuple"
        )
    return step, tuple(inputs)


def named_object(name: str) -> Any:
    """What ``module:attribute`` names. UsageError that says which part is not there."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise UsageError(f"{name!r} names no function; write it as package.module:function")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{module!r} cannot be imported from {os.getcwd()}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            own = (n for n, x in vars(found).items() if getattr(x, "__module__", "") == module)
            shown = ", ".join(n for n in list(own)[:8] if not n.startswith("_"))
            raise UsageError(f"{module} has no {attribute!r}; it has {shown}")
        found = getattr(found, part)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="partir-search", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="search for a plan and print its report")
    known = commands.add_parser("experts", help="print the known strategies")
    for command in (plan, known):
        command.add_argument("step", help="package.module:function, plain, jitted or partitioned")
        command.add_argument(
            "--args", required=True, help="package.module:function that returns its arguments"
        )
        command.add_argument("--mesh", required=True, help="axes and sizes: data:8,model:8")
        names = ", ".join(sorted(MACHINES))
        command.add_argument("--machine", required=True, help=f"{names}, or a calibration's file")
    plan.add_argument("--episodes", type=int, default=DEFAULT_EPISODES, help="strategies to score")
    plan.add_argument("--seed", type=int, default=0, help="of the search")
    plan.add_argument("--donate", type=int, nargs="*", help="positions of donated arguments")
    plan.add_argument("--rings", action="store_true", help="partition in time as well")
    plan.add_argument("--cache", help="folder of plans")
    plan.add_argument("--verify", help="compile for a target and compare: tpu_v5e:4x4")
    plan.add_argument("--out", help="folder for plan.json, plan.ir, report.html and the search")
    return parser


if __name__ == "__main__":
    sys.exit(main())
