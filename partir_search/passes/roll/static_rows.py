"""Rows of arrays at indices known at planning time, as static slices and pads.

``jax.checkpoint(block)(h, params, i)`` traces `i`: ``params[i]`` is a dynamic slice at a
known index, ``jnp.take(params, i, axis=0)`` a gather; their gradients write into zeros.
"""

from __future__ import annotations

from partir_search.ir.core import Literal, Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll.row_ops import dim_of_row
from partir_search.passes.views.constants import SmallConstants
from partir_search.passes.views.updates import slice_at, update_at
from partir_search.rules.construct import NewOp, padded, reshaped, sliced, zero
from partir_search.rules.registry import role_of

_INDEXED = frozenset({Role.DYNAMIC_SLICE, Role.DYNAMIC_UPDATE, Role.GATHER, Role.SCATTER})


def with_static_rows(module: Module) -> Module:
    """Module with static slices and pads for rows at known indices; the same one without any."""
    if _INDEXED.isdisjoint(map(role_of, module.ops)):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first row at a known index.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)
        arrays = {module.values[i]: array for i, array in module.constants.items()}
        self._known = SmallConstants(arrays)
        self._zeros = set[Value]()

    def ops(self, old: Region) -> list[Op]:
        done: list[Op] = []
        for op in old.ops:
            self._known.enter(op)
            self._known.follow(op)
            role = role_of(op)
            if role is Role.BROADCAST and self._is_zero(op.operands[0]):
                self._zeros.update(op.results)
            made = self._row(op) if role in _INDEXED else ()
            self.found |= bool(made)
            done += made or [self.op(op)]
        return done

    def _is_zero(self, x: Operand) -> bool:
        return x.is_zero() if isinstance(x, Literal) else x in self._zeros

    def _row(self, op: Op) -> list[Op]:
        """A slice, or a pad by zeros, in place of an op on one row; [] for any further op."""
        found = slice_at(op, self._known)
        if found is not None:
            starts, sizes = found
            if dim_of_row(sizes, op.operands[0].type.shape) is None:
                return []
            ends = [s + n for s, n in zip(starts, sizes, strict=True)]
            return self._both(op, sliced(self.operand(op.operands[0]), starts, ends))
        update = update_at(op, self._known)
        if update is None or (update.combine is not None and not update.adds):
            return []
        shape, x = op.results[0].type.shape, update.update
        sizes = list(x.type.shape)
        for d in update.missing:
            sizes.insert(d, 1)
        if not self._is_zero(update.into) or dim_of_row(sizes, shape) is None:
            return []
        counts = zip(update.starts, sizes, shape, strict=True)
        config = [(s, n - s - m, 0) for s, m, n in counts]
        row = reshaped(self.operand(x), sizes)
        (result,) = op.results
        value = Value(-1, row.type, self._names(f"{result.name}_row"))
        pad = padded(value, zero(result.type), config)
        return [row.at(op, value), pad.at(op, self.value(result))]

    def _both(self, op: Op, row: NewOp) -> list[Op]:
        """A row, and the row without the dims missing in the op's result."""
        (result,) = op.results
        if row.type.shape == result.type.shape:
            return [row.at(op, self.value(result))]
        value = Value(-1, row.type, self._names(f"{result.name}_row"))
        return [row.at(op, value), reshaped(value, result.type.shape).at(op, self.value(result))]
