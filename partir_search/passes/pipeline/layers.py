"""Scans over layers, and their operands by kind."""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Op, Operand, Region, Value


@dataclasses.dataclass(frozen=True, slots=True)
class Layers:
    """A scan over layers.

    Attributes:
      op: the scan.
    """

    op: Op

    @property
    def region(self) -> Region:
        """One layer."""
        return self.op.regions[0]

    @property
    def count(self) -> int:
        """Number of layers."""
        return int(self.op.params["length"])

    @property
    def reverse(self) -> bool:
        """True if the last layer runs first."""
        return bool(self.op.params["reverse"])

    @property
    def consts(self) -> tuple[Operand, ...]:
        """Operands read by every layer."""
        return self.op.operands[: self._first]

    @property
    def carry(self) -> tuple[Operand, ...]:
        """Operands passed from layer to layer, before the first one."""
        return self.op.operands[self._first : self._first + self._carries]

    @property
    def stacked(self) -> tuple[Operand, ...]:
        """Operands with a row for each layer."""
        return self.op.operands[self._first + self._carries :]

    @property
    def read(self) -> frozenset[int]:
        """Positions of the stacked operands that a layer reads."""
        read = {v for op in self.region.ops for _, v in op.inputs()} | set(self.region.results)
        args = enumerate(self.region.args[self._first + self._carries :])
        return frozenset(i for i, x in args if x in read)

    @property
    def finals(self) -> tuple[Value, ...]:
        """Values passed from layer to layer, after the last one."""
        return self.op.results[: self._carries]

    @property
    def stacks(self) -> tuple[Value, ...]:
        """Results with a row for each layer."""
        return self.op.results[self._carries :]

    @property
    def _first(self) -> int:
        return int(self.op.params["num_consts"])

    @property
    def _carries(self) -> int:
        return int(self.op.params["num_carry"])
