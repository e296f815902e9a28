"""Propagation of tilings to a fixed point.

On one axis, a node loops over a factor when the tiles of its values ask for this factor and for no
second one; then the undecided values of the node are tiled to match, forward and backward. Two
factors asked for are a conflict: the node gets no loop, and earlier decisions win (PartIR, arXiv
2401.11202, section 3). Costs do not matter.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from partir_search.ir.analysis.axis_rows import AxisRows
from partir_search.ir.axis_options import NO_MODES
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE, REPLICATED
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.diagonals import exceeds_diagonal, may_loop
from partir_search.propagation.factors import free_factor, may_loop_over
from partir_search.propagation.graph import Graph
from partir_search.propagation.memo import PropagationEffect, PropagationMemo, other_loops
from partir_search.propagation.provenance import Cause

EFFECTS_PER_DECISION = 8  # most recently used entries of the memo for one decision


class State:
    """Tiles of the classes and loops of the nodes of a graph, on every mesh axis.

    Attributes:
      tiles: [axes] int8 array over classes: dim, NONE or REPLICATED.
      loops: [axes] int8 array over nodes: factor, NONE, or REPLICATED: no loop, by decision.
      modes: options of axes besides tiling; not in the state's key.
      frozen: classes decided by propagation only, never by an action.
      shapes: [axes][classes] shapes of the graph, with 1 for dims closed on the axis; not in the
        state's key.
      causes: origin of each tile by (axis, class); None unless recorded.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: MeshShape,
        *,
        record: bool = False,
        memo: PropagationMemo | None = None,
    ) -> None:
        """A state without decisions.

        Args:
          record: fill `causes`; then every propagation is computed, without the memo.
          memo: effects of earlier propagations, shared by states of one graph and mesh.
        """
        self.graph, self.mesh = graph, mesh
        axes = range(len(mesh.names))
        self.tiles = [array("b", [NONE]) * len(graph.shapes) for _ in axes]
        self.loops = [array("b", [NONE]) * len(graph.nodes) for _ in axes]
        self.modes = NO_MODES
        self.frozen: set[int] = set()
        self.shapes = [graph.extents for _ in axes]
        self._sizes = [node.structure.sizes for node in graph.nodes]
        self._closed: tuple[tuple[int, int, int], ...] = ()  # (axis, class, dim)
        self._triples = mesh.triples
        self._memo: PropagationMemo = {} if memo is None else memo
        # Of the propagation under way: (class, dim) and (node, factor) pairs refused for another
        # axis, and the nodes read that have several factors on a dim.
        self._refused: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._compound: list[int] = []
        self.causes: dict[tuple[int, int], Cause] | None = {} if record else None
        self._step = -1

    def key(self) -> bytes:
        """Bytes of tiles and loops: equal for equal states, in any order of actions."""
        return b"".join(
            a.tobytes() for pair in zip(self.tiles, self.loops, strict=True) for a in pair
        )

    def restore(self, key: bytes) -> None:
        """Sets tiles and loops from a key of an earlier state."""
        at = 0
        for row in (row for pair in zip(self.tiles, self.loops, strict=True) for row in pair):
            memoryview(row).cast("B")[:] = key[at : at + len(row)]
            at += len(row)

    def clear_caches(self) -> None:
        """Drops the memo of earlier propagations, for its memory."""
        self._memo = {}

    def divides(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        """True if `axes` divide a dim further, after the axes with tiles of the dim already."""
        sizes = self.mesh.sizes
        extent, size = self.shapes[axes[0]][cls][dim], sizes[axes[0]]
        for axis in axes[1:]:
            extent, size = min(extent, self.shapes[axis][cls][dim]), size * sizes[axis]
        for other, tiles in enumerate(self.tiles):
            if tiles[cls] == dim and other not in axes:
                extent, remainder = divmod(extent, sizes[other])
                if remainder:
                    return False
        return extent > 0 and extent % size == 0

    def free(self, cls: int, axes: Sequence[int]) -> bool:
        """True if actions may decide a class along all of `axes`: undecided and not frozen."""
        if cls in self.frozen:
            return False
        for axis in axes:  # noqa: SIM110 (hot: a generator would take longer)
            if self.tiles[axis][cls] != NONE:
                return False
        return True

    def may_tile(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        """True if `tile` with the same arguments is legal."""
        return (
            self.free(cls, axes)
            and self.divides(cls, dim, axes)
            and not any(exceeds_diagonal(self.tiles, cls, triple, axes) for triple in self._triples)
        )

    # Actions -----------------------------------------------------------------------------------

    def tile(
        self,
        cls: int,
        dim: int,
        axes: Sequence[int],
        also: Sequence[int] = (),
        barriers: Sequence[int] = (),
    ) -> None:
        """Tiles dim `dim` of class `cls` on axes, major to minor, and propagates each tile.

        Args:
          also: classes tiled alike before propagation starts; illegal tiles are skipped.
          barriers: classes left undecided by propagation.

        Raises:
          IllegalAction: `cls` is decided on one of the axes, or the axes do not divide the dim.
        """
        if not self.may_tile(cls, dim, axes):
            raise IllegalAction(
                f"class {cls} of shape {self.graph.shapes[cls]} cannot be tiled on dim {dim}"
                f" along axis {self.mesh.label(axes)!r}"
            )
        self._step += 1
        for axis in axes:
            if self.causes is not None:
                self._tile(cls, dim, axis, also, barriers)
                continue
            all_axes = bool(self.mesh.triple(axis))  # the effect depends on all of them
            kind = axis if all_axes or self._closed else -self.mesh.sizes[axis]
            state = self.key() if all_axes else b""
            key = (kind, state, cls, dim, *also, "barriers", *barriers, *self._closed)
            effects = self._memo.setdefault(key, [])
            for i, effect in enumerate(effects):
                if effect.holds(axis, self.tiles, self.loops, self.mesh.sizes):
                    effect.repeat(self.tiles[axis], self.loops[axis])
                    effects.insert(0, effects.pop(i))
                    break
            else:
                effects.insert(0, self._record(cls, dim, axis, also, barriers))
                del effects[EFFECTS_PER_DECISION:]

    def _tile(
        self, cls: int, dim: int, axis: int, also: Sequence[int], barriers: Sequence[int]
    ) -> None:
        """Tiles classes on one axis and propagates, without the memo."""
        tiles = self.tiles[axis]
        stopped = [c for c in barriers if tiles[c] == NONE and c != cls and c not in also]
        for c in stopped:
            tiles[c] = REPLICATED
        start: list[int] = []
        for c in (cls, *also):
            if self.may_tile(c, dim, (axis,)):
                self._decide(axis, c, dim)
                start += self.graph.touching[c]
            elif self.free(c, (axis,)):
                self._refused[0].append((c, dim))
        self._propagate(axis, start if also else self.graph.touching[cls])
        for c in stopped:
            tiles[c] = NONE

    def _record(
        self, cls: int, dim: int, axis: int, also: Sequence[int], barriers: Sequence[int]
    ) -> PropagationEffect:
        """`_tile`, and a record of the changes for the memo."""
        tiles, loops = (np.frombuffer(row[axis], dtype=np.int8) for row in (self.tiles, self.loops))
        tiles_before, loops_before = tiles.copy(), loops.copy()
        self._refused, self._compound = ([], []), []
        self._tile(cls, dim, axis, also, barriers)
        classes = np.flatnonzero(tiles != tiles_before).astype(np.int32)
        nodes = np.flatnonzero(loops != loops_before).astype(np.int32)
        adjacency, compound = self.graph.adjacency, np.array(self._compound, dtype=np.int32)
        nodes_read = adjacency.nodes(classes)
        named = np.array([cls, *also, *barriers], dtype=np.int32)
        classes_read = np.concatenate((named, adjacency.classes(nodes_read)))
        return PropagationEffect(
            axis,
            (classes_read, nodes_read),
            (tiles_before[classes_read].tobytes(), loops_before[nodes_read].tobytes()),
            classes,
            tiles[classes],
            nodes,
            loops[nodes],
            *self._refused,
            self.shapes[axis],
            self._sizes,
            compound,
            other_loops(axis, self.loops, compound),
            bool(self.mesh.triple(axis)),
        )

    def replicate(self, cls: int, axes: Sequence[int], also: Sequence[int] = ()) -> None:
        """Decides that a class, and undecided classes of `also`, are replicated along axes.

        Raises:
          IllegalAction: `cls` is decided along one of the axes.
        """
        if not self.free(cls, axes):
            raise IllegalAction(f"class {cls} is decided along axis {self.mesh.label(axes)!r}")
        self._step += 1
        for axis in axes:
            for c in (cls, *also):
                if self.tiles[axis][c] == NONE:
                    self._decide(axis, c, REPLICATED)

    def close(self, cls: int, dim: int, axes: Sequence[int]) -> None:
        """Closes a dim of a class: no action or propagation tiles it on `axes`.

        Before a search only: closed dims are not in the state's key. IllegalAction if one is tiled.
        """
        if any(self.tiles[a][cls] == dim for a in axes):
            raise IllegalAction(f"class {cls} is tiled on dim {dim} along {self.mesh.label(axes)}")
        self._step += 1
        for axis in axes:
            rows = list(self.shapes[axis])
            rows[cls] = (*rows[cls][:dim], 1, *rows[cls][dim + 1 :])
            self.shapes[axis] = rows
        self._closed = tuple(sorted({*self._closed, *((axis, cls, dim) for axis in axes)}))

    def is_closed(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        """True if a dim of a class is closed on all of `axes`."""
        return {(a, cls, dim) for a in axes}.issubset(self._closed)

    def fix_loops(self, nodes: Sequence[int], factor: int, axes: Sequence[int]) -> None:
        """Fixes the loops of nodes along axes; propagation passes no tiles through them.

        Args:
          factor: factor of the loops; NONE for no loop, whatever tiles of their values ask for.

        Raises:
          IllegalAction: a node has another loop, or the axes do not divide the factor.
        """
        self._step += 1
        for n, axis in itertools.product(nodes, axes):
            if not self.may_fix_loop(n, factor, axis):
                raise IllegalAction(f"node {n} cannot loop over {factor}, {self.mesh.names[axis]}")
            self.loops[axis][n] = REPLICATED if factor < 0 else factor

    def loop_over_tiles(self, nodes: Sequence[int]) -> None:
        """Gives nodes the loops that the tiles of their values ask for; no class is tiled."""
        for axis, row in enumerate(np.frombuffer(tiles, dtype=np.int8) for tiles in self.tiles):
            undecided = row == NONE
            row[undecided] = REPLICATED
            self._propagate(axis, nodes)
            row[undecided] = NONE

    def may_fix_loop(self, n: int, factor: int, axis: int) -> bool:
        """True if a node has the loop or no loop yet, and the axis divides the factor further."""
        loops = [(row[n], size) for row, size in zip(self.loops, self.mesh.sizes, strict=True)]
        return may_loop_over(self.graph.nodes[n].structure, factor, axis, loops)

    def _decide(self, axis: int, cls: int, tile: int) -> None:
        self.tiles[axis][cls] = tile
        if self.causes is not None:
            self.causes[axis, cls] = Cause(self._step, None)

    def _propagate(self, axis: int, start: Sequence[int]) -> None:
        """Gives loops to nodes and tiles to classes on `axis`, from the nodes `start` on."""
        graph, tiles, loops = self.graph, self.tiles[axis], self.loops[axis]
        nodes, touching, shapes = graph.nodes, graph.touching, self.shapes[axis]
        size, triple = self.mesh.sizes[axis], self.mesh.triple(axis)
        unlooped, untiled = self._refused[1], self._refused[0]
        others = [  # axes with a tile or loop
            (self.tiles[a], self.loops[a], n)
            for a, n in enumerate(self.mesh.sizes)
            if a != axis and n > 1 and max(map(_most, (self.tiles[a], self.loops[a]))) >= 0
        ]
        queue = deque(start)
        waiting = set(start)
        deferred: deque[int] = deque()  # nodes whose only candidate is a low-priority factor
        while queue or deferred:
            flushing = not queue
            n = deferred.popleft() if flushing else queue.popleft()
            waiting.discard(n)
            if loops[n] != NONE:
                continue
            node = nodes[n]
            structure = node.structure
            factor = low_priority = NONE
            if structure.major_factors:
                self._compound.append(n)
                for cls, factors_on in zip(node.classes, structure.factors_on, strict=True):
                    if tiles[cls] >= 0:
                        f = self.free_factor(n, factors_on[tiles[cls]], axis)
                        if f >= 0 and f != factor and structure.sizes[f]:
                            factor = REPLICATED if factor >= 0 else f
                            if factor == REPLICATED:
                                break
            else:
                # The same for one factor per dim, without calls: the hot loop.
                for cls, dims in zip(node.classes, structure.dims, strict=True):
                    d = tiles[cls]
                    if d >= 0:
                        f = dims[d]
                        if f >= 0 and f != factor and structure.sizes[f]:
                            if f in structure.low_priority_factors:
                                low_priority = f
                                continue
                            if factor >= 0:
                                factor = REPLICATED
                                break
                            factor = f
            if factor == NONE and low_priority >= 0:
                if not flushing:
                    deferred.append(n)
                    continue
                factor = low_priority
            if factor < 0:
                continue
            extent = structure.sizes[factor]
            for _, row, other in others:
                if row[n] == factor:
                    extent //= other
            if extent % size:
                unlooped.append((n, factor))
                continue
            if triple and not self._may_loop(n, factor, axis, triple):
                continue
            loops[n] = factor
            for port, d in structure.places[factor]:
                cls = node.classes[port]
                if tiles[cls] == NONE:  # then `divides`, without the call: the hot loop
                    extent = shapes[cls][d]
                    for row, _, other in others:
                        if row[cls] == d:
                            extent = extent // other if extent % other == 0 else 0
                    if extent == 0 or extent % size:
                        untiled.append((cls, d))
                        continue
                    if triple and exceeds_diagonal(self.tiles, cls, triple, (axis,)):
                        continue
                    tiles[cls] = d
                    if self.causes is not None:
                        self.causes[axis, cls] = Cause(self._step, n)
                    for m in touching[cls]:
                        if loops[m] == NONE and m not in waiting:
                            waiting.add(m)
                            queue.append(m)

    def _may_loop(self, n: int, factor: int, axis: int, triple: Sequence[int]) -> bool:
        """True if node `n` may loop over `factor` on `axis`, one of a triple."""
        r, c, d = (factor if a == axis else self.loops[a][n] for a in triple)
        others = [t for t in self._triples if t[2] != triple[2]]
        return may_loop(self.graph, self.loops, others, n, (r, c, d))

    def free_factor(self, n: int, factors: tuple[int, ...], axis: int) -> int:
        """`factors.free_factor` of node `n`, given its loops on the axes but `axis`."""
        loops = [(row[n], self.mesh.sizes[a]) for a, row in enumerate(self.loops) if a != axis]
        return free_factor(self.graph.nodes[n].structure, factors, loops)

    def partition(self, known: dict[bytes, AxisRows] | None = None) -> Partition:
        """Partition of the module: tiles of classes for values, loops of nodes for ops.

        Args:
          known: rows of axes by tiles and loops, a cache shared by states of one graph.
        """
        graph = self.graph
        skewed = {a for t in self._triples if max(self.tiles[t[2]]) >= 0 for a in t}
        axes = []
        for axis, (tiles, loops) in enumerate(zip(self.tiles, self.loops, strict=True)):
            # A value partial on one axis of a ring and tiled on a second cannot be tiled anew.
            defers = axis not in skewed
            key = tiles.tobytes() + loops.tobytes() + bytes([defers])
            rows = known.get(key) if known is not None else None
            if rows is None:
                rows = graph.rows(tiles, loops, defers)
                if known is not None:
                    known[key] = rows
            axes.append(rows)
        return Partition(graph.module, self.mesh, graph.rules, axes, graph.analysis, (), self.modes)


def _most(row: array[int]) -> int:
    """Largest entry of a row."""
    return int(np.max(np.frombuffer(row, dtype=np.int8), initial=NONE))
