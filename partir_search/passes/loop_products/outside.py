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
class Term:
    """A term of a sum over iterations, a linear function of `source`.

    Attributes:
      product: the product that makes `source`, with terms added up by a product of stacks; None for
        rows added up.
      source: value of an iteration.
      chain: linear ops from `source` to the term, in order.
    """

    product: Op | None
    source: Value
    chain: tuple[Op, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """A carry as a sum over all iterations.

    Attributes:
      number: of the carry.
      terms: of one iteration.
    """

    number: int
    terms: tuple[Term, ...]


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
        sources = [x for total in totals for term in total.terms for x in _sources(term)]
        wanted = list(dict.fromkeys([*rows, *sources]))
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
        read = read_module(
            jax.make_jaxpr(run)(*structs),
            name=self._module.name,
            arg_paths=[x.name for x in given],
            result_paths=[x.name for x in (*rows, *(self._final(total) for total in totals))],
            ruled=(*RULES, *UNRULED),
        )
        grafter = Grafter({op.id: op for op in self._body.region.ops}, self._fresh)
        for at, array in read.constants.items():
            self.constants[id(array)] = grafter.value(read.values[at]), array
        new, results = grafter.graft(read, given)
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
        size = int(self._body.scan.params["length"])
        mapped = jax.vmap(run, in_axes=axes, axis_size=size)(*arrays[: len(leaves)])
        return list(mapped)

    def _run(self, op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        with jax.named_scope(f"{MARK}{op.id}"):
            return run_whole(self._body.rule(op), op, ins)

    def _total(
        self, total: Total, first: Any, stacks: Mapping[Value, Any], done: dict[Value, Any]
    ) -> Any:
        kind = self._final(total).type
        found = None if self._is_zeros(self._first(total)) else first
        for term in total.terms:
            if term.source not in done:
                done[term.source] = self._sum(term, stacks, kind)
            value = done[term.source]
            for op in term.chain:
                result = op.results[0]
                if result not in done:
                    ins = [
                        value if isinstance(x, Value) else jnp.asarray(x.number, value.dtype)
                        for x in op.operands
                    ]
                    cast = role_of(op) is Role.CAST and value.dtype == result.type.dtype
                    done[result] = value if cast else self._run(op, ins)[0]
                value = done[result]
            near = self._body.added[total.number].addition
            with jax.named_scope(f"{MARK}{near.id}"):
                value = lax.convert_element_type(value, kind.dtype)
                found = value if found is None else found + value
        return found

    def _sum(self, term: Term, stacks: Mapping[Value, Any], kind: TensorType) -> Any:
        """Sum of `source` over all iterations."""
        op = term.product
        if op is None:
            maker = self._body.makers.get(term.source, self._body.scan)
            with jax.named_scope(f"{MARK}{maker.id}"):
                rows = stacks[term.source]
                wide = max(kind, term.source.type, key=lambda each: each.itemsize)
                return lax.reduce_sum(rows.astype(wide.dtype), (0,))
        (lhs, rhs), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
        contracted = _rows_first(lhs), _rows_first(rhs)
        batch = [d + 1 for d in lhs_batch], [d + 1 for d in rhs_batch]
        wide = max(kind, term.source.type, key=lambda each: each.itemsize)
        left, right = (stacks[x] for _, x in op.inputs())
        with jax.named_scope(f"{MARK}{op.id}"):
            return lax.dot_general(
                left,
                right,
                (contracted, batch),
                precision=op.params["precision"],
                preferred_element_type=wide.dtype,
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


def _sources(term: Term) -> Sequence[Value]:
    """Values of an iteration whose stacks a term is computed from."""
    return [term.source] if term.product is None else [x for _, x in term.product.inputs()]


def _no_regions(op: Op) -> Any:
    raise ValueError(f"{op.prim} has regions")


def _rows_first(dims: Sequence[int]) -> Sequence[int]:
    """Contracted dims of a stack: the rows, and those of a row."""
    return (0, *(d + 1 for d in dims))
