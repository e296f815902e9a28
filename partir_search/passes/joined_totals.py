"""Totals of a loop over microbatches, added after the loop, as one total.

A matrix used as embedding and head has two gradients in each microbatch: of the rows looked up, and
of the product with the head. Accumulated apart, and added after the loop, these are two arrays of
the matrix's size in f32. One total takes both additions of a microbatch, one after the other. Moves
between a total and the sum of totals, such as transpositions, are done in the loop, before the
additions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import name_apart
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.construct import broadcast, zero
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import RuleTable, role_of

_OF_ROWS = (Role.CAST, Role.SUM)  # ops between rows of layers and a total


def with_joined_totals(module: Module) -> Module:
    """Module with one total for sums of several totals; the same one without any.

    Scalars keep totals of their own, and so do rows of layers, which a pipeline adds by stage.
    """
    for op in module.body.ops:
        if role_of(op) is Role.SCAN and op.params.get(ACCUMULATES) is True:
            carries = _Carries(module, op)
            sums = _Finder(module, carries).sums()
            new = _Writer(module, carries, sums).run() if sums else module
            name_apart(new)
            return new
    return module


@dataclasses.dataclass(frozen=True, slots=True)
class _Term:
    """A total.

    Attributes:
      number: of the loop's carry.
      moves: ops between the loop's result and the sum of totals, in order.
    """

    number: int
    moves: tuple[Op, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of totals.

    Attributes:
      result: the sum of all terms.
      terms: in the order of the additions of a microbatch.
      additions: ops to add the terms.
    """

    result: Value
    terms: tuple[_Term, ...]
    additions: tuple[Op, ...]

    def moved(self, op: Op) -> _Sum:
        """The sum behind a move."""
        terms = [dataclasses.replace(term, moves=(*term.moves, op)) for term in self.terms]
        return dataclasses.replace(self, result=op.results[0], terms=tuple(terms))

    @property
    def ops(self) -> tuple[Op, ...]:
        """All ops of the sum."""
        return (*self.additions, *(op for term in self.terms for op in term.moves))


class _Carries:
    """Totals of a loop over microbatches.

    Attributes:
      loop: the scan over microbatches.
    """

    def __init__(self, module: Module, loop: Op) -> None:
        self.loop = loop
        self._makers = def_use(module).makers
        consts = int(loop.params["num_consts"])
        self._starts = loop.operands[consts:]
        self._arguments = loop.regions[0].args[consts:]

    def maker(self, x: Operand) -> Op | None:
        """Maker of a value; None for arguments, constants and literals."""
        return self._makers[x.id] if isinstance(x, Value) else None

    def addition(self, number: int) -> Op | None:
        """The addition to a carry with zeros at first; None for any further carry."""
        if not self._is_zeros(self._starts[number]):
            return None
        maker = self.maker(self.loop.regions[0].results[number])
        if maker is None or role_of(maker) is not Role.ADDITION:
            return None
        return maker if maker.operands[0] is self._arguments[number] else None

    def start(self, number: int) -> Op:
        """The maker of zeros for a total."""
        maker = self.maker(self._starts[number])
        assert maker is not None
        return maker

    def _is_zeros(self, x: Operand) -> bool:
        maker = self.maker(x)
        if maker is None or role_of(maker) is not Role.BROADCAST:
            return False
        filler = maker.operands[0]
        return not isinstance(filler, Value) and filler.is_zero()


class _Finder:
    """Sums of totals behind a loop."""

    def __init__(self, module: Module, carries: _Carries) -> None:
        self._carries = carries
        self._counts, self._rules = def_use(module).counts, RuleTable()
        ops = module.body.ops
        self._after = ops[ops.index(carries.loop) + 1 :]
        body = carries.loop.regions[0]
        self._position = {r: at for at, op in enumerate(body.ops) for r in op.results}

    def sums(self) -> list[_Sum]:
        """Sums of two totals or more; no sum is a term of a further one."""
        found: dict[Value, _Sum] = {}
        for number in range(int(self._carries.loop.params["num_carry"])):
            result = self._carries.loop.results[number]
            if result.type.shape and self._joins(number):
                found[result] = _Sum(result, (_Term(number),), ())
        last: dict[Op, _Sum] = {}  # by the last addition
        for op in self._after if found else ():
            read = [found[v] for _, v in op.inputs() if v in found and self._counts[v.id] == 1]
            if len(read) != len(op.operands):
                continue
            if len(read) == 2 and role_of(op) is Role.ADDITION:
                for each in read:
                    for addition in each.additions[-1:]:
                        del last[addition]
                last[op] = found[op.results[0]] = _added(op, *read)
            elif len(read) == 1 and self._moves(op):
                found[op.results[0]] = read[0].moved(op)
        return [self._in_order(each) for each in last.values()]

    def _joins(self, number: int) -> bool:
        """True for sums, but of rows of layers."""
        addition = self._carries.addition(number)
        if addition is None:
            return False
        x: Operand = addition.operands[1]
        while (maker := self._carries.maker(x)) is not None and role_of(maker) in _OF_ROWS:
            x = maker.operands[0]
        return maker is None or not maker.regions

    def _moves(self, op: Op) -> bool:
        """True for a linear op of one type, or a cast, without more elements in the result."""
        (x,), (result,) = op.operands, op.results
        if op.regions or math.prod(result.type.shape) > math.prod(x.type.shape):
            return False
        if role_of(op) is Role.CAST:
            return all(jnp.issubdtype(v.type.dtype, jnp.floating) for v in (x, result))
        return bool(self._rules(op).linear) and x.type.dtype == result.type.dtype

    def _in_order(self, joined: _Sum) -> _Sum:
        """A sum with the terms in the order of a microbatch."""

        def position(term: _Term) -> int:
            addition = self._carries.addition(term.number)
            x = addition.operands[1] if addition else None
            return self._position.get(x, -1) if isinstance(x, Value) else -1

        return dataclasses.replace(joined, terms=tuple(sorted(joined.terms, key=position)))


