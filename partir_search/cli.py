"""The command `partir-search`: plans any importable step, with nothing allocated.

partir-search plan package.module:train_step --args=package.module:example_args \
        --mesh=data:8,model:8 --machine=tpu_v5p --donate=0 --out=plans/
partir-search strategies package.module:train_step --args=... --mesh=... --machine=...
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh
from rich.console import Console

from partir_search.aot.targets import Target
from partir_search.api import AutoPartitioned, auto_partition
from partir_search.ir.mesh import MeshShape
from partir_search.known import known_strategies
from partir_search.messages.files import make_folder
from partir_search.messages.wording import did_you_mean, shown
from partir_search.planning.planner import DEFAULT_EPISODES
from partir_search.simulator.target.machine import MACHINES, find_machine


class UsageError(Exception):
    """Bad input: a name that does not exist, or an object of the wrong kind."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a message on stderr for bad input."""
    args = _parser().parse_args(joined_positions(sys.argv[1:] if argv is None else argv))
    sys.path.insert(0, os.getcwd())
    try:
        step, inputs = _step(args)
        mesh = MeshShape.parse(args.mesh)
        _check(args, mesh)
        console = Console()
        command = _plan if args.command == "plan" else _strategies
        command(args, step, inputs, mesh, console)
    except (UsageError, OSError, ValueError, TypeError, RuntimeError) as error:
        print(f"partir-search: {error}", file=sys.stderr)
        return 2
    except (ArithmeticError, AttributeError, LookupError) as error:
        text = _told(error)
        if not text.endswith(")"):  # no frame of the user's code: a fault of this package
            raise
        print(f"partir-search: {args.step} failed: {text}", file=sys.stderr)
        return 2
    return 0


def joined_positions(argv: Sequence[str]) -> list[str]:
    """Rewrites ``--donate 0 1`` as ``--donate=0,1``, since the step may follow the positions."""
    words, found = list(argv), list[str]()
    while words:
        word = words.pop(0)
        if word == "--donate" and words and _POSITIONS.fullmatch(words[0]):
            given = [words.pop(0)]
            while words and _POSITIONS.fullmatch(words[0]):
                given.append(words.pop(0))
            word = f"--donate={','.join(given)}"
        found.append(word)
    return found


_POSITIONS = re.compile(r"-?\d+(,-?\d+)*")


def _positions(text: str) -> tuple[int, ...]:
    """Parses argument positions, ``0`` or ``0,1``."""
    if not _POSITIONS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no position of an argument; write 0 or 0,1")
    return tuple(map(int, text.split(",")))


def _check(args: argparse.Namespace, mesh: MeshShape) -> None:
    """Checks the flags used only after the search: folders, and the target of `--verify`."""
    find_machine(args.machine)
    if args.command != "plan":
        return
    if args.out is not None:
        folder = make_folder(args.out, "--out")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"--out: {folder} cannot be written to; choose another folder")
    if args.cache is not None:
        make_folder(args.cache, "--cache")
    if args.verify:
        Target.parse(args.verify).mesh(mesh)


def _plan(
    args: argparse.Namespace, step: Any, inputs: Any, mesh: MeshShape, console: Console
) -> None:
    """Searches, prints the report, and writes the plan, the IR and the HTML report."""
    partitioned = auto_partition(
        AbstractMesh(mesh.sizes, mesh.names),
        machine=args.machine,
        episodes=args.episodes,
        seed=args.seed,
        donate_argnums=args.donate,
        rings=args.rings,
        cache=args.cache,
        dump_dir=args.dump_dir,
    )(step)
    plan = partitioned.plan(*inputs)
    plan.report(console)
    if args.out:
        folder = make_folder(args.out, "--out")
        plan.save(folder / "plan.json")
        (folder / "plan.ir").write_text(plan.ir(full=args.full_ir) + "\n")
        plan.save_report(folder / "report.html")
        plan.save_search(folder)
        console.print(f"wrote plan.json, plan.ir, report.html and the search to {folder}")
    if args.verify:
        console.print(str(plan.verify(args.verify)), markup=False)
    if not plan.fits:
        for remedy in plan.remedies():
            console.print(f"does not fit; what would help: {remedy}", markup=False)


def _strategies(
    args: argparse.Namespace, step: Any, inputs: Any, mesh: MeshShape, console: Console
) -> None:
    """Prints the known strategies in one table."""
    over = AbstractMesh(mesh.sizes, mesh.names)
    found = known_strategies(step, over, *inputs, machine=args.machine)
    console.print(found)


def _step(args: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step for one device, and its abstract arguments."""
    step = named_object(args.step)
    if isinstance(step, AutoPartitioned):
        step = step.plain
    make = named_object(args.args)
    for name, given in ((args.step, step), (args.args, make)):
        if not callable(given):
            raise UsageError(
                f"{args.step} and {args.args} must both be functions: {name} is {shown(given)}"
            )
    try:
        inputs = jax.eval_shape(make)
    except Exception as error:  # the user's own code
        raise UsageError(f"--args: {args.args}() failed: {_told(error)}") from error
    if not isinstance(inputs, tuple | list):
        raise UsageError(
            f"{args.args}() returns {type(inputs).__name__}; return the step's arguments as a tuple"
        )
    return step, tuple(inputs)


def _told(error: Exception) -> str:
    """Text of an error in the user's code, with the innermost line outside this package and jax."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not any(other in f.filename for other in _OTHERS)]
    where = f" ({user_frames[-1].filename}:{user_frames[-1].lineno})" if user_frames else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{where}"


_OTHERS = ("<frozen", f"{os.sep}site-packages{os.sep}", str(pathlib.Path(__file__).parent))


def named_object(name: str) -> Any:
    """Imports the object named ``module:attribute``.

    Raises:
      UsageError: a name in the path does not exist; the message says which.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise UsageError(f"{name!r} names no function; write it as package.module:function")
    if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        file = module.removesuffix(".py").strip("./").replace(os.sep, ".")
        hint = f"; did you mean {file}:{attribute}?" if module.endswith(".py") else ""
        raise UsageError(f"{module!r} names no module; write it as package.module:function{hint}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{module!r} cannot be imported from {os.getcwd()}: {error}") from error
    except Exception as error:  # the user's own code
        raise UsageError(f"importing {module!r} failed: {_told(error)}") from error
    for identifier in attribute.split("."):
        if not hasattr(found, identifier):
            own = (n for n, x in vars(found).items() if getattr(x, "__module__", "") == module)
            names = [n for n in own if not n.startswith("_")]
            near = did_you_mean(identifier, names)
            has = f"; it has {', '.join(names[:8])}" if names else ""
            raise UsageError(f"{module} has no {attribute!r}{has}{near}")
        found = getattr(found, identifier)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="partir-search", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="search for a plan and print its report")
    known = commands.add_parser(
        "strategies", aliases=["experts"], help="print the known strategies"
    )
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
    plan.add_argument("--donate", type=_positions, help="positions of donated arguments: 0 or 0,1")
    plan.add_argument("--rings", action="store_true", help="partition in time as well")
    plan.add_argument("--cache", help="folder of plans")
    plan.add_argument("--dump-dir", help="folder for the program after each pass")
    plan.add_argument("--verify", help="compile for a target and compare: tpu_v5e:4x4")
    plan.add_argument("--full-ir", action="store_true", help="every op and attribute in plan.ir")
    plan.add_argument("--out", help="folder for plan.json, plan.ir, report.html and the search")
    return parser


if __name__ == "__main__":
    sys.exit(main())
