"""Values of a scan's body handed from iteration to iteration, and values known outside."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from partir_search.ir.analysis.readers import readers_of
from partir_search.ir.core import Op, Value
from partir_search.ir.kind import MOVING, Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.passes.roll.added import added_carries
from partir_search.rules.other import user_sharding
from partir_search.rules.registry import role_of

_CHEAP = frozenset({Kind.ELEMENTWISE, Kind.MOVEMENT})
_BATCHED = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.ELEMENTWISE, *MOVING})


class Body:
    """Body of a scan.

    Attributes:
      scan / region: the scan and its body.
      consts / carries: number of constants, and of carries.
      makers: by result, the op.
      readers: by value, the ops with the value as operand; None stands for the body's results.
      added: by number, carries only added to.
      needed: ops behind the next value of a carry, but for `added`.
      stacked: results of an iteration, each with the stack, a result of the scan.
      given: by argument of an iteration, the stack of all iterations before the scan.
      stacks: by value of an iteration, the stack of all iterations after the scan.
    """

    def __init__(self, scan: Op, rule_of: Callable[[Op], OpRule]) -> None:
        (self.region,) = scan.regions
        self.scan, self._rule_of = scan, rule_of
        self.consts, self.carries = int(scan.params["num_consts"]), int(scan.params["num_carry"])
        self.makers = {r: op for op in self.region.ops for r in op.results}
        self.readers = readers_of(self.region)
        self.added = {each.number: each for each in added_carries(scan)}
        results = self.region.results[: self.carries]
        kept = [x for n, x in enumerate(results) if n not in self.added]
        effects = [x for op in self.region.ops if op.effect for x in op.results]
        self.needed = self.ops_behind(x for x in (*kept, *effects) if isinstance(x, Value))
        first = self.consts + self.carries
        rows = zip(self.region.args[first:], scan.operands[first:], strict=True)
        self.given = {arg: x for arg, x in rows if isinstance(x, Value)}
        self.stacked = list(
            zip(self.region.results[self.carries :], scan.results[self.carries :], strict=True)
        )
        self.stacks = {**{x: y for x, y in self.stacked if isinstance(x, Value)}, **self.given}
        self._constant = self._reached_from_none(self.region.args[self.consts :])
        self._early = self._reached_from_none(self.region.args[self.consts : first])

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows read and written by an iteration."""
        rows = (*self.region.args[self.consts + self.carries :], *self.rows)
        return sum(x.type.nbytes for x in dict.fromkeys(rows))

    @property
    def rows(self) -> Sequence[Value]:
        """Stacked values of an iteration."""
        return [x for x in self.region.results[self.carries :] if isinstance(x, Value)]

    def is_constant(self, x: Value) -> bool:
        """True for a value equal in all iterations."""
        return x in self._constant or (x not in self.makers and x not in self.region.args)

    def is_early(self, x: Value) -> bool:
        """True for a value independent of earlier iterations."""
        return x in self._early or self.is_constant(x)

    def is_late(self, op: Op) -> bool:
        """True for an op without influence on later iterations, but for sums."""
        return op not in self.needed

    def batches(self, op: Op) -> bool:
        """True for an op to compute for all iterations at once; values named by users stay."""
        if op.regions or op.effect or user_sharding(op) is not None or role_of(op) is Role.COPY:
            return False
        return self._rule_of(op).kind in _BATCHED

    def is_cheap(self, op: Op) -> bool:
        """True for an op to compute outside instead of a stack of results."""
        return self.batches(op) and self._rule_of(op).kind in _CHEAP

    def derives(self, x: Value, further: Container[Value] = ()) -> bool:
        """True for a value known outside: a stack, a constant, or cheap functions of both.

        Args:
          further: values to stack, beside the stacks of the scan so far.
        """
        todo, seen = [x], set[Value]()
        while todo:
            value = todo.pop()
            if value in seen or value in self.stacks or value in further or self.is_outer(value):
                continue
            seen.add(value)
            maker = self.makers.get(value)
            if maker is None or not self.is_cheap(maker):
                return False
            todo += [v for _, v in maker.inputs()]
        return True

    def is_outer(self, x: Value) -> bool:
        """True for a constant of the scan or of the program."""
        return x not in self.makers and self.is_constant(x)

    def rule(self, op: Op) -> OpRule:
        """Rule of an op."""
        return self._rule_of(op)

    def weight(self, op: Op) -> tuple[Value, Value] | None:
        """(varying operand, constant operand) of a product with one constant; else None."""
        if not self.rule(op).contracts or len(op.inputs()) != 2 or len(op.operands) != 2:
            return None
        one, other = (x for _, x in op.inputs())
        if self.is_constant(one) == self.is_constant(other) or not self.batches(op):
            return None
        varying, constant = (other, one) if self.is_constant(one) else (one, other)
        return (varying, constant) if self.derives(constant) else None

    def ops_behind(self, values: Iterable[Value]) -> set[Op]:
        """Ops of the body that compute some values."""
        found, todo = set[Op](), list(values)
        while todo:
            maker = self.makers.get(todo.pop())
            if maker is not None and maker not in found:
                found.add(maker)
                todo += [x for _, x in maker.inputs()]
        return found

    def _reached_from_none(self, args: Sequence[Value]) -> set[Value]:
        """Values of the body independent of some arguments."""
        reached = set(args)
        for op in self.region.ops:
            if op.effect or any(x in reached for _, x in op.inputs()):
                reached.update(op.results)
        values = (*self.region.args, *(r for op in self.region.ops for r in op.results))
        return {x for x in values if x not in reached}
