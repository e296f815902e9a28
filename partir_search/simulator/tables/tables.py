"""Tables of a program's cost over tilings and loops: pairwise models of the simulator.

Variables are the tiling of each class of values and the loops of each op (`variables.py`). `at` is
the simulator's cost linearised at a partition: exact there. `below` is a lower bound of the
simulator's cost for every partition that nests axes in one order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from partir_search.exact.pairwise import PairwiseModel
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.local_ir import LocalProgram
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.arrays import Ints
from partir_search.simulator.simulator import CostModel, Simulation
from partir_search.simulator.tables.ordered import OrderedTables
from partir_search.simulator.tables.peak import read_peak
from partir_search.simulator.tables.prices import Pricer
from partir_search.simulator.tables.shares import Shares
from partir_search.simulator.tables.variables import variables_of
from partir_search.simulator.time.collectives import same_links


class CostTables:
    """Pairwise models of the seconds of a step.

    Attributes:
      variables: with the labels of each.
    """

    def __init__(
        self,
        graph: Graph,
        model: CostModel,
        mesh: MeshShape,
        start: State | None = None,
        *,
        max_labels: float = math.inf,
        max_choices: float = math.inf,
    ) -> None:
        """Tables of a cost model's module.

        Args:
          graph: of the module; contracted or not.
          start: state whose closed dims no label tiles.
          max_labels: limit of the labels of all variables.
          max_choices: limit of the labels of one variable.

        Raises:
          ValueError: the mesh has diagonals (rings are not pairwise), or the program more labels
            than allowed.
        """
        self.variables = variables_of(
            graph, mesh, start, max_labels=max_labels, max_choices=max_choices
        )
        self.model = model
        self._ordered: dict[tuple[int, ...], OrderedTables] = {}
        self._pricer = Pricer(model, mesh)

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """All orders in which axes may nest."""
        return list(itertools.permutations(range(len(self.variables.mesh.sizes))))

    def orders_from(self, first: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Orders of axes, `first` before the others, without those whose costs are the same as of
        a previous order: all that exchange axes of equal links and labels.
        """
        alike = [self._first_alike(a) for a in range(len(first))]
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for order in (first, *self.orders):
            found.setdefault(tuple(alike[a] for a in order), order)
        return list(found.values())

    def _first_alike(self, axis: int) -> int:
        """First axis that can be exchanged with an axis without a change of any cost."""
        variables, machine = self.variables, self.model.machine
        mesh = variables.mesh
        own = bool(self.model.facts.manual) or any(r.manual for r in variables.graph.rules)
        for other in range(axis):
            names = [mesh.names[a] for a in (axis, other)]
            alike = (
                mesh.sizes[axis] == mesh.sizes[other]
                and names == [mesh.whole[a] for a in (axis, other)]
                and sum(whole in names for whole in mesh.whole) == 2
                and same_links(axis, other, mesh, machine)
            )
            sets = {id(labels): labels for labels in variables.sets}.values()
            if alike and not own and all(s.symmetric(axis, other) for s in sets):
                return other
        return axis

    def ordered(self, order: tuple[int, ...]) -> OrderedTables:
        """Tables of the partitions that nest axes in an order."""
        found = self._ordered.get(order)
        if found is None:
            known = next(iter(self._ordered.values()), None)
            if known is None:
                found = OrderedTables.of(self.variables, self._pricer, order)
            else:
                found = known.in_order(order)
            self._ordered[order] = found
        return found

    def labels_of(self, partition: Partition) -> Ints:
        """Labels of a partition."""
        return self.variables.labels_of(partition)

    def at(
        self,
        partition: Partition,
        kept: Sequence[Ints] | None = None,
        labels: Ints | None = None,
    ) -> PairwiseModel:
        """Pairwise model of the costs, linearised at a partition and exact at the partition.

        Args:
          kept: [variables] labels of the model, with that of the partition among them; by default
            all.
          labels: labels of the partition, if known.
        """
        if labels is None:
            labels = self.labels_of(partition)
        return self.ordered(partition.order).at(labels, kept)

    def peak_at(
        self,
        program: LocalProgram,
        simulated: Simulation | None = None,
        row: int | None = None,
        position: int | None = None,
    ) -> PairwiseModel:
        """Bytes at the peak of a program's memory, linear in local bytes; exact at the program.

        Args:
          simulated: simulation of the program; computed by default.
          row: row of the memory curve; the highest by default.
          position: position of the row whose temporaries count; those with the most by default.
        """
        simulated = simulated or self.model.simulate(program)
        labels = self.labels_of(program.partition)
        shares = Shares(self.variables, self.model.memory.padding)
        return read_peak(self.model, shares, simulated, labels, row, position)

    def below(self, partition: Partition) -> PairwiseModel:
        """Lower bounds of the costs of all partitions with the order of one.

        Args:
          partition: tells the larger side of each maximum: there the bounds are tight where they
            can be.
        """
        return self.ordered(partition.order).below(self.labels_of(partition))