def _added(op: Op, one: _Sum, other: _Sum) -> _Sum:
    additions = (*one.additions, *other.additions, op)
    return _Sum(op.results[0], (*one.terms, *other.terms), additions)


class _Writer(Rewriter):
    """Rewriter of the program's body and of the loop."""

    def __init__(self, module: Module, carries: _Carries, sums: Sequence[_Sum]) -> None:
        super().__init__(module)
        self._carries, self._loop = carries, carries.loop
        self._gone = {op for each in sums for op in each.ops}
        joined = {term.number: each for each in sums for term in each.terms}
        count = int(carries.loop.params["num_carry"])
        every: list[_Sum | int] = [joined.get(i, i) for i in range(count)]
        self._kept = list(dict.fromkeys(every))  # sums in place of the first term of each

    def ops(self, old: Region) -> list[Op]:
        if old is not self.module.body:
            return [self.op(op) for op in old.ops]
        found = list[Op]()
        for op in old.ops:
            if op is self._loop:
                found += self._joined()
            elif op not in self._gone:
                found.append(self.op(op))
        return found

    def _joined(self) -> list[Op]:
        """The loop with one total for each sum, the zeros before, and the casts after the loop."""
        loop, (body,) = self._loop, self._loop.regions
        consts, count = int(loop.params["num_consts"]), int(loop.params["num_carry"])
        before, after, ops = list[Op](), list[Op](), list(self.ops(body))
        starts, news = list[Operand](), list[Operand]()
        totals, finals = list[Value](), list[Value]()
        for each in self._kept:
            if isinstance(each, int):
                starts.append(self.operand(loop.operands[consts + each]))
                totals.append(self.value(body.args[consts + each]))
                news.append(self.operand(body.results[each]))
                finals.append(self.value(loop.results[each]))
                continue
            zeros, total, final = self._values(each)
            first = self._carries.start(each.terms[0].number)
            before.append(broadcast(zero(zeros.type), zeros.type.shape, ()).at(first, zeros))
            starts.append(zeros)
            totals.append(total)
            news.append(self._sum(each, total, ops))
            finals.append(final)
            after += self._narrowed(each, final, first)
        args, operands = tuple(map(self.value, body.args)), tuple(map(self.operand, loop.operands))
        stacks = tuple(map(self.operand, body.results[count:]))
        end = consts + count
        region = Region((*args[:consts], *totals, *args[end:]), tuple(ops), (*news, *stacks))
        new = loop.with_parts(
            (*operands[:consts], *starts, *operands[end:]),
            (*finals, *map(self.value, loop.results[count:])),
            (region,),
        )
        params = {k: v for k, v in loop.params.items() if k != "linear"}
        params["num_carry"] = len(starts)
        return [*before, dataclasses.replace(new, params=params, key=None), *after]

    def _values(self, each: _Sum) -> tuple[Value, Value, Value]:
        """A total before the first microbatch, before any, and after the last."""
        wide = self._loop.results[each.terms[0].number].type
        kind, name = dataclasses.replace(wide, shape=each.result.type.shape), each.result.name
        zeros, total = (Value(-1, kind, f"{name}_{x}") for x in ("zeros", "total"))
        if kind.dtype == each.result.type.dtype:
            return zeros, total, self.value(each.result)
        return zeros, total, Value(-1, kind, f"{name}_final")

    def _sum(self, each: _Sum, total: Value, ops: list[Op]) -> Operand:
        """A total after a microbatch; the ops are appended to `ops`."""
        found: Operand = total
        for term in each.terms:
            addition = self._carries.addition(term.number)
            assert addition is not None
            x: Operand = addition.operands[1]
            if (cast := self._carries.maker(x)) is not None and role_of(cast) is Role.CAST:
                x = cast.operands[0]
            x = self.operand(x)
            for move in _without_casts(term.moves):
                kind = dataclasses.replace(x.type, shape=move.results[0].type.shape)
                moved = Value(-1, kind, move.results[0].name)
                new = move.with_parts((x,), (moved,), ())
                ops.append(dataclasses.replace(new, key=None))
                x = moved
            made, (found,) = FunctionReader(()).read(
                lambda t, x: [lax.add(t, lax.convert_element_type(x, t.dtype))], (found, x)
            )
            ops += [dataclasses.replace(op, scope=addition.scope) for op in made]
        return found

    def _narrowed(self, each: _Sum, final: Value, near: Op) -> list[Op]:
        """The maker of the sum of totals from the loop's result."""
        if final is self.value(each.result):
            return []
        dtype = each.result.type.dtype
        ops, (result,) = FunctionReader(()).read(
            lambda x: [lax.convert_element_type(x, dtype)], (final,)
        )
        assert isinstance(result, Value)
        result.name, self.new[each.result] = each.result.name, result
        return [dataclasses.replace(op, scope=near.scope) for op in ops]


def _without_casts(moves: Sequence[Op]) -> list[Op]:
    """Moves without casts, and without pairs of inverse transpositions."""
    found = list[Op]()
    for op in moves:
        if role_of(op) is Role.CAST:
            continue
        if found and role_of(op) is role_of(found[-1]) is Role.TRANSPOSITION:
            first, second = found[-1].params["permutation"], op.params["permutation"]
            if all(first[d] == i for i, d in enumerate(second)):
                found.pop()
                continue
        found.append(op)
    return found
