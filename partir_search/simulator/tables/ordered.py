"""Tables of a program's cost over tilings and loops, for one order of the mesh's axes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Sequence, Set

import numpy as np

from partir_search.exact.pairwise import ModelBuilder, PairwiseModel
from partir_search.exact.terms import Subset, Terms
from partir_search.ir.core import Region, walk_regions
from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.tables.consistency import inconsistent_pairs
from partir_search.simulator.tables.hidden_gathers import Dual, Figures, HiddenGathers
from partir_search.simulator.tables.hiding import Before, HidingCompute
from partir_search.simulator.tables.kernel_arrays import KernelArrays
from partir_search.simulator.tables.kernel_readings import KernelReadings, read_kernel
from partir_search.simulator.tables.kernels import KernelTables, kernel_tables
from partir_search.simulator.tables.move_readings import Splits, read_at, read_below
from partir_search.simulator.tables.moves import MoveTable, MoveTables
from partir_search.simulator.tables.prices import Columns, Pricer
from partir_search.simulator.tables.shares import Shares
from partir_search.simulator.tables.sums import add_to, sliced
from partir_search.simulator.tables.use_arrays import UseArrays
from partir_search.simulator.tables.uses import Use, find_uses
from partir_search.simulator.tables.variables import Variables
from partir_search.simulator.tables.walk import Walk, trips_of, walk

PROHIBITIVE = 10.0  # cost of contradicting labels, as a multiple of a step's


@dataclasses.dataclass(eq=False, slots=True)
class _Linearised:
    """Costs near a labelling.

    Attributes:
      found: walk at the labelling.
      kernels: model of the kernels.
      prohibitive: cost of contradicting labels; None until known.
    """

    found: Walk
    kernels: PairwiseModel
    prohibitive: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedTables:
    """Tables of the partitions that nest axes in one order.

    Attributes:
      order: axes from major to minor, as they tile one dim.
      kernels / uses: tables of kernels and of moves.
      inconsistent: pairs of variables, and [labels, labels] True where two labels contradict.
      sizes: [variables] numbers of labels.
    """

    variables: Variables
    pricer: Pricer
    order: tuple[int, ...]
    kernels: Sequence[KernelTables]
    uses: Sequence[Use]
    inconsistent: Sequence[tuple[tuple[int, int], Bools]]
    sizes: Sequence[int]
    _columns: dict[Hashable, Columns] = dataclasses.field(default_factory=dict)
    _latest: dict[bytes, _Linearised] = dataclasses.field(default_factory=dict)

    @property
    def model(self) -> CostModel:
        """Cost model of the prices."""
        return self.pricer.model

    @classmethod
    def of(cls, variables: Variables, pricer: Pricer, order: Sequence[int]) -> OrderedTables:
        """Tables of the program of a pricer's model."""
        model = pricer.model
        kernels = kernel_tables(model, Shares(variables, model.memory.padding))
        uses, wrong = find_uses(MoveTables(variables, pricer, order)), inconsistent_pairs(variables)
        return cls(variables, pricer, tuple(order), kernels, uses, list(wrong), variables.sizes)

    def in_order(self, order: Sequence[int]) -> OrderedTables:
        """Tables of another order of axes, which differ in the moves."""
        uses = find_uses(MoveTables(self.variables, self.pricer, order))
        return dataclasses.replace(self, order=tuple(order), uses=uses, _columns={}, _latest={})

    def restricted(self, kept: Sequence[Ints]) -> OrderedTables:
        """Tables of a subset of the labels.

        Args:
          kept: [variables] label indices. Labels of the result are positions in these arrays.
        """
        same: dict[bytes, Ints] = {}  # tables of equal numbers and equal subsets are one
        kept = [same.setdefault(k.tobytes(), k) for k in kept]
        known: dict[Hashable, Ints] = {}

        def table(whole: MoveTable) -> MoveTable:
            key = id(whole.items), *(id(kept[x]) for x in whole.scope)
            if key not in known:
                known[key] = sliced(whole.items, whole.scope, kept)
            return dataclasses.replace(whole, items=known[key])

        return dataclasses.replace(
            self,
            kernels=[kernel.restricted(kept) for kernel in self.kernels],
            uses=[dataclasses.replace(use, table=table(use.table)) for use in self.uses],
            _columns={},
            _latest={},
            inconsistent=[(pair, sliced(w, pair, kept)) for pair, w in self.inconsistent],
            sizes=list(map(len, kept)),
        )

    @functools.cached_property
    def _splits(self) -> Splits:
        return Splits(self.model.machine.traits)

    @functools.cached_property
    def _kernel_arrays(self) -> KernelArrays:
        return KernelArrays(self.kernels, KernelReadings(self.kernels, self.sizes), self.sizes)

    @functools.cached_property
    def own_collectives(self) -> float:
        """Seconds of collectives in regions of the user's own."""
        facts, costs = self.model.facts, self.model.costs(self.variables.mesh)
        rules = self.model.rules

        def seconds(region: Region, trips: float) -> Iterator[float]:
            for op in region.ops:
                for own in facts.manual.get(op.id, ()):
                    yield costs.of_own(own)[0] * trips * own.times * op.count
                if op.id not in facts.manual and op.regions:
                    counts = rules[op.id].data_flow.trip_counts
                    for inner, n in zip(op.regions, counts, strict=True):
                        yield from seconds(inner, trips * n)

        return sum(seconds(self.model.module.body, 1.0))

    def at(self, labels: Ints, kept: Sequence[Ints] | None = None) -> PairwiseModel:
        """Pairwise model of the costs, linearised at a labelling and exact at the labelling.

        Args:
          kept: [variables] label indices; labels of the result are positions in these arrays. All
            by default. Moves are priced between the labels kept alone.
        """
        near = self._linearised(labels)
        kept = near.kernels.all_labels() if kept is None else kept
        some, sizes = Subset.of(kept), [*map(len, kept)]
        parts = [part.at_labels(some, self.sizes) for part in near.kernels.terms]
        traits = self.model.machine.traits
        parts.append(read_at(self._use_arrays, near.found, labels, some, traits))
        constant = near.kernels.constant
        if near.prohibitive is None:  # the energy there is the same for all labels kept
            at = some.positions(labels)
            seconds = constant + sum(part.energy(at, sizes) for part in parts)
            near.prohibitive = PROHIBITIVE * seconds
        contradicts = self._contradictions.at_labels(some, self.sizes)
        parts.append(contradicts.times(near.prohibitive))
        return PairwiseModel.of_terms(sizes, parts, constant)

    @functools.cached_property
    def _use_arrays(self) -> UseArrays:
        return UseArrays.of(self.uses, self.pricer)

    @functools.cached_property
    def _contradictions(self) -> Terms:
        """Indicators of contradicting labels, 1 or 0, for each inconsistent pair of variables."""
        return Terms.of([(pair, wrong.astype(np.float64)) for pair, wrong in self.inconsistent])

    def walk(self, labels: Ints) -> Walk:
        """Walk over all moves at a labelling."""
        prices = self._use_arrays.at(labels)
        return walk(self.model, self.uses, prices, labels, self.seconds(labels))

    def _linearised(self, labels: Ints) -> _Linearised:
        """Walk and kernels at a labelling, whatever the labels kept; made once for the latest."""
        near = self._latest.get(labels.tobytes())
        if near is None:
            found = self.walk(labels)
            hidden = {
                k
                for k, region in enumerate(self._deferred)
                if region >= 0 and found.spent_idle[region]
            }
            kernels = self._read_kernels(labels, exact=True, left_out=hidden)
            if hidden:  # seconds of dots that all run beside collectives change nothing
                whole = self._read_kernels(labels, exact=True).energy(labels)
                constant = kernels.constant + whole - kernels.energy(labels)
                kernels = dataclasses.replace(kernels, constant=constant)
            self._latest.clear()
            near = self._latest[labels.tobytes()] = _Linearised(found, kernels)
        return near

    def columns(self) -> list[Columns]:
        """[uses] prices by labels of the tables' variables; equal tables share them."""
        missing: dict[Hashable, MoveTable] = {}
        keys: list[Hashable] = []
        for table in (use.table for use in self.uses):
            key: Hashable = (id(table.prices), id(table.items))
            keys.append(key)
            if key not in self._columns:
                missing[key] = table
        if missing:  # steps of all first: each kind of value is priced once
            distinct = {id(table.items): table.items for table in missing.values()}
            self.pricer.steps.places(np.concatenate([x.ravel() for x in distinct.values()]))
        by_prices: dict[int, list[Hashable]] = {}
        for key, table in missing.items():
            by_prices.setdefault(id(table.prices), []).append(key)
        for together in by_prices.values():
            tables = [missing[key] for key in together]
            read = tables[0].prices.of_each([table.items for table in tables])
            self._columns.update(zip(together, read, strict=True))
        return [self._columns[key] for key in keys]

    def below(
        self,
        labels: Ints,
        *,
        joint_from: float = np.inf,
        multipliers: Floats | None = None,
    ) -> PairwiseModel:
        """Lower bounds of costs at all labellings, tight at one where they can be.

        Args:
          labels: labelling that tells the larger sides of kernels, and the regions with more
            seconds of collectives than of deferred dots.
          joint_from: seconds at stake from which copies of a value get a variable of their own,
            after those of the tables; the least energy over their labels is the bound.
          multipliers: of the limits of `hidden_gathers`, at least 0; by default 0.
        """
        excess, taken, exposed = self._excess(labels), None, dict[int, Floats]()
        if multipliers is not None:
            gathers = self.hidden_gathers
            taken = multipliers @ gathers.taken
            shares = gathers.multipliers(multipliers).tolist()
            each = zip(gathers.uses, shares, gathers.hidden, strict=True)
            exposed = {use: share * table for use, share, table in each if share}
        left_out = self._hidden_kernels(excess)
        kernels = self._read_kernels(labels, exact=False, left_out=left_out, taken=taken)
        builder = ModelBuilder.of(kernels)
        groups = read_below(
            builder,
            self.uses,
            self.columns(),
            self._splits,
            self._before,
            excess,
            self.variables,
            self.model.machine.traits,
            exposed,
        )
        prohibitive = PROHIBITIVE * builder.model().energy(labels)
        for group in groups:
            if group.at_stake > joint_from:
                group.add_joint(builder, prohibitive)
            else:
                group.add_shares(builder)
        return self._consistent(builder, prohibitive)

    def _hidden_kernels(self, excess: Sequence[bool]) -> set[int]:
        """Kernels hidden beside the collectives of a region."""
        return {k for k, region in enumerate(self._deferred) if region >= 0 and excess[region]}

    @functools.cached_property
    def _hiding(self) -> tuple[HidingCompute, list[int]]:
        """Compute beside gathers, and the numbers of the kernels."""
        hides = self.model.time.hides_gathers
        beside = [k for k, kernel in enumerate(self.kernels) if hides[kernel.op]]
        kernels = [self.kernels[k] for k in beside]
        orders, trips = self.model.time.orders, trips_of(self.model)
        return HidingCompute(kernels, self.regions, orders, trips), beside

    @functools.cached_property
    def _before(self) -> list[Before]:
        """[uses] most seconds of compute beside a gather."""
        hiding, _ = self._hiding
        return [hiding.before(use) for use in self.uses]

    @functools.cached_property
    def hidden_gathers(self) -> HiddenGathers:
        """Gathers behind compute."""
        hidden = [
            None
            if use.optional or use.table.windows or use.table.settles
            else self._splits.of(use, prices).hidden(before, use.table.times)
            for use, prices, before in zip(self.uses, self.columns(), self._before, strict=True)
        ]
        hiding, beside = self._hiding
        return HiddenGathers.of(self.uses, hidden, hiding, beside, len(self.kernels))

    def dual(self, labels: Ints) -> Dual:
        """Dual of `hidden_gathers` over multipliers.

        Args:
          labels: of `below`.
        """
        counted = np.ones(len(self.kernels))
        counted[[*self._hidden_kernels(self._excess(labels))]] = 0.0
        gathers, columns = self.hidden_gathers, self.columns()
        above = [kernel.above() for kernel in self.kernels]

        def figures(each: Ints) -> Figures:
            at = each.tolist()
            return Figures(
                gathers.seconds(self.uses, columns, each),
                np.array([kernel.at(at) for kernel in self.kernels]),
                np.array([kernel.at(at) for kernel in above]),
            )

        return Dual(gathers, counted, figures)

    def _consistent(self, builder: ModelBuilder, prohibitive: float) -> PairwiseModel:
        """The model, with pairs of labels that contradict at a prohibitive cost."""
        for pair, wrong in self.inconsistent:
            builder.add(pair, np.where(wrong, prohibitive, 0.0))
        return builder.model()

    def _read_kernels(
        self,
        labels: Ints,
        *,
        exact: bool,
        left_out: Set[int] = frozenset(),
        taken: Floats | None = None,
    ) -> PairwiseModel:
        """Kernels as a pairwise model.

        Args:
          left_out: kernels without seconds.
          taken: [kernels] shares of the seconds, taken by gathers; by default none.
        """
        rest = np.ones(len(self.kernels))
        rest[[*left_out]] = 0.0
        if taken is not None:
            rest = rest - taken
        model = self._kernel_arrays.model(labels, rest == 1.0, exact=exact)
        model = dataclasses.replace(model, constant=model.constant + self.own_collectives)
        partly = np.flatnonzero((rest != 0.0) & (rest != 1.0))
        if not len(partly):
            return model
        builder, at = ModelBuilder.of(model), labels.tolist()
        for k, share in zip(partly.tolist(), rest[partly].tolist(), strict=True):
            if share > 0.0:
                kernel = self.kernels[k].scaled(share)
                read_kernel(kernel, at, self.sizes, exact=exact).add_to(builder)
            else:
                add_to(builder, self.kernels[k].above().times(share).tables)
        return builder.model()

    def seconds(self, labels: Ints) -> Floats:
        """[ops] seconds of one run of each op at a labelling."""
        found, arrays = np.zeros(len(self.model.module.ops)), self._kernel_arrays
        found[arrays.ops] = arrays.seconds(labels) / arrays.runs
        return found

    @functools.cached_property
    def regions(self) -> list[Region]:
        """All regions of the module, in the order of the uses' numbers."""
        return [*walk_regions(self.model.module.body)]

    @functools.cached_property
    def _deferred(self) -> list[int]:
        """[kernels] number of the region deferred as a whole around the kernel, or NONE."""
        runs, region_of = self.model.time.deferred_runs, dict[int, int]()
        trips = trips_of(self.model)
        for number, region in enumerate(self.regions):
            region_of.update((op.id, number) for op in region.ops)
        return [
            region_of[k.op]
            if runs[k.op] and runs[k.op] * trips[self.regions[region_of[k.op]]] == k.runs
            else NONE
            for k in self.kernels
        ]

    def _excess(self, labels: Ints) -> list[bool]:
        """[regions] collectives take longer than the deferred dots at a labelling."""
        if not self.model.machine.traits.defers_weight_gradients:
            return [True] * len(self.regions)
        balance = [0.0] * len(self.regions)
        for use, total in zip(self.uses, self.walk(labels).total.tolist(), strict=True):
            balance[use.region] += total
        for k, region in zip(self.kernels, self._deferred, strict=True):
            if region >= 0:
                balance[region] -= k.at(labels.tolist())
        # Deferred dots that are not kernels of their own hide collectives besides.
        runs = self.model.time.deferred_runs
        whole = {
            k.op for k, region in zip(self.kernels, self._deferred, strict=True) if region >= 0
        }
        parted = [
            any(runs[op.id] and op.id not in whole for op in region.ops) for region in self.regions
        ]
        return [b > 0.0 and not p for b, p in zip(balance, parted, strict=True)]
