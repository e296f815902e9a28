"""Parser of the command line, with examples."""

from __future__ import annotations

import argparse
from typing import Any

from partir_search.commands import flags, theory
from partir_search.messages.version import VERSION
from partir_search.planning.planner import DEFAULT_EPISODES
from partir_search.simulator.target.machine import MACHINES

EXAMPLES = """examples:
  partir-search plan train:step --args=train:example_args --mesh=data:8,model:8 \\
      --machine=tpu_v5p --donate 0 --out=plans/
  partir-search plan train:step --args=train:example_args --mesh=data:8 --machine=h100 --json
  partir-search strategies train:step --args=train:example_args --mesh=data:8 --machine=h100
  partir-search replay train:step plans/plan.json --args=train:example_args
  partir-search compare train:step a.json b.json --args=train:example_args
  partir-search explain train:step plans/plan.json 'state/params/**' --args=train:example_args
  partir-search verify train:step plans/plan.json tpu_v5e:4x4 --args=train:example_args
  partir-search theory --model=llama3-405b --machine=h100 --devices=16384

exit status: 0; 2 after bad input; 3 if the plan does not fit in memory, or if verify finds a
difference of unknown cause; 130 after ctrl-C: `plan` has then written the outputs for the best
strategy so far, if a search had begun
"""
PLAN_EXAMPLES = """examples:
  --schedule=bp+z3                 the fastest data parallelism with ZeRO 3
  --schedule='BP(data)+MP(model)'  a known strategy by its full name
  --schedule=train:tactics         a list of tactics
  --goals=fit=12GB,fastest         a tighter limit of memory
  --microbatches=1,2,4             the first number that fits
  --confirm=tpu_v5e:4x4            the best finalist by the compiler
"""
OUTPUTS = "plan.json, plan.ir, report.html, report.json and the search"


def make_parser() -> argparse.ArgumentParser:
    """Parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="partir-search",
        description="Plans any importable step over a mesh; nothing is allocated.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"partir-search {VERSION}")
    _add_completion(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_plan(commands)
    known = _add(commands, "strategies", "print the known strategies", aliases=["experts"])
    _add_where(known, required=True)
    replay = _add(commands, "replay", "figures and report of a saved plan")
    _add_saved(replay, "plan")
    _add_where(replay, required=False)
    replay.add_argument("--donate", type=flags.positions, help="positions of donated arguments")
    replay.add_argument("--out", help=f"folder for {OUTPUTS}")
    compare = _add(commands, "compare", "differences of two saved plans")
    _add_saved(compare, "before", "after")
    _add_where(compare, required=False)
    explain = _add(commands, "explain", "causes of the tilings of some arguments")
    _add_saved(explain, "plan")
    explain.add_argument("path", help="an argument's path, or a glob: 'state/params/**'")
    _add_where(explain, required=False)
    verify = _add(commands, "verify", "compile a saved plan for a target and compare")
    _add_saved(verify, "plan")
    verify.add_argument("target", help="machine and topology: tpu_v5e:4x4, gpu_h100:8")
    _add_where(verify, required=False)
    theory.add_parser(commands)
    schema = commands.add_parser("schema", help="print the JSON schema of --json")
    schema.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    return parser


def _add(commands: Any, name: str, about: str, **options: Any) -> argparse.ArgumentParser:
    """Subcommand on a step with arguments."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    command.add_argument("step", help="package.module:function, plain, jitted or partitioned")
    command.add_argument(
        "--args", required=True, help="package.module:function that returns its arguments"
    )
    command.add_argument("--debug", action="store_true", help="show tracebacks")
    command.add_argument(
        "--json", action="store_true", help="print JSON instead of tables (partir-search schema)"
    )
    return command


def _add_where(command: argparse.ArgumentParser, *, required: bool) -> None:
    """Flags of the mesh and the machine; by default a saved plan's."""
    default = "" if required else "; default: the plan's"
    command.add_argument(
        "--mesh", required=required, help=f"axes and sizes: data:8,model:8{default}"
    )
    names = ", ".join(sorted(MACHINES))
    command.add_argument(
        "--machine", required=required, help=f"{names}, or a calibration's file{default}"
    )


def _add_saved(command: argparse.ArgumentParser, *names: str) -> None:
    """Files of saved plans."""
    for name in names:
        command.add_argument(name, help="file of a plan, plan.json")
    command.add_argument(
        "--on-change",
        choices=("raise", "apply"),
        default="raise",
        help="of the program since the plan was saved: fail, or apply the decisions that hold",
    )


def _add_plan(commands: Any) -> None:
    plan = _add(commands, "plan", "search for a plan and print its report", epilog=PLAN_EXAMPLES)
    _add_where(plan, required=True)
    plan.add_argument("--episodes", type=int, default=DEFAULT_EPISODES, help="strategies to score")
    plan.add_argument("--seed", type=int, default=0, help="of the search")
    plan.add_argument("--donate", type=flags.positions, help="positions of donated arguments: 0,1")
    plan.add_argument(
        "--schedule",
        help="instead of a search: a known strategy (bp+z3), none, or package.module:tactics",
    )
    plan.add_argument("--goals", type=flags.goals, help=flags.GOALS)
    plan.add_argument(
        "--remat", type=flags.three_ways, default="auto", help="recomputation: auto, always, never"
    )
    plan.add_argument(
        "--microbatches", type=flags.counts, default=(1,), help="4, or 1,2,4: the first that fits"
    )
    plan.add_argument(
        "--scan-layers",
        type=flags.three_ways,
        default=False,
        help="equal layers as scans, compiled once: auto, always, never",
    )
    plan.add_argument("--rings", action="store_true", help="partition in time as well")
    plan.add_argument("--cache", help="folder of plans; later runs load the plan")
    plan.add_argument("--dump-dir", help="folder for the program after each pass")
    plan.add_argument(
        "--confirm",
        metavar="TARGET",
        help="compile the finalists and choose by the compiler: tpu_v5e:4x4, or own for the"
        " machine's usual topology",
    )
    plan.add_argument(
        "--confirm-memory",
        action="store_true",
        help="confirm by peak memory alone, in a tenth of the time",
    )
    plan.add_argument(
        "--profile", metavar="FILE", help="measured figures of the machine, which go before others"
    )
    plan.add_argument("--verify", help="compile for a target and compare: tpu_v5e:4x4")
    plan.add_argument("--full-ir", action="store_true", help="every op and attribute in plan.ir")
    plan.add_argument("--out", help=f"folder for {OUTPUTS}")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    """Option for completion scripts by shtab, or for the installation of shtab."""
    try:
        import shtab
    except ImportError:
        parser.add_argument(
            "--print-completion",
            action="version",
            version="completion needs shtab: pip install 'partir_search[completion]'",
            help="script for bash, zsh or tcsh (needs shtab)",
        )
        return
    shtab.add_argument_to(parser, ["--print-completion"], help="script for bash, zsh or tcsh")
