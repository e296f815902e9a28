"""Recognition of shifted reads: rolls, padded arrays and slices of them, updates of a slice."""

from partir_search.passes.views.module import with_views

__all__ = ["with_views"]
