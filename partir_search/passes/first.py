"""First passes of planning, on the traced program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from partir_search.ir.core import Module
from partir_search.passes.loop_broadcasts import with_broadcasts_inside
from partir_search.passes.loop_products import with_products_outside
from partir_search.passes.views import with_views


def first_passes(devices: int) -> Mapping[str, Callable[[Module], Module]]:
    """Passes by name, in order.

    Args:
      devices: number of devices of the mesh.
    """
    return {
        "loop_products": functools.partial(with_products_outside, devices=devices),
        "loop_broadcasts": with_broadcasts_inside,
        "views": with_views,
    }
