"""Sub-axes: splits of mesh axes larger than an important dim.

An axis of 16 over 8 key-value heads in groups of 4 tiles 8 heads and 2 of each group; an axis of 64
over a batch of 4 leaves 16 devices for further dims; a batch of 32 on 8x8 takes 8 and 4 of the
second 8. Splits follow from the batch, from stacks and from dims split or merged by reshapes.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Iterator

from partir_search.ir.core import Module, Op
from partir_search.ir.manual import Manual
from partir_search.ir.mesh import MeshShape
from partir_search.ir.role import Role
from partir_search.propagation.data_arguments import batched_arguments
from partir_search.propagation.graph import Graph
from partir_search.propagation.loop_batches import batch_dims, loop_batches

MAX_SUB_AXES = 3  # per axis: each sub-axis enlarges propagation and search like a full axis
SMALL_VALUE_RATIO = 0.02  # of the largest value's bytes; reshapes of smaller values do not split


def split_into_sub_axes(
    graph: Graph, mesh: MeshShape, whole_axes: Collection[str] = ()
) -> MeshShape:
    """Splits axes whose size shares a proper divisor with a batch or a factor of a reshape.

    Axes of the user's own `shard_map`s, axes with a diagonal, axes split already and `whole_axes`
    are not split.

    Raises:
      ValueError: the user's `shard_map` names an axis missing in the mesh, or of another size.
    """
    named = (
        _named_axes(graph.module, mesh)
        | {*whole_axes}
        | {mesh.names[a] for pair in mesh.diagonals for a in pair}
    )
    given = mesh.sub_axes()
    whole, mesh = mesh.unsplit, mesh.user
    cuts: dict[str, list[int]] = {name: [] for name in mesh.names}
    for batch in (*_batches(graph), *_stacks(graph)):
        for name, cut in _for_batch(batch, mesh):
            _add(cuts[name], cut, mesh.as_dict()[name])
    for extent in _major_factors(graph):
        for name, size in mesh.as_dict().items():
            _add(cuts[name], math.gcd(extent, size), size)
    sub_axes = {}
    for name, size in mesh.as_dict().items():
        if cuts[name] and name not in named:
            bounds = [1, *sorted(cuts[name]), size]
            sub_axes[name] = [b // a for a, b in itertools.pairwise(bounds)]
    return whole.split({**sub_axes, **given})


def check_regions(module: Module, mesh: MeshShape) -> None:
    """Raises a ValueError if a `shard_map` of the user does not lie along axes of the mesh."""
    for op, manual in _regions(module):
        if reason := manual.misplaced(mesh):
            raise ValueError(f"the shard_map at {op.source} {reason}")


def _named_axes(module: Module, mesh: MeshShape) -> set[str]:
    """The user's axes along which their own `shard_map` regions lie."""
    check_regions(module, mesh)
    names = (name for _, manual in _regions(module) for name in manual.along)
    return {mesh.whole[a] for name in names for a in mesh.axes(name)}


def _regions(module: Module) -> Iterator[tuple[Op, Manual]]:
    for op in module.ops:
        if manual := op.params.get("manual"):
            yield op, manual


def _add(cuts: list[int], cut: int, size: int) -> None:
    """Adds a cut of an axis of `size` if the cut nests with the earlier `cuts`."""
    nested = all(cut % c == 0 or c % cut == 0 for c in cuts)
    if 1 < cut < size and cut not in cuts and nested and len(cuts) < MAX_SUB_AXES - 1:
        cuts.append(cut)


def _batches(graph: Graph) -> list[int]:
    """Extents of the batches of data arguments."""
    args, positions = graph.module.body.args, batched_arguments(graph.module)
    found = [args[i].type.shape[d] for i, d in batch_dims(graph.module, positions).items()]
    inside = loop_batches(graph.module, positions).values()
    found += [v.type.shape[dim] for places in inside for v, dim in places]
    return list(dict.fromkeys(found))


def _stacks(graph: Graph) -> list[int]:
    """Extents of stacks of arrays."""
    stacks = [op for op in graph.module.ops if graph.rules[op.id].role is Role.STACK]
    return list(dict.fromkeys(op.results[0].type.shape[0] for op in stacks))


def _for_batch(batch: int, mesh: MeshShape) -> list[tuple[str, int]]:
    """Cut of one axis to tile a batch or stack by whole axes and one sub-axis on gcd(batch,
    devices) devices, as [(axis, devices of the sub-axis)]; [] if whole axes suffice.
    """
    most = math.gcd(batch, mesh.devices)
    found: list[tuple[int, str, int]] = []
    for n in range(len(mesh.names) + 1):
        for taken in itertools.combinations(range(len(mesh.names)), n):
            cut, remainder = divmod(most, mesh.size(taken))
            if remainder:
                continue
            if cut == 1:
                return []
            found += [
                (n, name, cut)
                for a, (name, size) in enumerate(mesh.as_dict().items())
                if a not in taken and size % cut == 0
            ]
    found.sort(key=lambda f: -f[0])
    return [(name, cut) for _, name, cut in found[:1]]


def _major_factors(graph: Graph) -> list[int]:
    """Extents of the most major factors in dims with several (key-value heads in a dim of all
    heads), largest values first.
    """
    weight: collections.Counter[int] = collections.Counter()
    for node in graph.nodes:
        structure = node.structure
        if structure.major_factors:
            nbytes = max(r.type.nbytes for r in graph.module.ops[node.op].results)
            for f, majors in enumerate(structure.major_factors):
                has_minor = any(f in other for other in structure.major_factors)
                if has_minor and not majors and structure.sizes[f] > 1:
                    weight[structure.sizes[f]] = max(weight[structure.sizes[f]], nbytes)
    largest = max(weight.values(), default=0)
    return [n for n, nbytes in weight.most_common() if nbytes >= SMALL_VALUE_RATIO * largest]
