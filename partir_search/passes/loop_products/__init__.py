"""Products of a scan's body taken once for all iterations, outside of the scan."""

from partir_search.passes.loop_products.module import with_products_outside

__all__ = ["with_products_outside"]
