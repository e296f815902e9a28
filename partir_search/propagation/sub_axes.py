"""Parts into which a mesh axis falls where it is larger than a dim that it should tile.

An axis of 16 over 8 key-value heads in groups of 4 tiles 8 of them and 2 of the groups; an axis of
64 over a batch of 4 leaves 16 for other dims; a batch of 32 on 8x8 takes 8 and 4 of the other 8.
Parts are found from the program: from its batch and from dims that reshapes split or merge.
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
    """`mesh` with the axes split that some important dim can take only a part of.

    Axes that a `shard_map` of the user's own names, or that have a diagonal, stay whole; those that
    are split already stay as they are.

    Raises:
      ValueError: such a region is over axes that the mesh does not have in this size.
    """
    named = _named_axes(graph, mesh) | {mesh.names[a] for pair in mesh.diagonals for a in pair}
    given = mesh.parts()
    whole, mesh = mesh.unsplit, mesh.user
    cuts: dict[str, list[int]] = {name: [] for name in mesh.names}
    for batch in _batches(graph):
        for name, cut in _for_batch(batch, mesh):
            _add(cuts[name], cut, mesh.as_dict()[name])
    for extent in _major_factors(graph):
        for name, size in mesh.as_dict().items():
            _add(cuts[name], math.gcd(extent, size), size)
    parts = {}
    for name, size in mesh.as_dict().items():
        if cuts[name] and name not in named:
            bounds = [1, *sorted(cuts[name]), size]
            parts[name] = [b // a for a, b in itertools.pairwise(bounds)]
    return whole.split({**parts, **given})


def _named_axes(graph: Graph, mesh: MeshShape) -> set[str]:
    found: set[str] = set()
    for op in graph.module.ops:
        if manual := graph.rules[op.id].manual:
            for name, size in manual.axes:
                if mesh.as_dict().get(name) != size:
                    raise ValueError(
                        f"the shard_map at {op.source} is over an axis {name!r} of size {size};"
                        f" the mesh has {mesh.as_dict()}"
                    )
                found.add(name)
    return found


def _add(cuts: list[int], cut: int, size: int) -> None:
    """One more place to cut an axis of `size`, if it nests with those that there are."""
    nested = all(cut % c == 0 or c % cut == 0 for c in cuts)
    if 1 < cut < size and cut not in cuts and nested and len(cuts) < MOST_PARTS - 1:
        cuts.append(cut)


def _batches(graph: Graph) -> list[int]:
    """Leading dims of arguments that are no train state."""
    module = graph.module
    tied = {i for i, _ in module.ties}
    data = [v.type.shape for i, v in enumerate(module.body.args) if tied and i not in tied]
    return list(dict.fromkeys(shape[0] for shape in data if len(shape) >= 2))


def _for_batch(batch: int, mesh: MeshShape) -> list[tuple[str, int]]:
    """Finds a cut of one axis so that whole axes and its part tile the batch as far as it goes."""
    most = math.gcd(batch, mesh.devices)
    found: list[tuple[int, str, int]] = []
    for n in range(len(mesh.names) + 1):
        for taken in itertools.combinations(range(len(mesh.names)), n):
            left, rest = divmod(most, mesh.size(taken))
            if rest:
                continue
            if left == 1:
                return []
            found += [
                (n, name, left)
                for a, (name, size) in enumerate(mesh.as_dict().items())
                if a not in taken and size % left == 0
            ]
    found.sort(key=lambda f: -f[0])
    return [(name, left) for _, name, left in found[:1]]


def _major_factors(graph: Graph) -> list[int]:
    """Factors with others beneath them, as the kv heads in a dim of all heads; largest first."""
    weight: collections.Counter[int] = collections.Counter()
    for node in graph.nodes:
        form = node.form
        if form.above:
            nbytes = max(r.type.nbytes for r in graph.module.ops[node.op].results)
            for f, above in enumerate(form.above):
                beneath = any(f in other for other in form.above)
                if beneath and not above and form.sizes[f] > 1:
                    weight[form.sizes[f]] = max(weight[form.sizes[f]], nbytes)
    largest = max(weight.values(), default=0)
    return [n for n, nbytes in weight.most_common() if nbytes >= SMALL * largest]
