"""Paths of the ops between ops of known paths, in one pass."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from partir_search.ir.core import Op
from partir_search.ir.printing.weights import Path, common_path


def filled(
    ops: Sequence[Op], known: Mapping[int, Path], outer: Path, still: Set[int]
) -> list[Path]:
    """Path of each op.

    Args:
      ops: one pass of a region, in program order.
      known: paths by op id.
      outer: module of the region.
      still: ids of values made of weights and constants alone, which no layer passes to the next.
    """
    return _Gaps(ops, known, outer, still).filled()


def layer_of(path: Path, outer: Path = ()) -> Path:
    """`layers/0` of `layers/0/mlp`: the outermost numbered module below `outer`, or `outer`."""
    for n in range(len(outer) + 1, len(path) + 1):
        if path[n - 1][-1:].isdecimal():
            return path[:n]
    return outer


@functools.lru_cache(maxsize=4096)
def _unnumbered(path: Path) -> Path:
    return tuple(re.sub(r"\d+", "#", part) for part in path)


class _Gap(NamedTuple):
    """Ops between two of known paths.

    Attributes:
      begin / end: positions of the known ops; -1 and the number of ops at the ends.
      before / after: paths of the known ops.
      left / right: paths of the ops at the begin and at the end of the gap; equal if one module has
        all ops.
    """

    begin: int
    end: int
    before: Path
    after: Path
    left: Path
    right: Path

    @property
    def parts_layers(self) -> bool:
        """True between two layers equal up to a number."""
        return self.left != self.right and _unnumbered(self.left) == _unnumbered(self.right)

    @property
    def tail(self) -> tuple[Path, Path]:
        """Kind of the layer before and of the last known op."""
        return _unnumbered(self.left), _unnumbered(self.before)

    @property
    def head(self) -> tuple[Path, Path]:
        """Kind of the layer after and of the first known op."""
        return _unnumbered(self.right), _unnumbered(self.after)


class _Gaps:
    """Gaps of one pass.

    Attributes:
      known: paths by position.
      outer: path at the ends.
      width: by position, number of values made before and used here or later.
      tails / heads: number of ops of a layer after the last known op and before the first one.
    """

    def __init__(
        self, ops: Sequence[Op], known: Mapping[int, Path], outer: Path, still: Set[int]
    ) -> None:
        self.ops, self.outer, self.still = ops, outer, still
        self.known = {i: known[op.id] for i, op in enumerate(ops) if op.id in known}
        made = {r.id: i for i, op in enumerate(ops) for r in op.results if r.id not in still}
        last = {v.id: i for i, op in enumerate(ops) for _, v in op.inputs() if v.id in made}
        change = [0] * (len(ops) + 2)
        for value, i in last.items():
            change[made[value] + 1] += 1
            change[i + 1] -= 1
        self.width = [*itertools.accumulate(change)]
        self.tails: dict[tuple[Path, Path], int] = {}
        self.heads: dict[tuple[Path, Path], int] = {}

    def filled(self) -> list[Path]:
        """Paths of all ops; gaps between equal layers first, for they show where a layer ends."""
        paths = [self.known.get(i, self.outer) for i in range(len(self.ops))]
        gaps = [self.gap(*ends) for ends in itertools.pairwise([-1, *self.known, len(self.ops)])]
        for gap in sorted(gaps, key=lambda gap: not gap.parts_layers):
            cut = self.cut(gap, paths)
            paths[gap.begin + 1 : cut] = [gap.left] * (cut - gap.begin - 1)
            paths[cut : gap.end] = [gap.right] * (gap.end - cut)
        return paths

    def gap(self, begin: int, end: int) -> _Gap:
        before, after = self.known.get(begin, self.outer), self.known.get(end, self.outer)
        common = common_path([before, after])
        return _Gap(begin, end, before, after, layer_of(before, common), layer_of(after, common))

    def cut(self, gap: _Gap, paths: Sequence[Path]) -> int:
        """Position of the first op of `gap.right`."""
        begin, end = gap.begin + 1, gap.end
        if gap.left == gap.right:
            return end
        if gap.parts_layers:
            cut = self.narrowest(begin, end)
            self.tails.setdefault(gap.tail, cut - begin)
            self.heads.setdefault(gap.head, end - cut)
            return cut
        tail, head = self.tails.get(gap.tail), self.heads.get(gap.head)
        if tail is not None and begin + tail <= end:
            return begin + tail
        if head is not None and end - head >= begin:
            return end - head
        if end == len(self.ops):
            return self.leaving(gap, paths)
        return self.narrowest(begin, end)

    def narrowest(self, begin: int, end: int) -> int:
        """Position from `begin` to `end` passed by the fewest values.

        The last one in the forward pass, the first one in the backward pass: an elementwise op
        stays with the product before. Casts of weights stay with the product reading the weights.
        """
        backward = self.ops[0].backward
        first = backward and begin > 0
        places = range(max(begin, int(backward)), end + 1)
        cut = min(places, key=lambda i: (self.width[i], i if first else -i))
        while not first and cut > begin and self.is_still(self.ops[cut - 1]):
            cut -= 1
        return cut

    def is_still(self, op: Op) -> bool:
        return all(r.id in self.still for r in op.results)

    def leaving(self, gap: _Gap, paths: Sequence[Path]) -> int:
        """First position after a layer passed by no more values than the layer's begin."""
        begin = gap.begin
        while begin > 0 and paths[begin - 1][: len(gap.left)] == gap.left:
            begin -= 1
        places = range(gap.begin + 1, gap.end)
        return next((i for i in places if self.width[i] <= self.width[begin]), gap.end)
