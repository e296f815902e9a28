"""Facts of a module for both memory and time, valid for every partition."""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.analysis.repeats import copies, repeated_dims
from partir_search.ir.core import Module, Value
from partir_search.ir.kind import Kind
from partir_search.ir.manual import OwnCollective
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.printing import table


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramFacts:
    """Definitions and uses of a module, or of the quotient of a fold.

    Attributes:
      contracts / elementwise: [ops] True for a contraction, for an elementwise op.
      writes_whole: [ops] True for an op whose result is written before a slice of it is taken.
      manual: by op id, collectives in the user's own `shard_map` region.
      for_dots: [values] True for an f32 value read by dots alone.
      forked: [values] True for a value off the critical path that is computed point by point and
        has several readers, or from such a value.
      off_critical_path: ids of values on which no dot depends (`ir/analysis/critical_path.py`).
    """

    module: Module
    rules: Sequence[OpRule] = dataclasses.field(repr=False)
    contracts: Sequence[bool]
    elementwise: Sequence[bool]
    writes_whole: Sequence[bool]
    manual: Mapping[int, Sequence[OwnCollective]]
    for_dots: Bools
    forked: Sequence[bool]
    off_critical_path: Set[int]

    def __str__(self) -> str:
        rows = [
            ("dots", sum(self.contracts)),
            ("elementwise ops", sum(self.elementwise)),
            ("ops with collectives of their own", len(self.manual)),
            ("f32 values that dots alone read", int(self.for_dots.sum())),
            ("values off the critical path", len(self.off_critical_path)),
        ]
        return table("ProgramFacts", ("", "number"), rows)

    @functools.cached_property
    def last_use(self) -> array[int]:
        """[values] position of the last op in the body to read each value, or NONE."""
        found = array("i", [NONE]) * len(self.module.values)
        for at, op in enumerate(self.module.body.ops):
            for _, v in op.inputs():
                found[v.id] = at
        return found

    @functools.cached_property
    def donated_results(self) -> frozenset[int]:
        """Ids of results written into a donated argument's buffer."""
        results = [
            self.module.body.results[r] for a, r in self.module.ties if a in self.module.donated
        ]
        return frozenset(x.id for x in results if isinstance(x, Value))

    @functools.cached_property
    def source_bytes(self) -> Mapping[int, float]:
        """Bytes of the whole value before a broadcast, by id of the repeated value."""
        values = self.module.values
        repeated = repeated_dims(self.module, self.rules)
        return {
            v: values[v].type.nbytes / copies(dims, values[v].type.shape)
            for v, dims in repeated.items()
            if values[v].type.nbytes
        }

    @functools.cached_property
    def def_use(self) -> DefUse:
        """Ops that make and use each value."""
        return def_use(self.module)


def program_facts(
    module: Module,
    rules: Sequence[OpRule],
    for_dots: Bools,
    off_critical_path: Set[int],
    class_of: Ints,
) -> ProgramFacts:
    """Collects the facts of a module or quotient.

    Args:
      rules: per op id.
      for_dots: [values] see `ProgramFacts`.
      off_critical_path: ids of values of the original. A quotient's value is off the critical path
        if all of its instances are.
      class_of: id of the module's value for each of the original's.
    """
    critical = np.ones(len(class_of), dtype=np.bool_)
    critical[list(off_critical_path)] = False
    off_path = np.setdiff1d(class_of[~critical], class_of[critical])
    off_path_ids = frozenset(off_path.tolist())
    regions = ((op.id, rules[op.id].manual) for op in module.ops)
    return ProgramFacts(
        module,
        rules,
        [rule.contracts for rule in rules],
        [rule.elementwise for rule in rules],
        [rule.kind is Kind.SCATTER and not rule.one_hot for rule in rules],
        {i: manual.collectives for i, manual in regions if manual},
        for_dots,
        _forked(module, rules, off_path_ids),
        off_path_ids,
    )


def _forked(module: Module, rules: Sequence[OpRule], off_path: Set[int]) -> list[bool]:
    """[values] see `ProgramFacts.forked`."""
    found = [False] * len(module.values)
    users = def_use(module).users
    for op in module.body.ops:
        if not rules[op.id].elementwise:
            continue
        for r in op.results:
            if r.id in off_path and r.type.shape:
                several = len(users[r.id]) > 1
                found[r.id] = several or any(found[v.id] for _, v in op.inputs())
    return found
