"""Planners of the forms of a program, from options alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from partir_search.constraints.shardings import fixed_mesh
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.planning.options import Options
from partir_search.planning.planner import Planner


@dataclasses.dataclass(frozen=True)
class PlannerMaker:
    """Function from a form of a program to its planner; holds no arrays of a call.

    Attributes:
      options: options of `auto_partition`.
      own: the function's own shardings of arguments and results, of `jax.jit`.
    """

    options: Options
    own: tuple[Sequence[Any], Sequence[Any]]

    def __call__(self, module: Module) -> Planner:
        """Planner of a form."""
        o = self.options
        stages = [form.axis for loop in o.loops for form in loop.pipeline]
        return Planner(
            module,
            self.mesh(module),
            o.machine,
            goals=o.goals,
            streams=o.rings,
            stage_axes=stages,
        )

    def mesh(self, module: Module) -> MeshShape:
        """The mesh, with axes split as required by fixed shardings on further meshes."""
        o = self.options
        return fixed_mesh(module, o.shape, o.mesh, (o.in_shardings, o.out_shardings, self.own))
