"""Rewrite of a module: equal chains become one chain on a stack of their operands."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.passes.batched import SUFFIX, Grafter, batched_module, captured
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.stacks.find import Stack, names_of, stackable
from partir_search.passes.stacks.groups import Group, is_shared
from partir_search.rules.stacks import stacked, stacked_type, unstacked

Chosen = dict[Region, list[tuple[Group, int]]]  # groups and sizes of their stacks, by region


def stack_module(module: Module, rules: Sequence[OpRule], stacks: Sequence[Stack]) -> Module:
    """Returns the module with each of some groups of equal programs computed once, on a stack.

    Raises:
      ValueError: a stack names no group of equal programs of this module.
    """
    sizes = {stack.values: stack.size for stack in stacks}
    chosen: Chosen = {}
    for group in stackable(module, rules):
        size = sizes.pop(names_of(group), 0)
        if size:
            chosen.setdefault(group.region, []).append((group, size))
    for names in sizes:
        raise ValueError(f"there are no equal programs that make {', '.join(names)} to stack")
    return _Stacker(module, rules, chosen).run()


class _Stacker(Rewriter):
    """Computes the chains of groups on stacks."""

    def __init__(self, module: Module, rules: Sequence[OpRule], chosen: Chosen) -> None:
        super().__init__(module)
        self._rules, self._chosen = rules, chosen
        self._fresh = FreshNames(module)
        self._constants: dict[int, tuple[Value, Any]] = {}
        self._stacks: dict[tuple[tuple[Value, ...], int], Value] = {}  # of the current region

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self._constants}

    def ops(self, old: Region) -> Sequence[Op]:
        chosen, self._stacks = self._chosen.get(old, ()), {}
        owner = {i: g for g, (group, _) in enumerate(chosen) for m in group.members for i in m}
        done: list[Op] = []
        for i in _order(old, owner):
            if i in owner:
                done += self._stack(*chosen[owner[i]])
            else:
                done.append(self.op(old.ops[i]))
        return done

    def _stack(self, group: Group, size: int) -> list[Op]:
        """Ops in place of a group: stacks of operands, the chain, and its results taken apart."""
        ops, near = group.ops(0), group.ops(0)[0]
        before: list[Op] = []
        inputs: list[tuple[Value, bool]] = []
        given: list[Value] = []
        for values in group.entering:
            inputs.append((values[0], not is_shared(values)))
            if is_shared(values):
                given.append(self.value(values[0]))
                continue
            stack = self._stacks.get((values, size))
            if stack is None:
                kind = stacked_type(values[0].type, size)
                stack = Value(-1, kind, self._fresh(f"{values[0].name}{SUFFIX}"))
                self._stacks[values, size] = stack
                before.append(stacked([self.value(v) for v in values], stack, near))
            given.append(stack)
        known = {v.id for v, _ in inputs}
        for constant in captured(self.module, ops):
            if constant.id not in known:
                inputs.append((constant, False))
                given.append(self.value(constant))
        leaving = group.leaving()
        batched = batched_module(
            self.module, self._rules, ops, inputs, [values[0] for values in leaving], size
        )
        grafter = Grafter({op.id: op for op in self.module.ops}, self._fresh)
        for at, array in batched.constants.items():
            self._constants[id(array)] = (grafter.value(batched.values[at]), array)
        inside, results = grafter.graft(batched, given)
        after = []
        for values, made in zip(leaving, results, strict=True):
            assert isinstance(made, Value)
            after.append(unstacked(made, [self.value(v) for v in values], near))
        return [*before, *inside, *after]


def _order(region: Region, owner: Mapping[int, int]) -> list[int]:
    """Positions of ops in an order in which each group of ops can run at once.

    A group is represented by the position of its last op. Ops keep their order where they may.

    Args:
      owner: group by position, of the ops in groups.
    """
    ops = region.ops
    last = {owner[i]: i for i in sorted(owner)}
    node = [last[owner[i]] if i in owner else i for i in range(len(ops))]
    maker = {r.id: node[i] for i, op in enumerate(ops) for r in op.results}
    before: dict[int, set[int]] = {n: set() for n in node}
    effect = -1
    for i, op in enumerate(ops):
        before[node[i]].update(maker[v.id] for _, v in op.inputs() if v.id in maker)
        if op.effect:
            if effect >= 0:
                before[node[i]].add(effect)
            effect = node[i]
    after: dict[int, list[int]] = {n: [] for n in before}
    missing = {}
    for n, earlier in before.items():
        earlier.discard(n)
        missing[n] = len(earlier)
        for m in earlier:
            after[m].append(n)
    ready = [n for n, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        n = heapq.heappop(ready)
        order.append(n)
        for m in after[n]:
            missing[m] -= 1
            if not missing[m]:
                heapq.heappush(ready, m)
    assert len(order) == len(before), "groups of ops depend on each other"
    return order
