"""Loop nests of ops in the printed form: heads, members, slices of operands."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from typing import NamedTuple

from partir_search.ir.core import Literal, Op
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE, InputWindow
from partir_search.ir.skewed_schedule import Ring

RING = "ring"
PASS, ZIGZAG = "pass", "pass zigzag"
IN_TIME = (RING, PASS, ZIGZAG)
TILE = "tile"


class Loop(NamedTuple):
    """One loop of a nest.

    Attributes:
      axes: axes of the mesh; several for rings.
      kind: "tile" and dims of results, a monoid, or one of `IN_TIME`.
    """

    axes: tuple[int, ...]
    kind: str

    @property
    def tiles(self) -> bool:
        return self.kind.startswith(TILE)

    @property
    def in_time(self) -> bool:
        return self.kind in IN_TIME


class Piece(NamedTuple):
    """Slice of an operand: `slice dim operand[place]` or `window dim operand[place]`."""

    word: str
    dim: int
    place: str

    def of(self, operand: str) -> str:
        return f"({self.word} {self.dim} {operand}[{self.place}])"


Nest = tuple[Loop, ...]
Local = Mapping[int, Container[int]]  # per axis, ids of values made in the loop being printed


def nest_of(partition: Partition, op: Op) -> Nest:
    """Loops of an op, outermost first."""
    p, loops = partition, list[Loop]()
    rule, ring = p.rules[op.id], p.ring(op)
    for axis in p.order:
        f = p.axes[axis].loops[op.id]
        if f >= 0 and not op.regions and not (ring and axis in ring.axes):
            places = [rule.dim_of(r, f) for r in rule.results]
            dims = [str(d) for d in places if d >= 0]
            same = dims[:1] if len(set(dims)) == 1 else dims
            loops.append(Loop((axis,), f"{TILE} {','.join(same)}" if dims else rule.reducers[f]))
    for axes in dict.fromkeys(p.ring_operands(op).values()):
        loops.append(Loop(axes, ZIGZAG if p.is_zigzag(op, axes) else PASS))
    return (*loops, Loop(ring.axes, RING)) if ring else tuple(loops)


class Nests(dict[int, Nest]):
    """Loops of ops by op id, made on demand."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self._partition = partition

    def __missing__(self, op_id: int) -> Nest:
        found = self[op_id] = nest_of(self._partition, self._partition.module.ops[op_id])
        return found


def joins(partition: Partition, op: Op, nest: Nest, level: int, loop: Loop, made: Set[int]) -> bool:
    """True if `op` can be printed inside of `loop`.

    Args:
      nest / level: the op's loops, and the depth of `loop`.
      made: ids of values made in `loop` already.
    """
    if len(nest) <= level or nest[level] != loop or loop.in_time:
        return False
    axis = loop.axes[0]
    for i, value in op.inputs():
        if value.id in made:
            if not loop.tiles:
                return False
            rule = partition.rules[op.id]
            dim = rule.dim_of(rule.operands[i], partition.axes[axis].loops[op.id])
            if f"{TILE} {dim}" != loop.kind or rule.window_on(i, dim):
                return False
    return True


def head_text(partition: Partition, loop: Loop) -> str:
    """`tile 0 "batch" (%batch: range<2>)`."""
    mesh = partition.mesh
    if loop.kind == RING:
        r, c = (mesh.names[a] for a in loop.axes[:2])
        size = mesh.sizes[loop.axes[0]]
        return f'{RING} "{r}" "{c}" (%{r}, %{c}, %t: steps<{size}>)'
    if loop.in_time:
        name, size = mesh.label(loop.axes), mesh.size(loop.axes)
        return f'{loop.kind} "{name}" (%{name}, %t: steps<{size}>)'
    name, size = mesh.names[loop.axes[0]], mesh.sizes[loop.axes[0]]
    places = "parts" if mesh.is_time(loop.axes[0]) else "range"
    return f'{loop.kind} "{name}" (%{name}: {places}<{size}>)'


def pieces(partition: Partition, op: Op, position: int, local: Local) -> list[Piece]:
    """Slices and windows of an operand under the op's loops, the innermost first.

    Args:
      local: values made in a loop over an axis, by axis: they need no slice on the axis.
    """
    operand, found = op.operands[position], list[Piece]()
    if isinstance(operand, Literal) or op.regions:
        return found
    mesh, rule, ring = partition.mesh, partition.rules[op.id], partition.ring(op)
    told: set[int] = set()  # dims with a window, shown once for all axes
    for axis in partition.order:
        f = partition.axes[axis].loops[op.id]
        dim = rule.dim_of(rule.operands[position], f) if f >= 0 else NONE
        reads = rule.window_on(position, dim)
        if reads and dim not in told:
            found.append(Piece("window", reads.dim, window_index(partition, op, f, reads)))
            told.add(dim)
        elif dim >= 0 and not reads and operand.id not in local.get(axis, ()):
            index = f"%{mesh.names[axis]}"
            if ring and axis in ring.axes:
                r, c, _ = ring.axes
                index = ring.index(ring.axes.index(axis), (mesh.names[r], mesh.names[c]))
            found.append(Piece("slice", dim, index))
    axes = partition.ring_operands(op).get(position)
    if axes and rule.blockwise:
        dim, n = rule.operands[position].index(rule.blockwise.factor), mesh.size(axes)
        index = f"(%{mesh.label(axes)} + %t) mod {n}"
        if partition.is_zigzag(op, axes):  # an early and a late chunk
            index = f"{index}, {2 * n - 1} - {index}"
        found.append(Piece("slice", dim, index))
    return found


def window_index(partition: Partition, op: Op, factor: int, reads: InputWindow) -> str:
    """`4*%b-1, 6 wrap/wrap`: first element, number of elements, boundary modes if not zeros."""
    p = partition
    points = p.rules[op.id].sizes[factor] // p.tiles_of(op, factor)
    start, size = reads.tile_window(0, points)
    index = ""
    for axis in [a for a in p.order if p.axes[a].loops[op.id] == factor]:
        name = f"%{p.mesh.names[axis]}"
        index = f"({index}*{p.mesh.sizes[axis]}+{name})" if index else name
    ends = f" {reads.beyond}" if reads.beyond else ""
    over = f"/{reads.over}" if reads.over > 1 else ""
    return f"{reads.step * points}*{index}{over}{start:+}, {size}{ends}"


def passing(partition: Partition, op: Op, ring: Ring, text: str) -> str:
    """Result of a ring, named `text`; with its slice if different turns add to different slices."""
    rule = partition.rules[op.id]
    places = {ring.place(ring.indices(rule, rule.results[0]), t) for t in range(ring.size)}
    r, c, _ = ring.axes
    for which in ring.indices(rule, rule.results[0]) if len(places) > 1 else ():
        dim = rule.dim_of(rule.results[0], ring.factors[which])
        index = ring.index(which, (partition.mesh.names[r], partition.mesh.names[c]))
        text = Piece("slice", dim, index).of(text)
    return text
