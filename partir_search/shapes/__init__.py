"""Plans for new argument shapes (a smaller last batch, a curriculum), from an earlier plan."""

from partir_search.plan.basis import Basis
from partir_search.shapes.maker import ShapesPipeline

__all__ = ["Basis", "ShapesPipeline"]
