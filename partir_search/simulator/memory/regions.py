"""Regions inside of a program: memory curves, stored values, and the number of moves of each value
that enters or leaves a folded region.
"""

from __future__ import annotations

import numpy as np

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import NONE, OpRule
from partir_search.lowering.local_ir import Move
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import Places
from partir_search.simulator.memory.buffers import Ints, RegionTraffic, Storage, inner_traffic
from partir_search.simulator.memory.liveness import Curve
from partir_search.simulator.target.machine import Machine


class Inside:
    """The regions of a module.

    Attributes:
      curves: by op id, the memory curve of each of its regions.
      stored: ids of values that are stored in them.
    """

    def __init__(self, module: Module, machine: Machine) -> None:
        """Nothing yet.

        Args:
          machine: whose chip may have memory for short-lived values.
        """
        self._module, self._machine = module, machine
        self.curves: dict[int, list[Curve]] = {}
        self.stored: list[Ints] = []
        self._ends: dict[tuple[int, int], int] = {}
        self._added: frozenset[int] = frozenset()

    def add(self, traffic: RegionTraffic) -> None:
        """Takes in what is inside of a region."""
        for at, parts in traffic.inner.items():
            self._add_op(traffic.region.ops[at], parts)

    def add_folded(
        self,
        whole: RegionTraffic,
        region: Region,
        folded: Folded,
        places: Places,
        rules: list[OpRule],
        storage: Storage,
    ) -> None:
        """Takes in what is inside of a quotient's region.

        Args:
          whole: traffic of the region that it is the quotient of.
          places: what is left of that.
        """
        users, class_of = self._module.users(), np.array(folded.class_of)
        for op, at in zip(region.ops, places.positions, strict=True):
            if at in places.opened:
                pairs = list(zip(whole.inner[at], places.opened[at], strict=True))
                self.curves[op.id] = [Curve(p, self._machine, folded, left) for p, left in pairs]
                self._count_ends(op)
                for (part, left), inner in zip(pairs, op.regions, strict=True):
                    values = class_of[part.value]
                    self.stored.append(values[values >= 0])
                    self.add_folded(part, inner, folded, left, rules, storage)
            elif op.regions:
                self._add_op(op, inner_traffic(op, rules, users, storage=storage))

    def find_sums(self, rules: list[OpRule]) -> None:
        """Finds what a quotient adds up over repeats, and does nothing else with: each layer's part
        of a shared parameter's gradient, say, added to a total that only what follows reads. The
        whole program reduces the total alone (`ir/analysis/pending.py`).
        """
        uses, users, found = self._module.use_counts(), self._module.users(), set[int]()
        for op in reversed(self._module.ops):
            if op.regions or not rules[op.id].linear:
                continue
            own = {r.id for r in op.results}
            held = [v.id for _, v in op.inputs()]
            totals = own & set(held) if op.count > 1 else set()
            alone = all(u is op or u.count == 1 for v in totals for u in users[v])
            if own & found or (totals and alone):
                found.update(v for v in held if v not in own and uses[v] == 1)
        self._added = frozenset(found)

    def runs(self, move: Move) -> int:
        """Number of times that a move is made where its region runs once."""
        op, value = move.op, move.source.value
        if move.step.monoid and value.id in self._added:
            return 1
        return self._ends.get((op.id if op else NONE, value.id), op.count if op else 1)

    def at_once(self, op: Op | None, value: Value) -> int:
        """Number of the values behind `value` that are moved together: all that enter or leave a
        folded region, else one layer's after another's.
        """
        return self._ends.get((op.id if op else NONE, value.id), 1)

    def _add_op(self, op: Op, parts: list[RegionTraffic]) -> None:
        self.curves[op.id] = [Curve(part, self._machine) for part in parts]
        self.stored += [part.value for part in parts]
        for part in parts:
            self.add(part)

    def _count_ends(self, op: Op) -> None:
        """Counts the values that each operand and result of a folded region stands for."""
        ends = [(op.id, x) for x in (*op.operands, *op.results)]
        ends += [(NONE, x) for r in op.regions for x in r.results]
        for at, x in ends:
            if isinstance(x, Value):
                self._ends[at, x.id] = self._ends.get((at, x.id), 0) + 1
