"""Values outside of the loop joined by elementwise ops: a parameter, its gradient and its moments.

An elementwise op combines elements at one place. So elements of all values of a class may be
exchanged alike, if all other readers and makers of the values are known to admit the exchange.
"""

from __future__ import annotations

from collections.abc import Container, Hashable

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.passes.pipeline.loop_parts import named
from partir_search.passes.stacks.fingerprint import Fingerprints
from partir_search.rules.registry import RuleTable, role_of


class Joined:
    """Classes of the values outside of a loop over microbatches.

    Attributes:
      stacks: ops that stack arrays of layers.
      rows: ops that take arrays of layers from a stack.
      ops: elementwise ops of classes, and sums of whole values, in order, with a value of the
        class.
      totals: monoid by the result of an op that combines all elements of a value of a class.
      against: by class, why elements must not be exchanged, with a line of the source if known.
    """

    def __init__(
        self, module: Module, loop: Op, reads: Container[int], makes: Container[int]
    ) -> None:
        """Classes of the values of a module.

        Args:
          loop: the loop over microbatches.
          reads: positions of operands read by the loop in any order of the layers.
          makes: positions of results made by the loop in any order.
        """
        self._values = module.values
        self._classes, self._rules = UnionFind(len(module.values)), RuleTable()
        self._prints, self._numbers = Fingerprints(module), dict[Hashable, int]()
        self._uniform: set[Value] = set()
        self._reasons: list[tuple[Value, bool, str]] = []
        self.stacks: list[Op] = []
        self.rows: list[Op] = []
        self.ops: list[tuple[Op, Value]] = []
        self.totals: dict[Value, str] = {}
        for op in module.body.ops:
            if op.results == loop.results:
                self._loop(op, reads, makes)
            else:
                self._op(op)
        self._ends(module)
        self.against: dict[Value, str] = {}
        near = self._lines({self.of(v) for v, has_line, _ in self._reasons if not has_line})
        for value, has_line, reason in sorted(self._reasons, key=lambda found: not found[1]):
            at = self.of(value)
            beside = f" (beside {near[at]})" if at in near and not has_line else ""
            self.against.setdefault(at, reason + beside)

    def _lines(self, classes: set[Value]) -> dict[Value, str]:
        """First op of each of some classes with a line of the source."""
        found: dict[Value, str] = {}
        for op, value in self.ops if classes else ():
            at = self.of(value)
            if at in classes and at not in found and op.source:
                found[at] = named(op)
        return found

    def of(self, value: Value) -> Value:
        """Representative of the class of a value."""
        return self._values[self._classes.find(value.id)]

    def is_joined(self, x: Operand) -> bool:
        """True for an array whose elements may differ."""
        return isinstance(x, Value) and bool(x.type.shape) and x not in self._uniform

    def print_of(self, op: Op) -> Hashable:
        """Fingerprint of an op; see `Fingerprints`."""
        return self._prints(op)

    def number(self, x: Value) -> int:
        """Number of a value, one for values computed by equal ops from one another."""
        return self._numbers.setdefault(x, len(self._numbers))

    # Ops -----------------------------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        rule, role = self._rules(op), role_of(op)
        self._count(op)
        if role is Role.LAYERS:
            self.stacks.append(op)
        elif role is Role.ROWS_OF_LAYERS:
            self.rows.append(op)
        elif role is Role.BROADCAST and not op.operands[0].type.shape:
            self._uniform.update(op.results)
        elif rule.kind is Kind.ELEMENTWISE and rule.elementwise and not op.effect:
            self._elementwise(op)
        else:
            self._other(op, rule)

    def _elementwise(self, op: Op) -> None:
        read = [x for _, x in op.inputs() if self.is_joined(x)]
        shapes = {x.type.shape for x in (*op.operands, *op.results) if x.type.shape}
        if not read and len(shapes) <= 1:
            self._uniform.update(op.results)
            return
        if not read:
            for r in op.results:
                self._refuse(op, r, "makes a value that is combined with it")
            return
        for x in (*read[1:], *op.results):
            self._classes.merge(read[0].id, x.id)
        self.ops.append((op, read[0]))
        if any(x.type.shape != r.type.shape for x in read for r in op.results):
            self._refuse(op, read[0], "repeats its elements")

    def _other(self, op: Op, rule: OpRule) -> None:
        read = [x for _, x in op.inputs() if self.is_joined(x)]
        monoids = set(rule.reducers)
        whole = rule.kind is Kind.REDUCTION and not rule.blocked and len(monoids) == 1
        whole = whole and (bool(rule.linear) or "sum" not in monoids)  # of elements, not of tiles
        if whole and len(read) == len(op.results) == 1 and not op.results[0].type.shape:
            self.ops.append((op, read[0]))
            self.totals[op.results[0]] = monoids.pop()
            return
        for x in read:
            self._refuse(op, x, "reads it, and may combine elements of several layers")
        for r in op.results:
            if r.type.shape:
                self._refuse(op, r, "makes a value that is combined with it")

    def _loop(self, op: Op, reads: Container[int], makes: Container[int]) -> None:
        for i, x in op.inputs():
            if self.is_joined(x) and i not in reads:
                self._refuse(op, x, "reads it outside of the layers")
        for i, r in enumerate(op.results):
            if r.type.shape and i not in makes:
                self._refuse(op, r, "makes a value that is combined with it")

    def _count(self, op: Op) -> None:
        """Numbers the results of an op by the op and its operands' numbers."""
        if op.effect:
            return
        read = [self.number(x) if isinstance(x, Value) else None for x in op.operands]
        for i, r in enumerate(op.results):
            key = self._prints(op), tuple(read), i
            self._numbers[r] = self._numbers.setdefault(key, len(self._numbers))

    # Ends ----------------------------------------------------------------------------------------

    def _ends(self, module: Module) -> None:
        """Refuses constants, and arguments and results besides the state."""
        for i in module.constants:
            if self.is_joined(module.values[i]):
                self._refuse(None, module.values[i], "a constant of the step is combined with it")
        pairs = [(module.body.args[a], module.body.results[r]) for a, r in module.ties]
        tied = {r for _, r in module.ties}
        state = {a for a, _ in module.ties}
        for i, x in enumerate(module.body.args):
            if i not in state and self.is_joined(x):
                self._refuse(None, x, f"{module.arg_paths[i]} is not returned: no train state")
        for i, r in enumerate(module.body.results):
            if i not in tied and isinstance(r, Value) and self.is_joined(r):
                text = f"{module.result_paths[i] or 'a result'} is returned and no train state"
                self._refuse(None, r, text)
        for a, r in pairs:
            if self.is_joined(a) and (not isinstance(r, Value) or not self._alike(a, r)):
                self._refuse(None, a, "the new value is not computed from the old one by elements")

    def _alike(self, a: Value, r: Value) -> bool:
        return self.is_joined(r) and self.of(a) is self.of(r)

    def _refuse(self, op: Op | None, value: Value, what: str) -> None:
        has_line = op is not None and bool(op.source)
        self._reasons.append((value, has_line, f"{named(op)} {what}" if op else what))
