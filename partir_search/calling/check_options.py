"""Options of a partitioned function that runs a plan on CPU devices, for `check`."""

from __future__ import annotations

import dataclasses

from partir_search.plan.check import cpu_mesh
from partir_search.plan.spec import PlanSpec
from partir_search.planning.options import Options


def check_options(options: Options, saved: PlanSpec) -> Options:
    """Options that replay `saved` on CPU devices, with the state in its usual order.

    Raises:
      ValueError: jax has fewer CPU devices than the plan's mesh.
    """
    user = saved.mesh.user
    straight = user.split(saved.mesh.sub_axes()).with_diagonals(saved.mesh.diagonal_names)
    return dataclasses.replace(
        options,
        mesh=cpu_mesh(user.names, user.sizes),
        schedule=dataclasses.replace(saved, mesh=straight, on_change="apply"),
        skewed_state=False,
        on_overflow="warn",
        shardings_like=None,
        in_shardings=None,  # `saved` has them
        out_shardings=None,
        cache=None,
        dump_dir=None,
    )
