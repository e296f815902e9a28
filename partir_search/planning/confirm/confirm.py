"""Choice of a plan among finalists by a compiler's figures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from partir_search.aot.compile import jitted_for
from partir_search.aot.compile_all import Outcome, Running, compile_all
from partir_search.aot.judge import judge
from partir_search.aot.process import Compilation
from partir_search.aot.targets import Target
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.game import Score
from partir_search.mcts.goals import scorer
from partir_search.messages.wording import milliseconds
from partir_search.plan.confirmation import Confirmation, Finalist, why_chosen
from partir_search.plan.plan import Plan
from partir_search.plan.report.progress import step_progress
from partir_search.planning.confirm.contenders import ContenderFinder
from partir_search.planning.confirm.request import Confirm
from partir_search.planning.options import Options
from partir_search.planning.planner_maker import PlannerMaker
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import Machine

SEARCHED = "the search's plan"


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a finalist by the compiler.

    Attributes:
      peak_bytes / seconds: None if unknown.
      note: reason for missing figures, or a doubt about figures.
    """

    peak_bytes: int | None = None
    seconds: float | None = None
    note: str = ""


def confirmed(plan: Plan, request: Confirm, planner_of: PlannerMaker) -> Plan:
    """The best of a search's plan and its contenders by the compiler's figures.

    Compilations that fail, or take too long, leave a note; without any figures the plan stands.

    Args:
      plan: the search's plan.
      request: target, and limits of the compilations.
      planner_of: function from a form of the program to its planner.
    """
    begin = time.perf_counter()
    finder, limit = ContenderFinder(plan, planner_of), plan.memory_limit
    contenders = finder.near(request.compiles - 1)
    finalists = [(SEARCHED, plan.cost), *((each.name, each.cost) for each in contenders)]

    def plan_at(at: int) -> Plan:
        return finder.plan_of(contenders[at - 1]) if at else plan

    found = compiled_figures(plan_at, range(len(finalists)), limit, request, planner_of.options)
    below = _smaller_peak(finalists, found, limit)
    if below is not None:
        more = finder.smaller(request.compiles - len(found), below)
        contenders += more
        first = len(finalists)
        finalists += [(each.name, each.cost) for each in more]
        places = range(first, len(finalists))
        found |= compiled_figures(plan_at, places, limit, request, planner_of.options)
    score = scorer(finder.planner.goals)
    result, chosen = confirmation(finalists, found, score, limit, request)
    best = plan_at(chosen)
    spent = time.perf_counter() - begin
    best.confirmed = dataclasses.replace(result, compile_seconds=spent)
    best.seconds["confirm"] = spent
    return best


def _smaller_peak(
    finalists: Sequence[tuple[str, Cost]], found: Mapping[int, Figures], limit: float
) -> float | None:
    """Simulated peak below which plans fit by the compiler, by the least ratio of both peaks.

    None if a finalist fits, or no peak is known.
    """
    peaks = {at: each.peak_bytes for at, each in found.items() if each.peak_bytes is not None}
    if not peaks or min(peaks.values()) <= limit:
        return None
    ratio = min(peak / finalists[at][1].peak_bytes for at, peak in peaks.items())
    return limit / max(ratio, 1.0)


def compiled_figures(
    plan_at: Callable[[int], Plan],
    places: Sequence[int],
    limit: float,
    request: Confirm,
    options: Options,
) -> dict[int, Figures]:
    """Figures by the compiler, by the finalist's position.

    Finalists after the first that fits are left out if seconds are not judged.

    Args:
      plan_at: function from a position to the plan.
      places: positions to compile, best first by the simulator.
      limit: bytes per device allowed by the goals.
      request: target, and limits of the compilations.
      options: options of `auto_partition`.
    """
    target = Target.parse(str(request.target))
    alike = options.machine.name == target.machine.name
    machine = options.machine if alike else target.machine
    shape = plan_at(0).program.partition.mesh
    mesh = target.mesh(shape)

    def starter(at: int) -> Callable[[], Running]:
        def start() -> Running:
            program = plan_at(at).program
            donated = tuple(sorted(program.partition.module.donated))
            arguments = jitted_for(program, mesh)
            return Compilation(*arguments, donated, target, mesh, cycles=request.cycles)

        return start

    def enough(outcome: Outcome) -> bool:
        fits = outcome.peak_bytes is not None and outcome.peak_bytes <= limit
        return fits and not request.cycles

    found: dict[int, Figures] = {}
    with step_progress(options.progress, f"confirm on {target}", len(places)) as done:
        for number, outcome in compile_all(
            [starter(at) for at in places],
            seconds=request.seconds,
            limit=limit,
            processes=request.processes,
            enough=enough,
        ):
            found[places[number]] = figures_of(outcome, shape, machine, request.cycles)
            best = min((f.seconds for f in found.values() if f.seconds is not None), default=None)
            done("" if best is None else f"best {milliseconds(best)}")
    return found


def figures_of(outcome: Outcome, mesh: MeshShape, machine: Machine, cycles: bool) -> Figures:
    """Figures of a finalist from the outcome of its compilation."""
    if outcome.program is None or not cycles:
        return Figures(outcome.peak_bytes, None, outcome.note)
    try:
        judged = judge(outcome.program.text, mesh, machine)
    except (LookupError, ValueError, StopIteration) as error:
        return Figures(outcome.peak_bytes, None, f"the compiled text cannot be judged: {error!r}")
    doubt = f"{judged.unknown} loops of unknown trip count, judged as one run"
    return Figures(outcome.peak_bytes, judged.total, doubt if judged.unknown else "")


def confirmation(
    finalists: Sequence[tuple[str, Cost]],
    found: dict[int, Figures],
    score: Callable[[Cost], Score],
    limit: float,
    request: Confirm,
) -> tuple[Confirmation, int]:
    """Choice among finalists.

    Args:
      finalists: name and simulated cost of each, the search's plan first.
      found: figures by position, as far as known.
      score: of a cost, by the goals.
      limit: bytes per device allowed by the goals.
      request: the option.

    Returns:
      The record of the choice, and the position of the chosen finalist.
    """
    ranks: dict[int, tuple[bool, float]] = {}
    for at, figures in found.items():
        if figures.peak_bytes is None:
            continue
        seconds = finalists[at][1].seconds if figures.seconds is None else figures.seconds
        by_compiler = dataclasses.replace(
            finalists[at][1], seconds=seconds, peak_bytes=figures.peak_bytes
        )
        rank = score(by_compiler).rank()
        if rank[0] or figures.seconds is not None or not request.cycles:
            ranks[at] = rank
    chosen = min(sorted(ranks), key=lambda at: ranks[at], default=0)
    shown = sorted({*found, chosen})
    rows = [_row(*finalists[at], found.get(at, Figures()), limit, at == chosen) for at in shown]
    places = [shown.index(at) for at in ranks]
    why = why_chosen(rows, shown.index(chosen), limit, places)
    return Confirmation(str(request.target), request.cycles, tuple(rows), why, 0.0), chosen


def _row(name: str, cost: Cost, figures: Figures, limit: float, chosen: bool) -> Finalist:
    peak = figures.peak_bytes
    return Finalist(
        name=name,
        seconds=cost.seconds,
        peak_bytes=cost.peak_bytes,
        judged_seconds=figures.seconds,
        compiled_peak_bytes=peak,
        fits=None if peak is None else peak <= limit,
        chosen=chosen,
        note=figures.note,
    )
