"""Rings: products partitioned in space and time.

On two mesh axes r and c of size n an op can loop over three factors if one of them is sliced over
time: one factor on r, one on c, one on their diagonal r~c, exactly one of them summed. The slice of
a factor on a device is its dimension slice index (PrimePar, ASPLOS 2024): linear in the device's
coordinates, plus an offset per time step, mod n. Every slice of the iteration space is computed
once. Every operand and result is tiled by two of the three factors and lies on one device at any
time. Sends between devices follow from the table of offsets, with the layouts before and after the
ring as first and last entries.

The schedule of a ring is one of:

  output_stationary  The summed factor is sliced over time, operands pass between devices, the
                     result stays. No transfers before or after.
  min_traffic        The largest array stays, possibly an operand. Then the factor absent from
                     that array is sliced over time, and the result passes with its sums. One block
                     moves one place further before or after. Fewer bytes if the result or an
                     operand is much smaller.
  primepar           A phase begins with the blocks on the devices of the phase before, and the
                     last turn of the gradient's product returns the gradient to its layout.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from partir_search.ir.rule import NONE, Dims, OpRule

COORDINATES = ((1, 0), (0, 1), (1, 1))  # coefficients of (r, c) on r, c and r~c
OUTPUT_STATIONARY, MIN_TRAFFIC, PRIMEPAR = "output_stationary", "min_traffic", "primepar"
FORMS = (OUTPUT_STATIONARY, MIN_TRAFFIC, PRIMEPAR)
FORMER_FORMS = {"result": OUTPUT_STATIONARY, "least": MIN_TRAFFIC, "paper": PRIMEPAR}
HOME = -1  # the time before the first and after the last turn: blocks are in their layouts

Edge = tuple[int, int]  # source, target: joint positions along some axes
Offsets = tuple[tuple[int, int, int], ...]  # per turn, offsets of the slices on r, c and r~c


@dataclasses.dataclass(frozen=True, slots=True)
class Ring:
    """Ring schedule of one op: a table of slices.

    Attributes:
      axes: positions in the mesh of the two axes and their diagonal.
      size: devices along each axis; number of turns.
      factors: factor looped over on each of the three.
      summed: index among the three of the summed factor's axis.
      offsets: per turn, the number added to the coordinate on each of the three.
      form: one of `FORMS`.
    """

    axes: tuple[int, int, int]
    size: int
    factors: tuple[int, int, int]
    summed: int
    offsets: Offsets
    form: str = OUTPUT_STATIONARY

    def slice_of(self, which: int, device: tuple[int, int], time: int) -> int:
        """Slice of the factor on axis number `which` of the three, by device and time."""
        (a, b), (r, c) = COORDINATES[which], device
        return (a * r + b * c + self.offset(which, time)) % self.size

    def offset(self, which: int, time: int) -> int:
        return 0 if time == HOME else self.offsets[time][which] % self.size

    def indices(self, rule: OpRule, dims: Dims) -> tuple[int, ...]:
        """Indices among the three of the axes that tile an operand or result of factors `dims`."""
        return tuple(w for w, f in enumerate(self.factors) if rule.dim_of(dims, f) != NONE)

    def devices(self) -> list[tuple[int, int]]:
        """(r, c) coordinates in the order of joint positions."""
        return list(itertools.product(range(self.size), range(self.size)))

    def place(self, indices: tuple[int, ...], time: int) -> tuple[int, ...]:
        """Offsets of the blocks of an operand or result at a time; equal if no block moved."""
        return tuple(self.offset(w, time) for w in indices)

    def pairs(self, indices: tuple[int, ...], before: int, after: int) -> tuple[Edge, ...]:
        """(source, target) of each block of an operand between two times; () if blocks stay."""
        if self.place(indices, before) == self.place(indices, after):
            return ()
        devices = self.devices()
        holder = {self._block(indices, d, before): i for i, d in enumerate(devices)}
        return tuple((holder[self._block(indices, d, after)], i) for i, d in enumerate(devices))

    def _block(
        self, indices: tuple[int, ...], device: tuple[int, int], time: int
    ) -> tuple[int, ...]:
        return tuple(self.slice_of(w, device, time) for w in indices)

    def faults(self, rule: OpRule) -> list[str]:
        """Messages on faults: a slice not computed once, an operand replicated or missing."""
        found, devices, times = [], self.devices(), range(self.size)
        done = {self._block((0, 1, 2), d, t) for d in devices for t in times}
        if len(done) != self.size**3:
            found.append("some slice of the op is worked on more than once, and some never")
        operands = [f"operand {i}" for i in range(len(rule.operands))]
        results = [f"result {i}" for i in range(len(rule.results))]
        places = zip(operands + results, (*rule.operands, *rule.results), strict=True)
        for name, dims in places:
            indices = self.indices(rule, dims)
            for t in times:
                if len({self._block(indices, d, t) for d in devices}) != len(devices):
                    found.append(f"{name} is replicated or missing at step {t}")
                    break
        if any(self.summed in self.indices(rule, dims) for dims in rule.results):
            found.append("the summed factor is a dim of a result")
        return found

    def index(self, which: int, names: tuple[str, str]) -> str:
        """Slice on axis number `which` of the three as an expression in `%r`, `%c` and `%t`.

        Args:
          names: names of the axes r and c.
        """
        terms = [f"%{n}" for n, a in zip(names, COORDINATES[which], strict=True) if a]
        offsets = [self.offset(which, t) for t in range(self.size)]
        steps = [(o - offsets[0]) % self.size for o in offsets]
        if steps == list(range(self.size)):
            terms += ["%t", *([str(offsets[0])] if offsets[0] else [])]
        elif any(steps):
            terms += [f"{offsets}[%t]"]
        elif offsets[0]:
            terms += [str(offsets[0])]
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) mod {self.size}"


def ring_of(
    rule: OpRule,
    axes: tuple[int, int, int],
    size: int,
    factors: tuple[int, int, int],
    form: str,
    nbytes: Sequence[int],
) -> Ring:
    """Ring schedule of an op.

    Args:
      form: one of `FORMS`.
      nbytes: bytes of the blocks of operands and, last, the result.
    """
    summed = next(w for w, f in enumerate(factors) if rule.reducers[f])
    plain = Ring(axes, size, factors, summed, _one_varying(size, summed, 0), form)
    if form == PRIMEPAR:
        return dataclasses.replace(plain, offsets=_primepar(size, summed))
    indices = [plain.indices(rule, dims) for dims in (*rule.operands, *rule.results)]
    if form != MIN_TRAFFIC or len(indices) != 3 or any(len(h) != 2 for h in indices):
        return plain
    result, cost = nbytes[2], {2: (size - 1) * (nbytes[0] + nbytes[1])}
    for stays, passes in ((0, 1), (1, 0)):
        cost[stays] = (size - 1) * (nbytes[passes] + result) + min(nbytes[passes], result)
    stays = min((2, 0, 1), key=lambda i: cost[i])
    if stays == 2:
        return plain
    # The passing operand moves one place further before the first turn, or the result one place
    # after the last turn, whichever is smaller.
    (varying,) = {0, 1, 2}.difference(indices[stays])
    return dataclasses.replace(
        plain, offsets=_one_varying(size, varying, int(nbytes[1 - stays] < result))
    )


def _one_varying(size: int, varying: int, first: int) -> Offsets:
    each = (tuple((first + t) * (w == varying) for w in range(3)) for t in range(size))
    return tuple((r, c, d) for r, c, d in each)


def _primepar(size: int, summed: int) -> Offsets:
    """Offsets of PrimePar.

    Sums are on the diagonal in the forward pass, on c or r in the backward pass.
    """
    if summed == 2:
        return tuple((0, 0, t) for t in range(size))
    if summed == 1:
        return tuple((0, t, -1) for t in range(size))
    last = [int(t == size - 1) for t in range(size)]
    return tuple((t, e - 1, e - 1) for t, e in enumerate(last))
