"""Finds dims that are read shifted: rolls, padded arrays, their slices, and updates of a part."""

from partir_search.passes.views.module import with_views

__all__ = ["with_views"]
