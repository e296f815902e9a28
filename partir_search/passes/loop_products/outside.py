"""Programs outside of a scan, for all iterations at once, of ops of the scan's body."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.from_jaxpr import read_module
from partir_search.ir.interpreter import run_whole
from partir_search.ir.role import Role
from partir_search.ir.run_region import run_region
from partir_search.passes.batched import MARK, Grafter
from partir_search.passes.loop_products.body import Body
from partir_search.rules.registry import RULES, role_of
from partir_search.rules.unruled import UNRULED


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """A carry as a linear function of sums over all iterations.

    Attributes:
      number: of the carry.
      terms: values of an iteration added to the carry.
      products: by result, products added up by a product of the stacks of both operands.
      rows: values added up over a stack.
      linear: ops from `products` and `rows` to `terms`, in order.
      constants: operands of `linear` equal in all iterations.
    """

    number: int
    terms: tuple[Value, ...]
    products: Mapping[Value, Op]
    rows: tuple[Value, ...]
    linear: tuple[Op, ...]
    constants: tuple[Value, ...]

    @property
    def stacked(self) -> list[Value]:
        """Values of an iteration whose stacks are read."""
        return [*self.rows, *(x for op in self.products.values() for _, x in op.inputs())]


class Outside:
    """Writer of programs outside of one scan."""

    def __init__(
        self,
        module: Module,
        body: Body,
        stacks: Mapping[Value, Value],
        fresh: Callable[[str], str],
        is_zeros: Callable[[Operand], bool],
    ) -> None:
        """A writer of programs with ops of `body`.

        Args:
          stacks: by value of an iteration, the stack to read outside.
          fresh: an unused name of a value, from a stem.
          is_zeros: True for an operand of the scan known to be zeros.
        """
        self._module, self._body, self._fresh = module, body, fresh
        self._stack_of, self._is_zeros = stacks, is_zeros
        self.constants: dict[int, tuple[Value, Any]] = {}

    def write(
        self, rows: Sequence[Value], totals: Sequence[Total] = ()
    ) -> tuple[list[Op], list[Value]]:
        """Ops for the stacks of `rows`, then `totals`, and the values in this order."""
        read = [x for total in totals for x in (*total.stacked, *total.constants)]
        wanted = list(dict.fromkeys([*rows, *read]))
        ops, leaves = self._slice(wanted)
        firsts = [self._first(total) for total in totals]
        operands = [self._operand(x) for x in leaves]
        given = [x for x in (*operands, *firsts) if isinstance(x, Value)]

        def run(*arrays: Any) -> list[Any]:
            left = iter(arrays)
            values = [
                next(left) if isinstance(x, Value) else jnp.asarray(x.number, x.type.dtype)
                for x in (*operands, *firsts)
            ]
            stacks = dict(zip(wanted, self._stacks(ops, leaves, values, wanted), strict=True))
            done: dict[Value, Any] = {}
            found = [
                self._total(total, first, stacks, done)
                for total, first in zip(totals, values[len(leaves) :], strict=True)
            ]
            return [*(stacks[x] for x in rows), *found]

        structs = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in given]
        program = read_module(
            jax.make_jaxpr(run)(*structs),
            name=self._module.name,
            arg_paths=[x.name for x in given],
            result_paths=[x.name for x in (*rows, *(self._final(total) for total in totals))],
            ruled=(*RULES, *UNRULED),
        )
        grafter = Grafter({op.id: op for op in self._body.region.ops}, self._fresh)
        for at, array in program.constants.items():
            self.constants[id(array)] = grafter.value(program.values[at]), array
        new, results = grafter.graft(program, given)
        scan = self._body.scan
        new = [
            dataclasses.replace(
                op,
                scope="/".join(filter(None, (scan.scope, op.scope))),
                backward=op.backward or scan.backward,
            )
            for op in new
        ]
        return new, [x for x in results if isinstance(x, Value)]

    def _slice(self, wanted: Sequence[Value]) -> tuple[list[Op], list[Value]]:
        """Ops between values known outside and `wanted`, and the known values."""
        body, ops, leaves = self._body, set[Op](), dict[Value, None]()
        todo, targets = list(wanted), set[Value]()
        while todo:
            value = todo.pop()
            if value in targets:
                continue
            targets.add(value)
            if value in self._stack_of or body.is_outer(value):
                leaves[value] = None
                continue
            ops.add(body.makers[value])
            todo += [x for _, x in body.makers[value].inputs()]
        return [op for op in body.region.ops if op in ops], list(leaves)

    def _stacks(
        self, ops: Sequence[Op], leaves: Sequence[Value], arrays: Sequence[Any], wanted: Any
    ) -> Sequence[Any]:
        """Stacks of `wanted`, by `jax.vmap` of ops of an iteration."""
        region = Region(tuple(leaves), tuple(ops), tuple(wanted))

        def run(*values: Any) -> list[Any]:
            return run_region(region, values, {}, self._run, _no_regions)

        axes = tuple(0 if x in self._stack_of else None for x in leaves)
        out = [None if self._body.is_constant(x) else 0 for x in wanted]
        size = int(self._body.scan.params["length"])
        mapped = jax.vmap(run, in_axes=axes, out_axes=out, axis_size=size)
        found: list[Any] = mapped(*arrays[: len(leaves)])
        return found

    def _run(self, op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        with jax.named_scope(f"{MARK}{op.id}"):
            return run_whole(self._body.rule(op), op, ins)

    def _total(
        self, total: Total, first: Any, stacks: Mapping[Value, Any], done: dict[Value, Any]
    ) -> Any:
        kind = self._final(total).type
        for x in total.rows:
            done.setdefault(x, self._row_sum(x, stacks[x], kind))
        for x, op in total.products.items():
            if x not in done:
                done[x] = self._product(op, x, stacks, kind)
        for op in total.linear:
            (result,) = op.results
            if result not in done:
                done[result] = self._linear(op, {**stacks, **done})
        found = None if self._is_zeros(self._first(total)) else first
        near = self._body.added[total.number].addition
        with jax.named_scope(f"{MARK}{near.id}"):
            for x in total.terms:
                value = done[x].astype(kind.dtype)
                found = value if found is None else found + value
        return found

    def _linear(self, op: Op, known: Mapping[Value, Any]) -> Any:
        """Result of a linear op on sums, as wide as the sums."""
        floats = [jnp.issubdtype(x.type.dtype, jnp.inexact) for x in op.operands]
        arrays = [
            known[x] if isinstance(x, Value) else jnp.asarray(x.number, x.type.dtype)
            for x in op.operands
        ]
        wide = max((a.dtype for a, x in zip(arrays, floats, strict=True) if x), key=_width)
        values = [a.astype(wide) if x else a for a, x in zip(arrays, floats, strict=True)]
        if role_of(op) is Role.CAST and wide == op.results[0].type.dtype:
            return values[0]
        return self._run(op, values)[0]

    def _row_sum(self, x: Value, rows: Any, kind: TensorType) -> Any:
        """Sum over the rows of a stack."""
        maker = self._body.makers.get(x, self._body.scan)
        with jax.named_scope(f"{MARK}{maker.id}"):
            return lax.reduce_sum(rows.astype(_wider(kind, x.type).dtype), (0,))

    def _product(self, op: Op, x: Value, stacks: Mapping[Value, Any], kind: TensorType) -> Any:
        """Sum of the products of all iterations."""
        (lhs, rhs), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
        contracted = _rows_first(lhs), _rows_first(rhs)
        batch = [d + 1 for d in lhs_batch], [d + 1 for d in rhs_batch]
        left, right = (stacks[x] for _, x in op.inputs())
        with jax.named_scope(f"{MARK}{op.id}"):
            return lax.dot_general(
                left,
                right,
                (contracted, batch),
                precision=op.params["precision"],
                preferred_element_type=_wider(kind, x.type).dtype,
            )

    # Values outside ----------------------------------------------------------------------------

    def _operand(self, x: Value) -> Operand:
        body = self._body
        if x in self._stack_of:
            return self._stack_of[x]
        if x in body.region.args:
            return body.scan.operands[body.region.args.index(x)]
        return x  # a constant of the program

    def _first(self, total: Total) -> Operand:
        return self._body.scan.operands[self._body.consts + total.number]

    def _final(self, total: Total) -> Value:
        return self._body.scan.results[total.number]


def _wider(one: TensorType, other: TensorType) -> TensorType:
    """The type with the larger elements."""
    return max(one, other, key=_width)


def _width(kind: Any) -> int:
    return int(kind.itemsize)


def _no_regions(op: Op) -> Any:
    raise ValueError(f"{op.prim} has regions")


def _rows_first(dims: Sequence[int]) -> Sequence[int]:
    """Contracted dims of a stack: the rows, and the contracted dims of a row."""
    return (0, *(d + 1 for d in dims))
