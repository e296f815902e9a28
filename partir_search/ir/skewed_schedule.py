"""Rings: partitioning in space and time.

On two mesh axes r and c of size n an op can loop over three factors if it walks one of them in
time: one on r, one on c, one on their diagonal r~c, of which exactly one is summed. Its slice of
a factor is a dimension slice index (PrimePar, ASPLOS 2024): linear in the device's coordinates,
plus an offset that may change with the time, mod n. Every slice of the iteration space is done
once; every operand and result is tiled by two of the three and so lies on one device at any time.
Who sends what to whom follows from the table of offsets: what a device needs at one time is where
the table, or the layout before and after the ring, says that it is.

Which tables there are is the form of a ring:

  result  the sum is walked: operands pass, the result stays. Nothing is moved before or after.
  least   what is largest stays, be it an operand: then the factor that it has not is walked, and
          the result passes with its sums so far. One block has to go one place further, before or
          after. Fewer bytes where the result or an operand is much smaller than the rest.
  paper   PrimePar's own: a phase begins where the one before has left the blocks, and the last
          turn of the gradient's product brings it home.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from partir_search.ir.rule import NONE, Dims, OpRule

COORDINATES = ((1, 0), (0, 1), (1, 1))  # of the two axes and their diagonal, in (r, c)
RESULT, LEAST, PAPER = "result", "least", "paper"
FORMS = (RESULT, LEAST, PAPER)
HOME = -1  # the time before the first and after the last turn: blocks are where layouts say

Edge = tuple[int, int]  # source, target: positions along some axes jointly
Offsets = tuple[tuple[int, int, int], ...]  # per turn, of the slices on r, c and r~c


@dataclasses.dataclass(frozen=True, slots=True)
class Ring:
    """The table of one op's slices.

    Attributes:
      axes: the two axes and their diagonal, positions in the mesh.
      size: devices along each of them, and steps in time.
      factors: the factor that the op loops over on each of the three.
      summed: the one of the three that has the summed factor.
      offsets: per turn, the number added to the coordinate on each of the three.
      form: that the table is of.
    """

    axes: tuple[int, int, int]
    size: int
    factors: tuple[int, int, int]
    summed: int
    offsets: Offsets
    form: str = RESULT

    def slice_of(self, which: int, device: tuple[int, int], time: int) -> int:
        """The slice of the factor on one of the three that a device works on at a time."""
        (a, b), (r, c) = COORDINATES[which], device
        return (a * r + b * c + self.offset(which, time)) % self.size

    def offset(self, which: int, time: int) -> int:
        return 0 if time == HOME else self.offsets[time][which] % self.size

    def held(self, rule: OpRule, dims: Dims) -> tuple[int, ...]:
        """Positions of the axes, of the three, that tile an operand or result of factors `dims`."""
        return tuple(w for w, f in enumerate(self.factors) if rule.dim_of(dims, f) != NONE)

    def devices(self) -> list[tuple[int, int]]:
        """Coordinates in the order of joint positions."""
        return list(itertools.product(range(self.size), range(self.size)))

    def place(self, held: tuple[int, ...], time: int) -> tuple[int, ...]:
        """Tells apart where the blocks of an operand or result are at a time."""
        return tuple(self.offset(w, time) for w in held)

    def pairs(self, held: tuple[int, ...], before: int, after: int) -> tuple[Edge, ...]:
        """Source and target of each block of an operand between two times; () if blocks stay."""
        if self.place(held, before) == self.place(held, after):
            return ()
        devices = self.devices()
        holder = {self._block(held, d, before): i for i, d in enumerate(devices)}
        return tuple((holder[self._block(held, d, after)], i) for i, d in enumerate(devices))

    def _block(self, held: tuple[int, ...], device: tuple[int, int], time: int) -> tuple[int, ...]:
        return tuple(self.slice_of(w, device, time) for w in held)

    def faults(self, rule: OpRule) -> list[str]:
        """Faults of the table: a slice not worked on once, an operand held twice."""
        found, devices, times = [], self.devices(), range(self.size)
        done = {self._block((0, 1, 2), d, t) for d in devices for t in times}
        if len(done) != self.size**3:
            found.append("some slice of the op is worked on more than once, and some never")
        operands = [f"operand {i}" for i in range(len(rule.operands))]
        results = [f"result {i}" for i in range(len(rule.results))]
        places = zip(operands + results, (*rule.operands, *rule.results), strict=True)
        for name, dims in places:
            held = self.held(rule, dims)
            for t in times:
                if len({self._block(held, d, t) for d in devices}) != len(devices):
                    found.append(f"{name} is replicated or missing at step {t}")
                    break
        if any(self.summed in self.held(rule, dims) for dims in rule.results):
            found.append("the summed factor is a dim of a result")
        return found

    def index(self, which: int, names: tuple[str, str]) -> str:
        """The slice as an expression in `%r`, `%c` and `%t`."""
        parts = [f"%{n}" for n, a in zip(names, COORDINATES[which], strict=True) if a]
        offsets = [self.offset(which, t) for t in range(self.size)]
        steps = [(o - offsets[0]) % self.size for o in offsets]
        if steps == list(range(self.size)):
            parts += ["%t", *([str(offsets[0])] if offsets[0] else [])]
        elif any(steps):
            parts += [f"{offsets}[%t]"]
        elif offsets[0]:
            parts += [str(offsets[0])]
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)}) mod {self.size}"


def ring_of(
    rule: OpRule,
    axes: tuple[int, int, int],
    size: int,
    factors: tuple[int, int, int],
    form: str,
    nbytes: Sequence[int],
) -> Ring:
    """The ring of an op in a form.

    Args:
      nbytes: sizes of the blocks of operands and, last, the result.
    """
    summed = next(w for w, f in enumerate(factors) if rule.reducers[f])
    plain = Ring(axes, size, factors, summed, _walk(size, summed, 0), form)
    if form == PAPER:
        return dataclasses.replace(plain, offsets=_paper(size, summed))
    held = [plain.held(rule, dims) for dims in (*rule.operands, *rule.results)]
    if form != LEAST or len(held) != 3 or any(len(h) != 2 for h in held):
        return plain
    result, cost = nbytes[2], {2: (size - 1) * (nbytes[0] + nbytes[1])}
    for stays, passes in ((0, 1), (1, 0)):
        cost[stays] = (size - 1) * (nbytes[passes] + result) + min(nbytes[passes], result)
    stays = min((2, 0, 1), key=lambda i: cost[i])
    if stays == 2:
        return plain
    # Either the operand that passes goes one place further before the first turn, or the result
    # after the last one.
    (walked,) = {0, 1, 2}.difference(held[stays])
    return dataclasses.replace(plain, offsets=_walk(size, walked, int(nbytes[1 - stays] < result)))


def _walk(size: int, walked: int, first: int) -> Offsets:
    each = (tuple((first + t) * (w == walked) for w in range(3)) for t in range(size))
    return tuple((r, c, d) for r, c, d in each)


def _paper(size: int, summed: int) -> Offsets:
    """The forward pass sums on the diagonal, the backward pass on c, gradients on r."""
    if summed == 2:
        return tuple((0, 0, t) for t in range(size))
    if summed == 1:
        return tuple((0, t, -1) for t in range(size))
    last = [int(t == size - 1) for t in range(size)]
    return tuple((t, e - 1, e - 1) for t, e in enumerate(last))
