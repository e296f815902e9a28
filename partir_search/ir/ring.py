"""Rings: partitioning in space and time.

On two mesh axes r and c of size n an op can loop over three factors if it walks one of them in
time: one on r, one on c, one on their diagonal r~c, of which exactly one is summed. Its slice of
a factor is a dimension slice index (PrimePar, ASPLOS 2024): linear in the device's coordinates,
plus the time for the factor that is walked, mod n. Every slice of the iteration
space is then done once; every operand is tiled by two of the three and so lies on one device at
any time; the result stays where it is. Who sends what to whom between two steps follows: at time
t + 1 a device needs what another one holds at time t.
"""

from __future__ import annotations

import dataclasses
import itertools

from partir_search.ir.rule import NONE, Dims, OpRule

COORDINATES = ((1, 0), (0, 1), (1, 1))  # of the two axes and their diagonal, in (r, c)

Edge = tuple[int, int]  # source, target: positions along some axes jointly


@dataclasses.dataclass(frozen=True, slots=True)
class Ring:
    """The table of one op's slices.

    Attributes:
      axes: the two axes and their diagonal, positions in the mesh.
      size: devices along each of them, and steps in time.
      factors: what the op loops over on each of the three.
      walked: which of the three has the summed factor.
    """

    axes: tuple[int, int, int]
    size: int
    factors: tuple[int, int, int]
    walked: int

    def slice_of(self, which: int, device: tuple[int, int], time: int) -> int:
        """The slice of the factor on one of the three that a device works on at a time."""
        (a, b), (r, c) = COORDINATES[which], device
        return (a * r + b * c + (time if which == self.walked else 0)) % self.size

    def held(self, rule: OpRule, dims: Dims) -> tuple[int, ...]:
        """Which of the three tile an operand or result of factors `dims`."""
        return tuple(w for w, f in enumerate(self.factors) if rule.dim_of(dims, f) != NONE)

    def devices(self) -> list[tuple[int, int]]:
        """Coordinates in the order of joint positions."""
        return list(itertools.product(range(self.size), range(self.size)))

    def pairs(self, held: tuple[int, ...]) -> tuple[Edge, ...]:
        """Who sends its block of an operand to whom from any step to the next; () if it stays."""
        devices = self.devices()
        place = {self._block(held, d, 0): i for i, d in enumerate(devices)}
        found = tuple((place[self._block(held, d, 1)], i) for i, d in enumerate(devices))
        return () if all(s == t for s, t in found) else found

    def _block(self, held: tuple[int, ...], device: tuple[int, int], time: int) -> tuple[int, ...]:
        return tuple(self.slice_of(w, device, time) for w in held)

    def faults(self, rule: OpRule) -> list[str]:
        """What is wrong with the table: a sum not covered once, an operand held twice."""
        found, devices = [], self.devices()
        for d in devices:
            steps = {self.slice_of(self.walked, d, t) for t in range(self.size)}
            if len(steps) != self.size:
                found.append(f"device {d} does not meet every slice of the sum once")
        operands = [f"operand {i}" for i in range(len(rule.operands))]
        results = [f"result {i}" for i in range(len(rule.results))]
        places = zip(operands + results, (*rule.operands, *rule.results), strict=True)
        for name, dims in places:
            held = self.held(rule, dims)
            for t in range(self.size):
                if len({self._block(held, d, t) for d in devices}) != len(devices):
                    found.append(f"{name} is replicated or missing at step {t}")
                    break
        if any(self.walked in self.held(rule, dims) for dims in rule.results):
            found.append("the walked factor is a dim of a result")
        return found

    def index(self, which: int, names: tuple[str, str]) -> str:
        """The slice as an expression in `%r`, `%c` and `%t`."""
        parts = [f"%{n}" for n, a in zip(names, COORDINATES[which], strict=True) if a]
        parts += ["%t"] if which == self.walked else []
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)}) mod {self.size}"
