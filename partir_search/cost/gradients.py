"""Which ops work out gradients, and which make values of the forward pass once more."""

from __future__ import annotations

from partir_search.ir.core import Module, Op, Region
from partir_search.propagation.rules.control_flow import flows_of


def gradients(module: Module) -> frozenset[int]:
    """Ids of the ops that work out gradients.

    Regions that run in the backward pass (rematerialisation, a scan's) begin with what they make
    once more; what rests on a gradient that enters them is not of it.
    """
    found: set[int] = set()
    given: set[int] = set()  # values that are gradients, or made of some

    def of(op: Op) -> bool:
        return not given.isdisjoint(v.id for _, v in op.inputs())

    def inside(op: Op) -> None:
        """Ops of the regions of an op that gradients enter."""
        flows = flows_of(op)
        for operand, at, arg, _ in flows.enters:
            if getattr(op.operands[operand], "id", -1) in given:
                given.add(op.regions[at].args[arg].id)
        before = -1
        while len(given) > before:  # what an iteration leaves enters the next one
            before = len(given)
            for region in op.regions:
                visit(region, False)
            for at, result, to, arg in flows.carries:
                if getattr(op.regions[at].results[result], "id", -1) in given:
                    given.add(op.regions[to].args[arg].id)

    def visit(region: Region, outermost: bool) -> None:
        for op in region.ops:
            if op.backward if outermost else of(op):
                found.add(op.id)
                given.update(r.id for r in op.results)
                if op.regions:
                    inside(op)

    visit(module.body, True)
    return frozenset(found)
