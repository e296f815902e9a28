"""Ops that compute gradients, and ops that rematerialize values of the forward pass."""

from __future__ import annotations

from partir_search.ir.core import Module, Op, Region
from partir_search.rules.control_flow import flows_of


def gradients(module: Module) -> frozenset[int]:
    """Ids of the ops that work out gradients.

    Regions that run in the backward pass (rematerialisation, a scan's) begin with what they make
    once more; what rests on a gradient that enters them is not of it.
    """
    marks = _Marks()
    marks.visit(module.body, True)
    return frozenset(marks.found)


class _Marks:
    """Findings of a walk over a program.

    Attributes:
      found: ids of the ops that compute gradients.
      given: ids of the values that are gradients, or made of some.
    """

    def __init__(self) -> None:
        self.found: set[int] = set()
        self.given: set[int] = set()

    def visit(self, region: Region, outermost: bool) -> None:
        given = self.given
        for op in region.ops:
            if op.backward if outermost else any(v.id in given for _, v in op.inputs()):
                self.found.add(op.id)
                given.update(r.id for r in op.results)
                if op.regions:
                    self._inside(op)

    def _inside(self, op: Op) -> None:
        """Ops of the regions of an op that gradients enter."""
        given, flows = self.given, flows_of(op)
        for operand, at, arg, _ in flows.enters:
            if getattr(op.operands[operand], "id", -1) in given:
                given.add(op.regions[at].args[arg].id)
        before = -1
        while len(given) > before:  # what an iteration leaves enters the next one
            before = len(given)
            for region in op.regions:
                self.visit(region, False)
            for at, result, to, arg in flows.carries:
                if getattr(op.regions[at].results[result], "id", -1) in given:
                    given.add(op.regions[to].args[arg].id)
