"""Gradient ops, told from ops of the backward pass that rematerialize forward values."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Module, Op, Region
from partir_search.ir.rule import OpRule


def gradients(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of the ops that compute gradients.

    A region of a backward op may also rematerialize values of the forward pass. Inside of such a
    region only ops with an input that depends on an entering gradient count.
    """
    marks = _Marks(rules)
    marks.visit(module.body, True)
    return frozenset(marks.found)


class _Marks:
    """Results of a walk over a program.

    Attributes:
      found: ids of the gradient ops.
      given: ids of the gradients and of values computed from gradients.
    """

    def __init__(self, rules: Sequence[OpRule]) -> None:
        self.rules = rules
        self.found: set[int] = set()
        self.given: set[int] = set()

    def visit(self, region: Region, outermost: bool) -> None:
        """Marks the ops of a region and of all regions inside."""
        given = self.given
        for op in region.ops:
            if op.backward if outermost else any(v.id in given for _, v in op.inputs()):
                self.found.add(op.id)
                given.update(r.id for r in op.results)
                if op.regions:
                    self._inside(op)
            elif outermost:  # a loop over microbatches holds both passes
                for inner in op.regions:
                    self.visit(inner, True)

    def _inside(self, op: Op) -> None:
        """Marks the ops in the regions of an op that reads gradients."""
        given, edges = self.given, self.rules[op.id].data_flow
        for operand, at, arg, _ in edges.inputs:
            if getattr(op.operands[operand], "id", -1) in given:
                given.add(op.regions[at].args[arg].id)
        before = -1
        while len(given) > before:  # a carry that depends on a gradient enters the next iteration
            before = len(given)
            for region in op.regions:
                self.visit(region, False)
            for at, result, to, arg in edges.carries:
                if getattr(op.regions[at].results[result], "id", -1) in given:
                    given.add(op.regions[to].args[arg].id)
