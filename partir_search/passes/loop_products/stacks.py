"""Values of a scan's body to stack for products outside of the scan."""

from __future__ import annotations

from collections.abc import Iterable

from partir_search.ir.core import Value
from partir_search.passes.loop_products.body import Body


class Stacks:
    """Values to stack, within a budget.

    Attributes:
      values: the values, in order.
      left: bytes of an iteration's rows left of the budget.
    """

    def __init__(self, body: Body, budget: int) -> None:
        self._body = body
        self.values: dict[Value, None] = {}
        self.left = budget

    def add(self, values: Iterable[Value], further: int = 0, worth: int | None = None) -> bool:
        """Adds the stacks from which `values` can be computed outside.

        Args:
          further: bytes of the budget taken beside the new rows.
          worth: bytes of an iteration worth the new rows; None for any number.

        Returns:
          False, without new stacks, if the rows take more bytes than `worth` or the budget has.
        """
        roots = [self._root(x) for x in values if not self._body.derives(x, self.values)]
        new = dict.fromkeys(roots)
        size = sum(x.type.nbytes for x in new)
        if size + further > self.left or (worth is not None and size > worth):
            return False
        self.values.update(new)
        self.left -= size + further
        return True

    def _root(self, x: Value) -> Value:
        """A value of at most as many bytes from which `x` can be computed outside."""
        body = self._body
        while (op := body.makers.get(x)) is not None and body.is_cheap(op):
            varying = [v for _, v in op.inputs() if not body.derives(v, self.values)]
            if len(varying) != 1 or varying[0].type.nbytes > x.type.nbytes:
                break
            x = varying[0]
        return x
