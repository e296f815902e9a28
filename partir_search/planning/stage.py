"""A program between the traced call and the search: its rewrites, and a record of each pass."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.rewrites import Rewrites
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State


@dataclasses.dataclass(frozen=True)
class Stage:
    """A traced program with the rewrites made so far.

    Attributes:
      module: the rewritten program.
      passes: records of the passes that led here, in order.
    """

    module: Module
    rewrites: Rewrites
    passes: tuple[PassRecord, ...]

    def run(
        self,
        name: str,
        rewrite: Callable[[Module], Module],
        rewrites: Rewrites | None = None,
    ) -> Stage:
        """The stage after a pass.

        Args:
          name: one of PIPELINE.
          rewrites: all rewrites so far, this one among them; default: as before.
        """
        module, record = recorded(name, rewrite, self.module)
        after = self.rewrites if rewrites is None else rewrites
        return Stage(module, after, (*self.passes, record))


def recorded(
    name: str, rewrite: Callable[[Module], Module], module: Module
) -> tuple[Module, PassRecord]:
    """The module that a pass makes, and its record."""
    begin = time.perf_counter()
    result = rewrite(module)
    seconds = time.perf_counter() - begin
    record = PassRecord(
        name, seconds, len(module.ops), len(result.ops), lambda: print_module(result)
    )
    return result, record


def print_module(module: Module) -> str:
    """The text of a program without loops."""
    return print_partition(State(Graph(module), MeshShape(("",), (1,))).partition(), full=True)
