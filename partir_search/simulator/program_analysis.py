"""Analyses of a whole program on a machine, shared by the models of the program and its folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

from partir_search.ir.analysis.critical_path import off_critical_path
from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.buffers import Buffers, assign_buffers, with_donations
from partir_search.simulator.memory.dtypes import Dtypes, assign_dtypes
from partir_search.simulator.memory.weight_casts import find_weight_casts
from partir_search.simulator.printing import table
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.fusion import Fusions, fuse


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ProgramAnalysis:
    """Stored values and kernels of a program without a fold.

    Attributes:
      off_critical_path: ids of values on which no dot depends; empty on targets without a trait
        that needs them.
      weight_casts: by id of a cast computed inside of dots, the id of the converted argument.
    """

    dtypes: Dtypes
    buffers: Buffers
    fusions: Fusions
    off_critical_path: Set[int]
    weight_casts: Mapping[int, int]

    def __str__(self) -> str:
        rows = [(self.dtypes.names[c], self.dtypes.names[a]) for c, a in self.weight_casts.items()]
        casts = table("Weight casts", ("value", "of argument"), rows)
        return "\n".join(map(str, (self.dtypes, self.buffers, self.fusions, casts)))


def analyse_program(module: Module, rules: Sequence[OpRule], machine: Machine) -> ProgramAnalysis:
    """Analyses a module on a machine.

    Args:
      rules: per op id.
    """
    traits = machine.traits
    dtypes = assign_dtypes(module, rules, traits)
    buffers = assign_buffers(module, rules, dtypes, traits)
    fusions = fuse(buffers, rules, dtypes, traits)
    off_path, casts = frozenset[int](), dict[int, int]()
    early = traits.async_all_gather != "never"
    if traits.defers_weight_gradients or early or traits.stores_values_sliced_twice:
        off_path = off_critical_path(module, rules)
    if traits.fuses_weight_casts:
        casts = find_weight_casts(module, rules, buffers.materialized)
    return ProgramAnalysis(dtypes, buffers, fusions, off_path, casts)


def analysis_with_donations(
    analysis: ProgramAnalysis, module: Module, rules: Sequence[OpRule], machine: Machine
) -> ProgramAnalysis:
    """Analyses of a module that differs from another in its donated arguments alone.

    Args:
      analysis: of the other module.
      module: the module.
      rules: per op id.
    """
    dtypes, traits = analysis.dtypes, machine.traits
    buffers = with_donations(analysis.buffers, module, rules, dtypes, traits)
    return dataclasses.replace(analysis, buffers=buffers)
