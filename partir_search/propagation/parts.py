"""Where an axis of the mesh is larger than a dim that it should tile: which parts it falls into.

An axis of 16 over 8 key-value heads in groups of 4 tiles 8 of them and 2 of the groups; an axis of
64 over a batch of 4 leaves 16 for other dims. Parts are found from the program: the common divisors
of the axis with the batch, and with dims that reshapes split or merge.
"""

from __future__ import annotations

import collections
import itertools
import math

from partir_search.ir.mesh import MeshShape
from partir_search.propagation.graph import Graph

MOST_PARTS = 3  # of one axis: every part is an axis to all that follows
SMALL = (
    0.02  # dims of values that hold less than this share of the largest one's bytes do not count
)


def split_axes(graph: Graph, mesh: MeshShape) -> MeshShape:
    """`mesh` with the axes split that some important dim can take only a part of."""
    extents = _extents(graph)
    parts = {}
    for name, size in zip(mesh.names, mesh.sizes, strict=True):
        cuts: list[int] = []
        for extent in extents:
            cut = math.gcd(extent, size)
            nested = all(cut % c == 0 or c % cut == 0 for c in cuts)
            if 1 < cut < size and cut not in cuts and nested and len(cuts) < MOST_PARTS - 1:
                cuts.append(cut)
        if cuts:
            bounds = [1, *sorted(cuts), size]
            parts[name] = [b // a for a, b in itertools.pairwise(bounds)]
    return mesh.split(parts) if parts else mesh


def _extents(graph: Graph) -> list[int]:
    """Sizes of dims that an axis may be too large for, the most important first.

    Dims of untied arguments (the batch) come first, then the major factors of reshapes that put
    several on one dim, by bytes.
    """
    module = graph.module
    tied = {i for i, _ in module.ties}
    data = [v.type.shape for i, v in enumerate(module.body.args) if tied and i not in tied]
    found = dict.fromkeys(shape[0] for shape in data if len(shape) >= 2)
    weight: collections.Counter[int] = collections.Counter()
    for node in graph.nodes:
        if node.above:
            nbytes = max(r.type.nbytes for r in module.ops[node.op].results)
            for f, above in enumerate(node.above):
                beneath = any(f in other for other in node.above)
                if beneath and not above and node.sizes[f] > 1:
                    weight[node.sizes[f]] = max(weight[node.sizes[f]], nbytes)
    largest = max(weight.values(), default=0)
    important = [n for n, nbytes in weight.most_common() if nbytes >= SMALL * largest]
    return list(found | dict.fromkeys(important))
