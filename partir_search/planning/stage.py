"""A program between trace and search: its rewrites and pass records."""

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
    """A traced program with the rewrites applied so far.

    Attributes:
      module: the rewritten program.
      rewrites: the applied rewrites.
      passes: records of all passes so far, in order.
      base: the program before recomputation; None for `module`.
    """

    module: Module
    rewrites: Rewrites
    passes: tuple[PassRecord, ...]
    base: Module | None = None

    def run(
        self,
        name: str,
        rewrite: Callable[[Module], Module],
        rewrites: Rewrites | None = None,
    ) -> Stage:
        """Runs a pass.

        Args:
          name: a key of PIPELINE.
          rewrite: the pass.
          rewrites: all rewrites after the pass; default: unchanged.
        """
        module, record = recorded(name, rewrite, self.module)
        after = self.rewrites if rewrites is None else rewrites
        return Stage(module, after, (*self.passes, record))


def recorded(
    name: str, rewrite: Callable[[Module], Module], module: Module
) -> tuple[Module, PassRecord]:
    """Runs a pass on `module`; returns the new module and the pass record."""
    begin = time.perf_counter()
    result = rewrite(module)
    seconds = time.perf_counter() - begin
    record = PassRecord(
        name, seconds, len(module.ops), len(result.ops), lambda: print_module(result)
    )
    return result, record


def print_module(module: Module) -> str:
    """Text of a program without loops."""
    return print_partition(State(Graph(module), MeshShape(("",), (1,))).partition(), full=True)
