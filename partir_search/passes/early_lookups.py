"""Look-ups within rows before the elementwise functions of the array.

A loss reads one log-probability of each row: ``jnp.take_along_axis(log_softmax(scores), labels)``.
XLA:TPU fuses no function of the array with a look-up (`XlaTraits.fuses_lookups`), and stores all
log-probabilities in f32 for the read. With the look-up in the scores, of the product's own type,
only elements of labels are widened, shifted and scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from partir_search.ir.analysis.readers import readers_of
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.construct import like, reshaped
from partir_search.rules.registry import RuleTable, role_of

_FUSED = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION})


def with_early_lookups(module: Module) -> Module:
    """Module with early look-ups within rows, at every depth; the same one without any."""
    if not any(role_of(op) is Role.GATHER and _indexed_dim(op) is not None for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


@dataclasses.dataclass(frozen=True, slots=True)
class _Function:
    """An elementwise op with one operand that varies along the indexed dim.

    Attributes:
      op: the op, with one result.
      at: position of the operand.
      constant: by position of any further array, the array without the indexed dim: a value, and
        the dim of the operand for each of the value's.
    """

    op: Op
    at: int
    constant: Mapping[int, tuple[Value, tuple[int, ...]]]

    @property
    def source(self) -> Value:
        """The operand that varies along the indexed dim."""
        found = self.op.operands[self.at]
        assert isinstance(found, Value)
        return found


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first rewritten look-up.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._rules = RuleTable()
        self._names = FreshNames(module)

    def ops(self, old: Region) -> list[Op]:
        makers = {r: op for op in old.ops for r in op.results}
        lookups = [op for op in old.ops if role_of(op) is Role.GATHER]
        chains = {op: self._functions(op, makers) for op in lookups if op.operands[0] in makers}
        users = readers_of(old) if any(chains.values()) else {}
        found = list[Op]()
        for op in old.ops:
            chain = chains.get(op)
            functions = self._worthwhile(op, chain, users) if chain else ()
            found += self._early(op, functions) if functions else [self.op(op)]
        return found

    def _functions(self, lookup: Op, makers: Mapping[Value, Op]) -> list[_Function]:
        """Elementwise functions behind the array of a look-up within rows, the last one first."""
        dim, found = _indexed_dim(lookup), list[_Function]()
        x = lookup.operands[0]
        while dim is not None and isinstance(x, Value) and x in makers:
            function = self._function(makers[x], dim, makers)
            if function is None:
                break
            found.append(function)
            x = function.source
        return found

    def _function(self, op: Op, dim: int, makers: Mapping[Value, Op]) -> _Function | None:
        if op.regions or op.effect or len(op.results) != 1:
            return None
        rule = self._rules(op)
        if rule.kind is not Kind.ELEMENTWISE or not rule.elementwise:
            return None
        shape, varying, constant = op.results[0].type.shape, list[int](), {}
        for i, x in op.inputs():
            if not x.type.shape:
                continue
            without = _without(x, dim, makers)
            if len(x.type.shape) == len(shape) and without is not None:
                constant[i] = without
            elif x.type.shape == shape:
                varying.append(i)
            else:
                return None
        if len(varying) != 1 or not _keeps_nan(op, varying[0], rule):
            return None
        return _Function(op, varying[0], constant)

    def _worthwhile(
        self, lookup: Op, functions: Sequence[_Function], users: Mapping[Value, Sequence[Op | None]]
    ) -> Sequence[_Function]:
        """Functions to compute after a look-up, the last one first.

        Further readers of each result compute the function in their own kernels, and the operand of
        the first function is the narrowest array.
        """
        best, reads = 0, lookup
        width = lookup.operands[0].type.itemsize
        for n, function in enumerate(functions):
            (result,) = function.op.results
            others = [user for user in users[result] if user is not reads]
            if not all(user and self._computes(user) for user in others):
                break
            reads = function.op
            if function.source.type.itemsize <= width:
                best, width = n + 1, function.source.type.itemsize
        return functions[:best]

    def _computes(self, user: Op) -> bool:
        """True for an op whose kernel computes elementwise functions of its operands."""
        return not user.regions and self._rules(user).kind in _FUSED

    def _early(self, lookup: Op, functions: Sequence[_Function]) -> list[Op]:
        """A look-up in the first function's operand, and the functions of its result."""
        self.found = True
        (result,) = lookup.results
        new, source = self.op(lookup), self.operand(functions[-1].source)
        kind = dataclasses.replace(source.type, shape=result.type.shape)
        read = Value(-1, kind, self._names(result.name))
        operands = (source, *new.operands[1:])
        found = [dataclasses.replace(new, operands=operands, results=(read,), key=None)]
        for function in reversed(functions):
            operands = tuple(
                self._at_rows(lookup, function, i, x, read, found)
                for i, x in enumerate(function.op.operands)
            )
            written = like(function.op, operands, result.type.shape)
            name = self._names(function.op.results[0].name)
            last = function is functions[0]
            read = self.value(result) if last else Value(-1, written.type, name)
            found.append(written.at(lookup, read))
        return found

    def _at_rows(
        self, lookup: Op, function: _Function, i: int, x: Operand, read: Value, ops: list[Op]
    ) -> Operand:
        """Operand `i` of a function, at the rows of a look-up; writes a reshape where needed."""
        if i == function.at:
            return read
        if i not in function.constant:
            return self.operand(x)
        value, dims = function.constant[i]
        shape = [1] * len(read.type.shape)
        for size, d in zip(value.type.shape, dims, strict=True):
            if size > 1:
                shape[_place(lookup, d)] = size
        made = self.value(value)
        if tuple(shape) == value.type.shape:
            return made
        moved = reshaped(made, shape)
        ops.append(moved.at(lookup, Value(-1, moved.type, self._names(value.name))))
        return ops[-1].results[0]


