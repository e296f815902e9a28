"""Random states of a planning game: known strategies, with random moves after them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import jax
import numpy as np

from models.catalog import MODELS
from partir_search.exact.elimination import least_completion
from partir_search.exact.pairwise import PairwiseModel
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.simulator.arrays import Floats
from partir_search.simulator.tables.ordered import OrderedTables
from partir_search.simulator.tables.tables import CostTables
from partir_search.simulator.target.machine import Machine
from partir_search.strategies.catalogue import named_strategies


def game_of_model(name: str, batch: int, mesh: MeshShape, machine: Machine) -> PlanningGame:
    """The game on a train step of the catalog."""
    entry = MODELS[name]
    args = entry.abstract_args(batch)
    jitted = jax.jit(entry.step, donate_argnums=0)
    call = split_call(entry.step, args, {}, (), ())
    module = trace_call(jitted, call, args, {}, name).module
    return Planner(module, mesh, machine).game(mesh.names)[1]


def random_partitions(
    game: PlanningGame, count: int, seed: int = 0, most_moves: int = 6
) -> Iterator[Partition]:
    """Partitions of random states; the known strategies come first.

    Args:
      most_moves: random moves after a strategy. Every third state has no strategy before.
    """
    rng = random.Random(seed)
    known = [moves for _, moves in named_strategies(game.mesh, game.axes, game.targets)]
    for i in range(count):
        first = i < len(known)
        start = known[i % len(known)] if first or i % 3 else ()
        played = len(list(play(game, start)))
        for _ in range(0 if first else rng.randint(1, most_moves)):
            move = game.draw(rng)
            if move is not None and game.step(move):
                played += 1
        yield game.state.partition(game.cache.rows)
        rewind(game, played)


@dataclasses.dataclass(frozen=True, slots=True)
class Ratios:
    """Seconds by tables over those of the simulator, for one state.

    Attributes:
      at: linearised at the state itself.
      below: lower bounds: with the larger sides of the first state, of the state itself, and of the
        first state with variables for copies and the labels of the states alone; the last two
        again with random multipliers of the gathers that compute hides.
    """

    at: float
    below: tuple[float, ...]
    order: tuple[int, ...]


def ratios(game: PlanningGame, tables: CostTables, partitions: Iterator[Partition]) -> list[Ratios]:
    """Ratios of all states."""
    found: list[Ratios] = []
    each = list(partitions)
    labels = np.array([tables.labels_of(partition) for partition in each])
    kept = [np.unique(column) for column in labels.T]
    tightest: dict[tuple[int, ...], list[PairwiseModel]] = {}  # by order
    rng = np.random.default_rng(0)
    for partition, at in zip(each, labels, strict=True):
        program = localize(partition, game.cache, sparse=True)
        seconds = game.model.simulate(program).cost.seconds
        order = partition.order
        ordered = tables.ordered(order)
        if order not in tightest:
            first = np.array([k.searchsorted(x) for k, x in zip(kept, labels[0], strict=True)])
            tables_left = ordered.restricted(kept)
            tightest[order] = [
                tables_left.below(first, joint_from=0.0, multipliers=multipliers)
                for multipliers in (None, _multipliers(rng, tables_left))
            ]
        places = np.array([k.searchsorted(x) for k, x in zip(kept, at, strict=True)])
        below = (
            ordered.below(labels[0]).energy(at) / seconds,
            ordered.below(at).energy(at) / seconds,
            least_completion(tightest[order][0], places) / seconds,
            ordered.below(at, multipliers=_multipliers(rng, ordered)).energy(at) / seconds,
            least_completion(tightest[order][1], places) / seconds,
        )
        found.append(Ratios(tables.at(partition).energy(at) / seconds, below, order))
    return found


def _multipliers(rng: np.random.Generator, tables: OrderedTables) -> Floats:
    """Random multipliers of gathers, between 0 and 2, nine of ten 0."""
    count = len(tables.hidden_gathers.taken)
    found: Floats = rng.uniform(0.0, 2.0, count) * (rng.random(count) < 0.1)
    return found
