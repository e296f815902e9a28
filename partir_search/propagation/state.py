"""Propagation of tilings to a fixed point.

For one axis: when what is known about a node's values points at exactly one factor, the node
loops over it and its undecided values are tiled to match, forward and backward. Several
candidates are a conflict and nothing happens: what was decided earlier wins (PartIR, section 3 of
arXiv 2401.11202). Nothing is decided by cost here.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from partir_search.ir.analysis.axis_rows import AxisRows
from partir_search.ir.axis_options import NO_MODES
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.rule import KEPT, NONE
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.memo import Spread, Spreads, beside
from partir_search.propagation.provenance import Cause

KNOWN = 8  # ways that a decision went, kept to be repeated


class State:
    """Tilings of a graph's classes and loops of its nodes on every mesh axis.

    Attributes:
      tiles: [axes] int8 array over classes: dim, NONE or KEPT.
      loops: [axes] int8 array over nodes: factor or NONE.
      modes: options of axes besides tiling; not part of the state's key.
      left: classes that no action decides; propagation may.
      shapes: [axes][classes] as the graph's, but 1 for dims barred on the axis. Not part of the
        state's key.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: MeshShape,
        *,
        record: bool = False,
        spreads: Spreads | None = None,
    ) -> None:
        """A state in which nothing is decided.

        Args:
          record: keep the cause of every tiling (see `causes`).
          spreads: of other states of the same graph and mesh: what was propagated once is not
            worked out again.
        """
        self.graph, self.mesh = graph, mesh
        axes = range(len(mesh.names))
        self.tiles = [array("b", [NONE]) * len(graph.shapes) for _ in axes]
        self.loops = [array("b", [NONE]) * len(graph.nodes) for _ in axes]
        self.modes = NO_MODES
        self.left: set[int] = set()
        self.shapes = [graph.extents for _ in axes]
        self._sizes = [node.form.sizes for node in graph.nodes]
        self._bars: tuple[tuple[int, int, int], ...] = ()
        self._triples = mesh.triples
        self._spreads: Spreads = {} if spreads is None else spreads
        # Where what is being propagated did not go for other axes' sake, and where it asked them.
        self._refused: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._stacked: list[int] = []
        self.causes: dict[tuple[int, int], Cause] | None = {} if record else None
        self._step = -1

    # Keys --------------------------------------------------------------------------------------

    def key(self) -> bytes:
        """Equal for equal states, whatever the order of actions."""
        return b"".join(
            a.tobytes() for pair in zip(self.tiles, self.loops, strict=True) for a in pair
        )

    def restore(self, key: bytes) -> None:
        """Brings back a state by its key."""
        at = 0
        for row in (row for pair in zip(self.tiles, self.loops, strict=True) for row in pair):
            memoryview(row).cast("B")[:] = key[at : at + len(row)]
            at += len(row)

    def let_go(self) -> None:
        """Forgets what was propagated before: it would be worked out again."""
        self._spreads = {}

    # Legality ----------------------------------------------------------------------------------

    def divides(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        """True if a dim divides by axes on top of the axes that tile it already."""
        sizes = self.mesh.sizes
        n, size = self.shapes[axes[0]][cls][dim], sizes[axes[0]]
        for axis in axes[1:]:
            n, size = min(n, self.shapes[axis][cls][dim]), size * sizes[axis]
        for other, tiles in enumerate(self.tiles):
            if tiles[cls] == dim and other not in axes:
                n, rest = divmod(n, sizes[other])
                if rest:
                    return False
        return n > 0 and n % size == 0

    def free(self, cls: int, axes: Sequence[int]) -> bool:
        """Tells whether a class is undecided along all of these axes, and open to decisions."""
        if cls in self.left:
            return False
        for axis in axes:  # noqa: SIM110 (asked so often that a generator would show)
            if self.tiles[axis][cls] != NONE:
                return False
        return True

    def may_tile(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        return (
            self.free(cls, axes)
            and self.divides(cls, dim, axes)
            and not any(self._crowded(cls, triple, axes) for triple in self._triples)
        )

    def _crowded(self, cls: int, triple: Sequence[int], axes: Sequence[int]) -> bool:
        """True if a class would be tiled on two axes and their diagonal as well."""
        return all(a in axes or self.tiles[a][cls] >= 0 for a in triple)

    def _walks(self, n: int, factor: int, axis: int, triple: Sequence[int]) -> bool:
        """True if a node may loop over `factor` on one of two axes and their diagonal: along with
        another factor, or with both if the node walks the one sum among the three in time.
        """
        node = self.graph.nodes[n]
        rule = self.graph.rules[node.op]
        looped = tuple(factor if a == axis else self.loops[a][n] for a in triple)
        if looped[2] >= 0:  # neighbours along an axis have other blocks along the diagonal
            read = {rule.operands[r.operand][r.dim] for r in rule.reads}
            if rule.manual or not read.isdisjoint(looped):
                return False
        others = [t for t in self._triples if t[2] != triple[2]]
        walking = any(all(self.loops[a][n] >= 0 for a in t) for t in others)  # one ring at a time
        return min(looped) < 0 or (not walking and node.walks(rule, looped))

    # Actions -----------------------------------------------------------------------------------

    def tile(
        self,
        cls: int,
        dim: int,
        axes: Sequence[int],
        also: Sequence[int] = (),
        barriers: Sequence[int] = (),
    ) -> None:
        """Tiles a class on axes, major to minor, and propagates each.

        Args:
          also: classes that are tiled with it, before anything propagates, where they may be.
          barriers: classes that propagation leaves undecided.

        Raises:
          IllegalAction: the class is decided on one of the axes, or the dim does not divide.
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
            entangled = bool(self.mesh.triple(axis))
            kind = axis if entangled or self._bars else -self.mesh.sizes[axis]
            state = self.key() if entangled else b""
            key = (kind, state, cls, dim, *also, "barriers", *barriers, *self._bars)
            known = self._spreads.setdefault(key, [])
            for i, spread in enumerate(known):
                if spread.holds(axis, self.tiles, self.loops, self.mesh.sizes):
                    spread.repeat(self.tiles[axis], self.loops[axis])
                    known.insert(0, known.pop(i))
                    break
            else:
                known.insert(0, self._record(cls, dim, axis, also, barriers))
                del known[KNOWN:]

    def _tile(
        self, cls: int, dim: int, axis: int, also: Sequence[int], barriers: Sequence[int]
    ) -> None:
        tiles = self.tiles[axis]
        closed = [c for c in barriers if tiles[c] == NONE and c != cls and c not in also]
        for c in closed:
            tiles[c] = KEPT
        start: list[int] = []
        for c in (cls, *also):
            if self.may_tile(c, dim, (axis,)):
                self._decide(axis, c, dim)
                start += self.graph.touching[c]
            elif self.free(c, (axis,)):
                self._refused[0].append((c, dim))
        self._propagate(axis, start if also else self.graph.touching[cls])
        for c in closed:
            tiles[c] = NONE

    def _record(
        self, cls: int, dim: int, axis: int, also: Sequence[int], barriers: Sequence[int]
    ) -> Spread:
        """Tiles and propagates; returns what that did."""
        tiles, loops = (np.frombuffer(row[axis], dtype=np.int8) for row in (self.tiles, self.loops))
        tiled, looped = tiles.copy(), loops.copy()
        self._refused, self._stacked = ([], []), []
        self._tile(cls, dim, axis, also, barriers)
        classes = np.flatnonzero(tiles != tiled).astype(np.int32)
        nodes = np.flatnonzero(loops != looped).astype(np.int32)
        reach, stacked = self.graph.reach, np.array(self._stacked, dtype=np.int32)
        near = reach.nodes(classes)
        asked = np.array([cls, *also, *barriers], dtype=np.int32)
        around = np.concatenate((asked, reach.classes(near)))
        return Spread(
            axis,
            (around, near),
            (tiled[around].tobytes(), looped[near].tobytes()),
            classes,
            tiles[classes],
            nodes,
            loops[nodes],
            *self._refused,
            self.shapes[axis],
            self._sizes,
            stacked,
            beside(axis, self.loops, stacked),
            bool(self.mesh.triple(axis)),
        )

    def keep(self, cls: int, axes: Sequence[int], also: Sequence[int] = ()) -> None:
        """Decides that a class, and those of `also` that are undecided, stay whole on axes."""
        if not self.free(cls, axes):
            raise IllegalAction(f"class {cls} is decided along axis {self.mesh.label(axes)!r}")
        self._step += 1
        for axis in axes:
            for c in (cls, *also):
                if self.tiles[axis][c] == NONE:
                    self._decide(axis, c, KEPT)

    def bar(self, cls: int, dim: int, axes: Sequence[int]) -> None:
        """Has a dim of a class never tiled on axes. To be done before any search, as `key`
        does not tell.
        """
        if any(self.tiles[a][cls] == dim for a in axes):
            raise IllegalAction(f"class {cls} is tiled on dim {dim} along {self.mesh.label(axes)}")
        self._step += 1
        for axis in axes:
            rows = list(self.shapes[axis])
            rows[cls] = (*rows[cls][:dim], 1, *rows[cls][dim + 1 :])
            self.shapes[axis] = rows
        self._bars = tuple(sorted({*self._bars, *((axis, cls, dim) for axis in axes)}))

    def barred(self, cls: int, dim: int, axes: Sequence[int]) -> bool:
        """Tells whether a dim of a class is never tiled on any of these axes."""
        return {(a, cls, dim) for a in axes}.issubset(self._bars)

    def _decide(self, axis: int, cls: int, new: int) -> None:
        self.tiles[axis][cls] = new
        if self.causes is not None:
            self.causes[axis, cls] = Cause(self._step, None)

    def _propagate(self, axis: int, start: Sequence[int]) -> None:
        graph, tiles, loops = self.graph, self.tiles[axis], self.loops[axis]
        nodes, touching, shapes = graph.nodes, graph.touching, self.shapes[axis]
        size, triple = self.mesh.sizes[axis], self.mesh.triple(axis)
        unlooped, untiled = self._refused[1], self._refused[0]
        others = [  # axes that do something
            (self.tiles[a], self.loops[a], n)
            for a, n in enumerate(self.mesh.sizes)
            if a != axis and n > 1 and max(map(_most, (self.tiles[a], self.loops[a]))) >= 0
        ]
        queue = deque(start)
        waiting = set(start)
        patient: deque[int] = deque()  # nodes with no factor but one that yields
        while queue or patient:
            hurried = not queue
            n = patient.popleft() if hurried else queue.popleft()
            waiting.discard(n)
            if loops[n] >= 0:
                continue
            node = nodes[n]
            form = node.form
            factor = yielding = NONE
            if form.above:
                self._stacked.append(n)
                for cls, held in zip(node.classes, form.held, strict=True):
                    if tiles[cls] >= 0:
                        f = self.free_factor(n, held[tiles[cls]], axis)
                        if f >= 0 and f != factor and form.sizes[f]:
                            factor = KEPT if factor >= 0 else f
                            if factor == KEPT:
                                break
            else:
                for cls, dims in zip(
                    node.classes, form.dims, strict=True
                ):  # the same, in the loop that takes the time
                    d = tiles[cls]
                    if d >= 0:
                        f = dims[d]
                        if f >= 0 and f != factor and form.sizes[f]:
                            if f in form.yields:
                                yielding = f
                                continue
                            if factor >= 0:
                                factor = KEPT
                                break
                            factor = f
            if factor == NONE and yielding >= 0:
                if not hurried:
                    patient.append(n)
                    continue
                factor = yielding
            if factor < 0:
                continue
            extent = form.sizes[factor]
            for _, row, other in others:
                if row[n] == factor:
                    extent //= other
            if extent % size:
                unlooped.append((n, factor))
                continue
            if triple and not self._walks(n, factor, axis, triple):
                continue
            loops[n] = factor
            for port, d in form.places[factor]:
                cls = node.classes[port]
                if tiles[cls] == NONE:  # and `divides`, without the call: this is the hot loop
                    extent = shapes[cls][d]
                    for row, _, other in others:
                        if row[cls] == d:
                            extent = extent // other if extent % other == 0 else 0
                    if extent == 0 or extent % size:
                        untiled.append((cls, d))
                        continue
                    if triple and self._crowded(cls, triple, (axis,)):
                        continue
                    tiles[cls] = d
                    if self.causes is not None:
                        self.causes[axis, cls] = Cause(self._step, n)
                    for m in touching[cls]:
                        if loops[m] < 0 and m not in waiting:
                            waiting.add(m)
                            queue.append(m)

    def free_factor(self, n: int, factors: tuple[int, ...], axis: int) -> int:
        """The first of a dim's factors that other axes do not use up; NONE if it may not be looped
        over yet, as loops over factors above it leave something of them or are more minor.
        """
        form = self.graph.nodes[n].form
        for f in factors:
            if self._left(n, f, axis) == 1:
                continue
            for g in form.above[f]:
                if self._left(n, g, axis) > 1:
                    return NONE
            return f
        return NONE

    def _left(self, n: int, factor: int, axis: int) -> int:
        """Extent of a factor that other axes' loops leave."""
        extent = self.graph.nodes[n].form.sizes[factor]
        for a, row in enumerate(self.loops):
            if a != axis and row[n] == factor:
                extent //= self.mesh.sizes[a]
        return extent

    # Results -----------------------------------------------------------------------------------

    def partition(self, known: dict[bytes, AxisRows] | None = None) -> Partition:
        """The partition of the module: classes spread to values, nodes to ops.

        Args:
          known: rows of axes by what the axis does, kept between states of one graph.
        """
        graph = self.graph
        skewed = {a for t in self._triples if max(self.tiles[t[2]]) >= 0 for a in t}
        axes = []
        for axis, (tiles, loops) in enumerate(zip(self.tiles, self.loops, strict=True)):
            # What is pending on one of the three while tiled on another must not be tiled anew.
            travels = axis not in skewed
            key = tiles.tobytes() + loops.tobytes() + bytes([travels])
            rows = known.get(key) if known is not None else None
            if rows is None:
                rows = graph.rows(tiles, loops, travels)
                if known is not None:
                    known[key] = rows
            axes.append(rows)
        return Partition(graph.module, self.mesh, graph.rules, axes, graph.index, (), self.modes)


def _most(row: array[int]) -> int:
    """The largest entry."""
    return int(np.max(np.frombuffer(row, dtype=np.int8), initial=NONE))
