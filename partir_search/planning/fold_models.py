"""Fold of a program for a search, with the graph and the cost model of the quotient."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping

from partir_search.ir.core import Module
from partir_search.ir.data_flow import tied_values
from partir_search.passes.fold.fold import Folded, fold
from partir_search.planning.lifting import Lifter
from partir_search.propagation.graph import Graph
from partir_search.rules.registry import RuleTable, rule_key
from partir_search.simulator.program_analysis import ProgramAnalysis
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, eq=False)
class FoldModels:
    """A folded program, the graph and the cost model of the quotient, and the program's graph."""

    folded: Folded
    graph: Graph
    model: CostModel
    original: Graph

    @functools.cached_property
    def lifter(self) -> Lifter:
        """Lifting of answers to the program."""
        return Lifter(self.folded, self.graph, self.original)


def fold_models(
    module: Module,
    marks: Mapping[int, Hashable],
    table: RuleTable,
    original: Graph,
    machine: Machine,
    analysis: ProgramAnalysis,
) -> FoldModels:
    """Folds a module and builds the models of the quotient.

    Args:
      marks: by value id; values with different marks are not merged.
      table: rules.
      original: graph of the module.
      analysis: of the module.
    """
    folded = fold(module, rule_key, marks, lambda op: tied_values(op, table(op).data_flow))
    graph = Graph(folded.module, table, contract=True, alike=folded.alike)
    model = CostModel(
        folded.module,
        graph.rules,
        machine,
        folded=folded,
        original_rules=original.rules,
        analysis=analysis,
    )
    return FoldModels(folded, graph, model, original)
