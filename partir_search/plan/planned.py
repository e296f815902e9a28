"""Result of planning: a module with its actions applied, and reports of the searches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Iterator, Mapping, Sequence

from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.local_printer import print_local
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, Score
from partir_search.mcts.tree import Tree
from partir_search.plan.pass_record import PassRecord
from partir_search.propagation.actions import Action, Enter, tilings
from partir_search.propagation.apply import apply_all, apply_compatible
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel


@dataclasses.dataclass(frozen=True, slots=True)
class SearchReport:
    """Report on the search of an automatic tactic.

    Attributes:
      experts: (name, cost) of each known strategy, on the folded program.
      cost: of the answer, on the folded program too, so that they compare.
      proven: the space was small and enumerated: no plan of the space is better.
      history: (episode, score) at each improvement.
      tree: the search tree; moves are decisions on the folded program.
      moves: the tree's moves in words.
    """

    axes: tuple[str, ...]
    experts: tuple[tuple[str, Cost], ...]
    cost: Cost
    proven: bool
    episodes: int
    states: int
    history: tuple[tuple[int, Score], ...]
    tree: Tree
    moves: Mapping[Move, str]


@dataclasses.dataclass(eq=False)
class Planned:
    """A module with its actions applied.

    Attributes:
      sketch: the device-local program without the ops at which nothing moves.
      searched: records of the passes from the fold to the actions on the whole program.
    """

    graph: Graph
    actions: tuple[Action, ...]
    sketch: LocalProgram
    cache: LocalCache
    cost: Cost
    reports: tuple[SearchReport, ...]
    seconds: dict[str, float]
    model: CostModel
    searched: tuple[PassRecord, ...] = ()

    @functools.cached_property
    def state(self) -> State:
        """The actions' state with the cause of every tiling. Built when it is first asked for."""
        state = State(self.graph, self.sketch.partition.mesh, record=True)
        apply_all(state, self.actions)
        return state

    @functools.cached_property
    def _local(self) -> tuple[LocalProgram, PassRecord]:
        begin = time.perf_counter()
        program = localize(self.sketch.partition, self.cache)
        seconds, ops = time.perf_counter() - begin, len(self.graph.module.ops)
        text = functools.partial(print_local, program)
        return program, PassRecord("local", seconds, ops, program.size, text)

    @property
    def program(self) -> LocalProgram:
        """The whole device-local program, to be emitted. Built when it is first asked for."""
        return self._local[0]

    @property
    def passes(self) -> tuple[PassRecord, ...]:
        """Records of the passes from the fold to the device-local program."""
        return (*self.searched, self._local[1])


def with_search(planned: Planned, found: Planned, reports: Sequence[SearchReport]) -> Planned:
    """A plan with the record of a search for another form of its program.

    Args:
      found: the result of that search.
      reports: its reports, where they hold for `planned`.
    """
    passes = tuple(p for p in found.searched if p.name in ("fold", "search"))
    return dataclasses.replace(
        planned,
        reports=tuple(reports),
        seconds=found.seconds,
        searched=(*passes, *planned.searched),
    )


def varied(planned: Planned, first: Sequence[Action]) -> tuple[Planned, tuple[Action, ...]]:
    """The same with some actions played before all others, and what contradicts them.

    Raises:
      IllegalAction: one of `first` cannot be played.
    """
    graph, cache = planned.graph, planned.cache
    state = State(graph, planned.sketch.partition.mesh)
    for action in first:
        if not action.is_applied(state):
            action.apply(state)
    names = {name for action in tilings(first) for name in action.values}
    args = graph.module.body.args
    kept = [
        a for a in planned.actions if not (isinstance(a, Enter) and args[a.argument].name in names)
    ]
    played, dropped = apply_compatible(state, kept)
    program = localize(state.partition(cache.rows), cache, sparse=True)
    changed = dataclasses.replace(
        planned,
        actions=(*first, *played),
        sketch=program,
        cost=planned.model.evaluate(program),
        reports=(),
        seconds={},
        searched=(),
    )
    return changed, tuple(action for action, _ in dropped)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Stops Python's cycle collector: planning makes millions of small objects and hardly a cycle,
    and looking for some took a sixth of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
