"""Plans of another shape (a last, smaller batch; a curriculum) from a plan that there is."""

from partir_search.plan.basis import Basis
from partir_search.shapes.maker import ShapesPipeline

__all__ = ["Basis", "ShapesPipeline"]
