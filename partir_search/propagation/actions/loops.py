"""Action on ops: fix a loop, or the absence of one, against the choice of propagation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from partir_search.ir.rule import NONE, REPLICATED
from partir_search.propagation.actions.action import FoldedNames
from partir_search.propagation.actions.tilings import TilingAlike, alike_text
from partir_search.propagation.contradictions import IllegalAction, value_named
from partir_search.propagation.state import State


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class FixLoop(TilingAlike):
    """Loop the op of the result `value` over factor `factor` on mesh axis `axis`.

    Operands are redistributed to the loop, and results from the loop to their tilings. Propagation
    leaves the op alone.

    Attributes:
      factor: number of the factor in the op's rule; -1: no loop, though values of the op are tiled.
      also: names of values defined by further ops with the same loop.
    """

    kind: ClassVar[str] = "loop"
    value: str
    factor: int
    axis: str
    also: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return f"loop {self.factor}"

    def apply(self, state: State, path: str | None = None) -> None:
        nodes = [_node(state, name) for name in self.values]
        for name, n in zip(self.values, nodes, strict=True):
            if self.factor >= len(state.graph.nodes[n].structure.sizes):
                raise IllegalAction(f"the op of {name!r} has no factor {self.factor}")
        state.fix_loops(nodes, self.factor, state.mesh.axes(self.axis))

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        axes = state.mesh.axes(self.axis)
        for n in folded.nodes(self.values):
            if all(state.loops[a][n] == NONE for a in axes):
                state.fix_loops([n], self.factor, axes)

    def is_applied(self, state: State) -> bool:
        axes, nodes = state.mesh.axes(self.axis), [_node(state, name) for name in self.values]
        fixed = REPLICATED if self.factor < 0 else self.factor
        return all(state.loops[a][n] == fixed for a in axes for n in nodes)

    def __str__(self) -> str:
        loop = "no loop" if self.factor < 0 else f"factor={self.factor}"
        return f"FixLoop(value={self.value!r}{alike_text(self.also)}, {loop}, axis={self.axis!r})"


def _node(state: State, name: str) -> int:
    """Node of the op with a result of some name.

    Raises:
      IllegalAction: the value is no result of an op with a loop nest.
    """
    graph = state.graph
    value = value_named(graph.module, name)
    op = graph.analysis.def_use.makers[value.id]
    node = NONE if op is None else graph.node_of[op.id]
    if node < 0:
        raise IllegalAction(f"no op with loops of its own defines {name!r}")
    return node
