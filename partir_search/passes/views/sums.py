"""Sums of views: gradients of values read by several shifted reads.

The gradient of a padded array is a sum of padded arrays, and the gradient of the padding reads
slices of the sum. A slice of a sum is the sum of slices of its terms, and each term is a view of
the array before padding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.core import Op, Shape, Value
from partir_search.ir.role import Role
from partir_search.passes.views.crops import Crops
from partir_search.passes.views.view import View, view_of, without_overlap, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import added
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import FEW

MAX_TERMS = 32
_READS = (Role.SLICE, Role.PADDING, Role.REVERSAL)


class Sums:
    """Sums of views in one region."""

    def __init__(self, crops: Crops, makers: Mapping[Value, Op]) -> None:
        """Sums of a region; `makers` are the ops making its values, as far as views."""
        self._crops, self._makers = crops, makers
        self._terms: dict[Value, list[View]] = {}
        self._read: set[Value] = set()  # views of sums, and sums of these

    def of(self, x: Value) -> list[View]:
        """Returns the terms of a value; [] for no sum."""
        return self._terms.get(x, [])

    def add(self, op: Op, terms: Sequence[View]) -> list[View]:
        """Records a sum, and returns its terms with disjoint terms of one base merged."""
        found: list[View] = []
        for term in terms:
            for i, other in enumerate(found):
                both = without_overlap(other, term)
                if both is not None:
                    found[i] = both
                    break
            else:
                found.append(term)
        if len(found) <= MAX_TERMS:
            self._terms[op.results[0]] = found
            if any(x in self._read for x in op.operands):
                self._read.add(op.results[0])
        return found

    def record(self, x: Value, terms: Sequence[View]) -> None:
        """Records the terms of a value that is no sum in the program."""
        self._terms[x] = list(terms)

    def is_read(self, x: Value) -> bool:
        """True for a view of a sum, or a sum of views of sums."""
        return x in self._read

    def forget(self, x: Value) -> None:
        """Drops the record of a sum; the value is read as itself."""
        self._terms.pop(x, None)
        self._read.discard(x)

    def read(self, op: Op) -> bool:
        """Records a view of a sum as a sum of views; False if the op is no view of a sum."""
        terms = [view_of(op, lambda _, t=term: t) for term in self._known(op)]  # type: ignore[misc]
        if kept := kept_sum(op, self._makers):
            terms = list(_each(self.of(kept[0]), *kept))
        if not terms or any(t is None or not zeros_only(t) for t in terms):
            return False
        self._terms[op.results[0]] = [t for t in terms if t is not None]
        self._read.add(op.results[0])
        return True

    def _known(self, op: Op) -> list[View]:
        x = op.operands[0] if role_of(op) in _READS else None
        return self._terms.get(x, []) if isinstance(x, Value) else []

    def write(self, writer: Writer, op: Op) -> bool:
        """Writes the result of an op that reads a sum of views as the sum of its terms.

        Returns:
          False, with no op written, if the op reads no sum or a term is no small shift.
        """
        (result,) = op.results
        terms = self.of(result) if result in self._read else []
        if not terms or (len(terms) == 1 and all(m is None for m in terms[0].maps)):
            return False
        if not all(_suits(t) or self._crops.maker(t.base) is not None for t in terms):
            return False
        begin, alone = writer.mark(), result if len(terms) == 1 else None
        made: Value | None = None
        for i, term in enumerate(terms):
            value = self._term(writer, op, term, alone)
            if value is None:
                writer.rollback(begin)
                return False
            last = result if i == len(terms) - 1 else None
            made = value if made is None else writer.put(op, added(made, value), last)
        return True

    def _term(self, writer: Writer, op: Op, term: View, into: Value | None) -> Value | None:
        if all(m is None for m in term.maps):
            return term.base
        if self._crops.maker(term.base) is not None:
            return self._crops.write(writer, op, term, into)
        return writer.view(op, term, into)


def kept_sum(op: Op, makers: Mapping[Value, Op]) -> tuple[Value, int] | None:
    """Returns (x, dim) if `op` ends the sum of a few elements of `x` along a dim, kept with extent
    1: the gradient of `jnp.repeat`, as in padding by the outermost element.
    """
    chain = [op]
    for role in (Role.SUM, Role.RESHAPE):
        x = chain[-1].operands[0]
        made = makers.get(x) if isinstance(x, Value) else None
        if role_of(op) is not Role.BROADCAST or made is None or role_of(made) is not role:
            return None
        chain.append(made)
    _, total, wide = chain
    x, shape = wide.operands[0], op.results[0].type.shape
    if not isinstance(x, Value) or len(x.type.shape) != len(shape):
        return None
    before = x.type.shape
    if math.prod(shape) != math.prod(total.results[0].type.shape):
        return None
    summed = [d for d, (n, m) in enumerate(zip(before, shape, strict=True)) if n != m]
    if summed != _longer(wide.results[0].type.shape, before, total.params["axes"]):
        return None
    dim = summed[0] if summed else before.index(1) if 1 in before else None
    few = len(summed) < 2 and dim is not None and before[dim] <= FEW
    return (x, dim) if few and dim is not None else None


def _longer(wide: Shape, shape: Shape, axes: Sequence[int]) -> list[int]:
    """Returns dims of `shape` for the axes of a reshaped array longer than 1."""
    ordered = iter(d for d, n in enumerate(shape) if n != 1)
    dims = {a: next(ordered, -1) for a, n in enumerate(wide) if n != 1}
    return sorted(dims[a] for a in axes if a in dims)


def _each(terms: Sequence[View], x: Value, dim: int) -> Iterator[View]:
    """Yields each element of a dim of each term, without elements that are zero."""
    for term, at in itertools.product(terms, range(x.type.shape[dim])):
        view = term.mapped(dim, lambda s, at=at: s[at : at + 1])  # type: ignore[misc]
        if view.sources(dim)[0] >= 0:
            yield view


def _suits(term: View) -> bool:
    """True if a term shifts its base a little, without a mixed boundary."""
    shifts = term.shifts()
    return shifts is not None and all(
        f.is_local and not (f.has_boundary and "" in (f.below, f.above)) for f in shifts.values()
    )
