"""First passes of planning, on the traced program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from partir_search.ir.core import Module
from partir_search.passes.loop_broadcasts import with_broadcasts_inside
from partir_search.passes.loop_products import with_products_outside
from partir_search.passes.views import with_views

FIRST: Mapping[str, Callable[[Module], Module]] = MappingProxyType(
    {
        "loop_products": with_products_outside,
        "loop_broadcasts": with_broadcasts_inside,
        "views": with_views,
    }
)
"""Passes by name, in order."""