def _indexed_dim(lookup: Op) -> int | None:
    """Dim of the array indexed by a look-up within rows; None for any further look-up.

    All further dims are batching dims, in the order of the dims of the indices.
    """
    dn = lookup.params["dimension_numbers"]
    indexed, window = tuple(dn.start_index_map), tuple(dn.offset_dims)
    one = len(indexed) == 1 and lookup.params["slice_sizes"][indexed[0]] == 1
    if not one or len(window) + len(dn.collapsed_slice_dims) != 1:
        return None
    batching = tuple(dn.operand_batching_dims)
    places = [_place(lookup, d) for d in sorted(batching)]
    whole = len(batching) + 1 == len(lookup.operands[0].type.shape)
    fill = lookup.params.get("fill_value")
    usual = fill is None or bool(np.isnan(fill))
    return int(indexed[0]) if whole and usual and places == sorted(places) else None


def _keeps_nan(op: Op, at: int, rule: OpRule) -> bool:
    """True if NaN in operand `at`, as look-ups read out of bounds, is NaN in the result."""
    inexact = all(jnp.issubdtype(x.type.dtype, np.inexact) for x in (op.operands[at], *op.results))
    if not inexact or role_of(op) is Role.SELECTION:
        return False
    return len(op.inputs()) == 1 or any(at in operands for operands in rule.linear)


def _place(lookup: Op, dim: int) -> int:
    """Dim of the result of a look-up within rows, for a batching dim of the array."""
    dn = lookup.params["dimension_numbers"]
    at = dn.start_indices_batching_dims[tuple(dn.operand_batching_dims).index(dim)]
    rank = len(lookup.results[0].type.shape)
    return [d for d in range(rank) if d not in dn.offset_dims][int(at)]


def _without(
    x: Value, dim: int, makers: Mapping[Value, Op]
) -> tuple[Value, tuple[int, ...]] | None:
    """Array without a dim of equal elements, and the dim of `x` for each dim of the array.

    None if elements differ along the dim.
    """
    maker = makers.get(x)
    if maker is not None and role_of(maker) is Role.BROADCAST and maker.operands:
        source, dims = maker.operands[0], tuple(maker.params["broadcast_dimensions"])
        if isinstance(source, Value):
            sizes = dict(zip(dims, source.type.shape, strict=True))
            if sizes.get(dim, 1) == 1:
                return source, dims
    shape = x.type.shape
    return (x, tuple(range(len(shape)))) if dim < len(shape) and shape[dim] == 1 else None
