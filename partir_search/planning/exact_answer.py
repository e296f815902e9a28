"""The best assignments by exact steps from known strategies, and a bound of all."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.exact.arrays import Ints
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.mcts.goals import Scorer
from partir_search.plan.lower_bound import LaterBound, LowerBound
from partir_search.planning.exact_steps import LEAST_GAIN, Found
from partir_search.planning.fitted_steps import FittedSteps
from partir_search.planning.game import PlanningGame
from partir_search.simulator.cost import Cost
from partir_search.simulator.tables.bound import Bound

EPISODES_PER_START = 300  # of the search, for exact steps from one more strategy
EXACT_STARTS = 2  # of a search, from the best results of exact steps, at most
EXACT_FINALISTS = 5  # assignments of exact steps evaluated on the unfolded program, at most
STARTS = 3  # most strategies from which exact steps start
LABELS_OF_STARTS = 90_000  # of the tables, times the starts
TRIALS = 4  # further strategies from which exact steps take one turn along each axis, at most
ORDERS = 2  # of the axes, in which exact steps start without a strategy, at most
OFF_COURSE = 0.2  # of the best score, above which an order of the axes is the last
FAR = 0.03  # of a bound, above which an assignment leaves these to be tried
MINIMISERS = 2  # assignments of least energy under the bound that are improved, at most
FITTED = 2  # assignments over the limits that are fitted
OUT_OF_REACH = 0.1  # excess over the limits, as a logarithm, of the best assignment
DEAR = 1.1  # seconds within the limits over those without, where the search may find better
PROMISING = 0.002  # of a bound after removal of labels, for a proof of the first answer
LEADING = 5e-4  # gain by assignments of least energy, in log cost, for those with multipliers
NEAR = 0.005  # of a bound, above which multipliers of gathers are raised
PROVEN = 1e-5  # of a bound, above which an assignment is not the best
BEHIND = 0.03  # of another form's plan, above which one start is enough
NO_NEARER = 0.02  # of another form's plan, above which the starts are enough
NOTHING = "the start of the search"  # name of exact steps' start without a strategy
ALIKE = 4  # decimals of log figures in which assignments are alike

Named = tuple[Found, str]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ExactAnswer:
    """Results of exact steps.

    Attributes:
      moves: the best assignments as moves, best first, each with other figures; none exceeds the
        limits more than the first.
      settled: a search from the best needs few episodes: the best is within all limits at little
        cost, or too far beyond for a plan without recomputation to be within.
      proven: the best is within all limits, and no assignment takes fewer seconds.
      bound: no assignment takes fewer seconds, on the folded program; None if unknown.
      without: decisions of the game that the bound's assignments lack, as in `PlanBound.without`.
      later: the bound for reports, if tighter than `bound`; None if there is none tighter.
      steps / starts / found: the steps, the strategies, and the assignments found, with names.
    """

    moves: Sequence[Move] = ()
    settled: bool = False
    proven: bool = False
    bound: float | None = None
    without: tuple[str, ...] = ()
    later: LaterBound | None = None
    steps: FittedSteps | None = None
    starts: Sequence[Named] = ()
    found: Sequence[Named] = ()

    @property
    def minimises_seconds(self) -> bool:
        """True if the objective of the best assignment is the seconds alone."""
        best = self.found[0][0].labels if self.found else None
        return best is not None and self.steps is not None and self.steps.minimises_seconds(best)

    @property
    def lower_bound(self) -> LowerBound | LaterBound | None:
        """The bound for reports, found or found at first access."""
        if self.later is not None or self.bound is None:
            return self.later
        return LowerBound(self.bound, self.without)

    def nears_bound(self, above: float) -> bool:
        """True if the best assignment takes at most a share `above` more seconds than the bound."""
        if self.bound is None or not self.found:
            return False
        return self.found[0][0].score.objective <= self.bound * (1.0 + above)

    def refitted(self, goal: Scorer[Cost], count: int) -> Sequence[Move]:
        """Best assignments by a goal, fitted to its memory limit.

        Args:
          goal: of further steps too.
          count: most assignments.
        """
        if self.steps is None:
            return ()
        steps = self.steps
        steps.game.goal = goal
        ranked = _fitted(steps, [(steps.scored(each.labels), name) for each, name in self.found])
        if ranked[0][0].score.excess:  # steps rank what they meet by the limits
            starts = [(steps.scored(each.labels), name) for each, name in self.starts]
            starts = sorted(starts, key=lambda each: each[0].score.rank())[:STARTS]
            again = [(steps.improve(each.labels)[0], name) for each, name in starts]
            ranked = _fitted(steps, [*again, *ranked])
        return [steps.move(each.labels, name) for each, name in ranked[:count]]


def exact_moves(
    game: PlanningGame,
    starts: Sequence[tuple[str, Sequence[Move]]],
    count: int = EXACT_FINALISTS,
    episodes: int = STARTS * EPISODES_PER_START,
    *,
    bound_alone: bool = False,
) -> ExactAnswer:
    """The best assignments by exact steps, and a lower bound of all.

    Assignments of least energy under the bound are further starts: near the optimum if the bound
    is tight, and far from all known strategies. With the seconds of the bound, the first
    answer ends the starts.

    Args:
      game: in its first state.
      starts: names of strategies and their moves. Steps start from the best by score, and from the
        next by objective, as steps also keep limits.
      count: most assignments.
      episodes: of the search; with fewer than `EPISODES_PER_START` the answer is empty.
      bound_alone: one strategy is improved, for the sake of the bound.

    Returns:
      At most `count` moves; none for a program without pairwise costs (rings, kept copies). No
      bound either, then. Where assignments of least energy lead to a better answer, multipliers of
      gathers raise the bound in a few turns, whose assignments are starts too; the turns left are
      taken when the bound is asked for.
    """
    if episodes < EPISODES_PER_START:
        return ExactAnswer()
    try:
        steps = FittedSteps(game)
        scored: dict[Score, tuple[str, Ints]] = {}
        for name, moves in starts:
            played = len(list(play(game, moves)))
            scored.setdefault(game.score(), (name, steps.labels_here()))
            rewind(game, played)
    except ValueError:
        return ExactAnswer()
    first = min(scored, key=Score.rank)
    others = sorted(scored.keys() - {first}, key=lambda score: score.objective)
    found: dict[bytes, Named] = {}
    afforded = max(LABELS_OF_STARTS // sum(steps.tables.variables.sizes), 1)
    bound: Bound | None = None
    near = False  # to another form's plan, and to the limits
    started = 1 if bound_alone else min(STARTS, episodes // EPISODES_PER_START, afforded)
    for score in (first, *others)[:started]:
        name, labels = scored[score]
        best = steps.improve(labels, beat=_nearest(found))[0]
        found.setdefault(best.labels.tobytes(), (best, name))
        if score is first and game.far_behind(best.score, BEHIND):
            break
        if score is first:
            bound = _bounded(steps, found, None, PROMISING)
            if bound is not None and bound.finished and _proven(bound, found):
                break
    else:
        nearest = _nearest(found)
        near = not game.far_behind(nearest, NO_NEARER)
        bound = _bounded(steps, found, bound) if near else bound
        reached = min(each.score.excess for each, _ in found.values()) <= OUT_OF_REACH
        near = near and reached
        tries = near and not bound_alone
        leads = _gain(nearest, _nearest(found)) > LEADING
        if leads and near and bound is not None and not _proven(bound, found, NEAR):
            bound = _bounded(steps, found, bound, raises=True)
        if tries and (bound is None or not _proven(bound, found, FAR)):
            # With a price of memory no trial gained: segments decide more.
            trials = TRIALS if steps.minimises_seconds(scored[first][1]) else 0
            rest = _unlike([scored[score] for score in (first, *others)], started, trials)
            tried = _tried(steps, rest)
            if trials:
                tried += _from_nothing(steps, _nearest(found))
            for best, name in tried:
                found.setdefault(best.labels.tobytes(), (best, name))
            best, name = _combined(steps, [*found.values()])
            found.setdefault(best.labels.tobytes(), (best, name))
    seconds = bound.seconds if bound else None
    ranked = _fitted(steps, [*found.values()], seconds)
    best = ranked[0][0]
    answers = {_figures(each): (each, name) for each, name in reversed(ranked)}  # the first of like
    within = [a for a in reversed(answers.values()) if a[0].score.excess <= best.score.excess]
    paths: list[Move] = [steps.move(each.labels, name) for each, name in within[:count]]
    cheap = best.score.objective < DEAR * min(each.score.objective for each, _ in ranked)
    settled = best.score.excess > OUT_OF_REACH or (best.score.excess == 0.0 and cheap)
    known = [(Found(labels, score), name) for score, (name, labels) in scored.items()]
    proven = bound is not None and bound.finished and _proven(bound, found)
    later = _later(steps, bound, found) if near and bound is not None else None
    return ExactAnswer(paths, settled, proven, seconds, (), later, steps, known, ranked)


def _later(steps: FittedSteps, bound: Bound, found: Mapping[bytes, Named]) -> LaterBound | None:
    """The bound with the turns of multipliers left, taken at first access; None without any."""
    if not bound.finished or (_proven(bound, found, NEAR) and not bound.raised):
        return None
    in_full = steps.bound_in_full([each for each, _ in found.values()], bound)
    return LaterBound(lambda: LowerBound(in_full()))


def _gain(before: Score | None, after: Score | None) -> float:
    """Difference of two scores, in log cost; none without either."""
    return before.scalar() - after.scalar() if before and after else 0.0


def _nearest(found: Mapping[bytes, Named]) -> Score | None:
    """Best score of assignments; None without any."""
    return min((each.score for each, _ in found.values()), key=Score.rank, default=None)


def _unlike(starts: Sequence[tuple[str, Ints]], used: int, count: int) -> list[tuple[str, Ints]]:
    """At most `count` strategies, each with the most labels unlike all strategies before.

    Args:
      starts: names and labels of strategies.
      used: number of the first strategies with exact steps already.
    """
    labels, found = np.array([each for _, each in starts]), list[tuple[str, Ints]]()
    unlike = np.min([(labels != each).sum(axis=1) for each in labels[:used]], axis=0)
    while len(found) < count and unlike.any():
        farthest = int(np.argmax(unlike))
        found.append(starts[farthest])
        unlike = np.minimum(unlike, (labels != labels[farthest]).sum(axis=1))
    return found


def _tried(steps: FittedSteps, starts: Sequence[tuple[str, Ints]]) -> list[Named]:
    """Best assignments by one turn along each axis from every start, and by all from the best."""
    tried: list[Named] = [(steps.improve(labels, rounds=1)[0], name) for name, labels in starts]
    if tried:
        best, name = min(tried, key=lambda each: each[0].score.rank())
        tried.append((steps.improve(best.labels)[0], name))
    return tried


def _from_nothing(steps: FittedSteps, beat: Score | None) -> list[Named]:
    """Best assignments by exact steps from the game's first state, in different orders of the axes.

    Where an axis has its first turn, later axes tile nothing yet: the answers differ by the order,
    and from those near known strategies.

    Args:
      beat: the best score known; no order follows one that ends far behind.
    """
    labels, found = steps.labels_here(), list[Named]()
    for axis in range(min(steps.axes, ORDERS)):
        best = steps.improve(labels, beat=beat, first=axis)[0]
        found.append((best, NOTHING))
        if beat and best.score.scalar() > beat.scalar() + math.log1p(OFF_COURSE):
            break
    return found


def _combined(steps: FittedSteps, found: Sequence[Named]) -> Named:
    """The best assignment combined with all assignments in turn, and improved, with its name."""
    (best, name), *others = sorted(found, key=lambda each: each[0].score.rank())
    combined = steps.combined(best, [each for each, _ in others])
    return (best, name) if combined is best else (steps.improve(combined.labels)[0], name)


def _bounded(
    steps: FittedSteps,
    found: dict[bytes, Named],
    known: Bound | None,
    promising: float = math.inf,
    raises: bool = False,
) -> Bound | None:
    """Bound of all assignments; adds assignments of least energy, improved, to `found`.

    Args:
      known: an earlier bound, kept unless assignments of fewer seconds have been found since.
      promising: relative distance from the assignments found; a farther bound is left
        unfinished.
      raises: raise multipliers of gathers.
    """
    bound = steps.bound([best for best, _ in found.values()], known, promising, raises=raises)
    if bound is not None and bound.finished and bound.found and bound is not known:
        unlike = {_figures(each): each for each in map(steps.scored, bound.found)}
        for each in sorted(unlike.values(), key=lambda x: x.score.rank())[:MINIMISERS]:
            if _proven(bound, found):
                break
            proven = _proven(bound, {b"": (each, "bound")})
            best = each if proven else steps.improve(each.labels)[0]
            found.setdefault(best.labels.tobytes(), (best, "bound"))
    return bound


def _proven(bound: Bound, found: Mapping[bytes, Named], above: float = PROVEN) -> bool:
    """True if some assignment within the limits is no farther above the bound, relative."""
    least = bound.seconds * (1.0 + above)
    return any(not f.score.excess and f.score.objective <= least for f, _ in found.values())


def _fitted(steps: FittedSteps, found: Sequence[Named], bound: float | None = None) -> list[Named]:
    """Assignments as given and as fitted into the limits, best first.

    Args:
      bound: of the seconds of all assignments; one near the bound within the limits is enough.
    """
    every = {each.labels.tobytes(): (each, name) for each, name in found}
    for best, name in _over(steps, found)[:FITTED]:
        least = _least_within([each for each, _ in every.values()])
        if best.score.objective < least and least > (bound or 0.0) * (1.0 + NEAR):
            fitted = steps.fit(best)[0]
            every.setdefault(fitted.labels.tobytes(), (fitted, name))
    smallest = steps.smallest()
    if all(steps.exceeds_memory(each) for each, _ in every.values()):
        fitted = steps.fit(smallest)[0] if smallest.score.excess else smallest
        every.setdefault(fitted.labels.tobytes(), (fitted, "the smallest"))
    return sorted(every.values(), key=lambda each: each[0].score.rank())


def _over(steps: FittedSteps, found: Sequence[Named]) -> Sequence[Named]:
    """Distinct assignments over the limits that are better than the best within, nearest first."""
    least, over = _least_within([each for each, _ in found]), dict[tuple[float, float], Named]()
    for each, name in sorted(found, key=lambda item: item[0].score.scalar()):
        if steps.exceeds_memory(each) and each.score.objective < least:
            over.setdefault(_figures(each), (each, name))
    return [*over.values()]


def _least_within(found: Sequence[Found]) -> float:
    """Objective below which an assignment gains on the best within the limits."""
    within = (each.score.objective for each in found if not each.score.excess)
    return min(within, default=math.inf) * (1.0 - LEAST_GAIN)


def _figures(found: Found) -> tuple[float, float]:
    """Objective, as a logarithm, and excess of an assignment, rounded."""
    objective = math.log(max(found.score.objective, sys.float_info.min))
    return round(objective, ALIKE), round(found.score.excess, ALIKE)
