"""Backward layers split in two scans: gradients of operands, and gradients of weights.

A stage needs the gradients of a layer's operands at once, for the stage before; products of
gradients of weights alone may wait. The scan over backward layers is parted by dependence: ops of
the carry, and gradients without a product of their own (scales, biases), stay; the products behind
further gradients are deferred. Values read by deferred products wait in slots: a minimum cut takes
the fewest bytes, and deferred layers repeat elementwise ops and moves.

Source: Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), on the ops of any layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from partir_search.ir.core import Op, Operand, Region, TensorType, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import NoPipeline, named
from partir_search.passes.roll.min_cut import min_node_cut
from partir_search.rules.registry import RuleTable, role_of


@dataclasses.dataclass(frozen=True, slots=True)
class SplitBackward:
    """Backward layers in two scans.

    Attributes:
      operands: results are the carry, the stacks of `early`, and the values of `kept`.
      weights: no carry; stacked operands of the backward scan, then the values of `kept`. Results
        are the stacks of `late`.
      early / late: positions among the stacks of the backward scan.
      kept: values of one layer waiting for `weights`.
    """

    operands: Layers
    weights: Layers
    early: tuple[int, ...]
    late: tuple[int, ...]
    kept: tuple[Value, ...]


def split_backward(backward: Layers) -> SplitBackward:
    """Backward layers in two scans.

    Raises:
      NoPipeline: no product may be deferred.
    """
    region = _inlined(backward.region)
    parts = _Parts(region, len(backward.consts), len(backward.finals))
    early, late = parts.stacks()
    if not late:
        raise NoPipeline(
            f"the backward pass of the layers at {named(backward.op)} has no product of gradients"
            " for weights alone; leave out split_backward"
        )
    carry = region.results[: parts.carries]
    stacks = region.results[parts.carries :]
    kept = parts.kept([stacks[j] for j in late])
    waiting = tuple(_rows(v, backward.count) for v in kept)
    at_once = [*carry, *(stacks[j] for j in early), *kept]
    operands = _scan(
        backward,
        backward.carry,
        (),
        _behind(region, region.args, at_once, set()),
        (*backward.finals, *(backward.stacks[j] for j in early), *waiting),
    )
    args = (*region.args[: parts.consts], *region.args[parts.first :], *kept)
    weights = _scan(
        backward,
        (),
        waiting,
        _behind(region, args, [stacks[j] for j in late], set(kept)),
        tuple(backward.stacks[j] for j in late),
    )
    return SplitBackward(operands, weights, early, late, kept)


class _Parts:
    """Ops of a backward layer by their readers.

    Attributes:
      consts / carries: numbers of arguments; `first` is the first stacked one.
    """

    def __init__(self, region: Region, consts: int, carries: int) -> None:
        self.consts, self.carries, self.first = consts, carries, consts + carries
        self._region, self._rules = region, RuleTable()
        self._maker = {r: op for op in region.ops for r in op.results}
        self._now = set(map(id, self._ops_behind(region.results[:carries])))
        self._late: set[int] = set()

    def stacks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions of the stacks computed at once, and of stacks with a deferred product."""
        stacks = self._region.results[self.carries :]
        product = {
            id(op)
            for op in self._behind_carry()
            if id(op) not in self._now and (op.regions or self._rules(op).contracts)
        }
        behind = [{id(op) for op in self._ops_behind([x])} for x in stacks]
        early = tuple(j for j, ops in enumerate(behind) if not ops & product)
        for j in early:
            self._now |= behind[j]
        for op in self._region.ops:  # what reads a deferred product is deferred
            read = (self._maker.get(v) for _, v in op.inputs())
            if id(op) in product or any(id(o) in self._late for o in read if o is not None):
                self._late.add(id(op))
        return early, tuple(j for j in range(len(stacks)) if j not in early)

    def kept(self, wanted: Sequence[Operand]) -> tuple[Value, ...]:
        """Values of the fewest bytes for deferred ops to compute `wanted` by cheap ops."""
        carry = self._region.args[self.consts : self.first]
        cost = {v: v.type.nbytes for v in carry}
        sources, edges, targets = set(cost), list[tuple[Value, Value]](), set[Value]()
        deferred = {id(op) for op in self._ops_behind(wanted)}
        for op in self._region.ops:
            inside = [v for _, v in op.inputs() if v in cost]
            if id(op) in self._late:
                targets |= set(inside) if id(op) in deferred else set()
                continue
            repeats = self._repeats(op)
            if repeats and not inside:
                continue  # of parameters and residuals alone
            cost.update((r, r.type.nbytes) for r in op.results)
            edges += [(v, r) for v in inside for r in op.results] if repeats else []
            sources |= set() if repeats else set(op.results)
        found = min_node_cut(cost, edges, sources, targets)
        return tuple(v for v in cost if v in found)

    def _behind_carry(self) -> list[Op]:
        """Ops behind the arriving gradients; further ops compute the forward pass again."""
        found, read = list[Op](), set(self._region.args[self.consts : self.first])
        for op in self._region.ops:
            if any(v in read for _, v in op.inputs()):
                found.append(op)
                read.update(op.results)
        return found

    def _repeats(self, op: Op) -> bool:
        """True for an op to compute again in deferred layers."""
        rule = self._rules(op)
        return not op.regions and (rule.moves or rule.kind is Kind.ELEMENTWISE)

    def _ops_behind(self, wanted: Iterable[Operand]) -> list[Op]:
        todo, found = [x for x in wanted if isinstance(x, Value)], dict[int, Op]()
        while todo:
            op = self._maker.get(todo.pop())
            if op is not None and id(op) not in found:
                found[id(op)] = op
                todo += [v for _, v in op.inputs()]
        return list(found.values())


def _behind(
    region: Region, args: Sequence[Value], results: Sequence[Operand], known: set[Value]
) -> Region:
    """Region of the ops behind results, stopping at known values."""
    needed = {x for x in results if isinstance(x, Value)}
    ops: list[Op] = []
    for op in reversed(region.ops):
        if any(r in needed and r not in known for r in op.results):
            needed.update(v for _, v in op.inputs())
            ops.append(op)
    return Region(tuple(args), tuple(ops[::-1]), tuple(results))


def _scan(
    old: Layers,
    carry: tuple[Operand, ...],
    waiting: tuple[Value, ...],
    region: Region,
    results: tuple[Value, ...],
) -> Layers:
    """Scan of a region in place of `old`, without constants unread by the region.

    Args:
      waiting: further stacked operands.
    """
    read = {v for op in region.ops for _, v in op.inputs()} | set(region.results)
    count = len(old.consts)
    consts = [i for i in range(count) if region.args[i] in read]
    operands = (*(old.consts[i] for i in consts), *carry, *old.stacked, *waiting)
    args = (*(region.args[i] for i in consts), *region.args[count:])
    params = {k: v for k, v in old.op.params.items() if k != "linear"}
    params |= {"num_consts": len(consts), "num_carry": len(carry)}
    region = Region(args, region.ops, region.results)
    return Layers(
        dataclasses.replace(
            old.op, operands=operands, results=results, regions=(region,), params=params, key=None
        )
    )


def _rows(x: Value, count: int) -> Value:
    kind = TensorType((count, *x.type.shape), x.type.dtype, x.type.itemsize)
    return Value(-1, kind, f"{x.name}_rows")


def _inlined(region: Region) -> Region:
    """A region with the ops of recomputed regions as its own.

    No barrier is needed: the values computed again stand in another loop than the first ones.
    """
    if not any(role_of(op) is Role.CHECKPOINT for op in region.ops):
        return region
    ops: list[Op] = []
    renamed: dict[Value, Operand] = {}
    _inline(region, renamed, ops)
    return Region(region.args, tuple(ops), tuple(_renamed(region.results, renamed)))


def _inline(region: Region, renamed: dict[Value, Operand], ops: list[Op]) -> None:
    """Appends the ops of a region, and of recomputed regions in the region, to `ops`."""
    for op in region.ops:
        operands = tuple(_renamed(op.operands, renamed))
        if role_of(op) is not Role.CHECKPOINT:
            ops.append(op.with_parts(operands, op.results, op.regions))
            continue
        (inner,) = op.regions
        renamed.update(zip(inner.args, operands, strict=True))
        _inline(inner, renamed, ops)
        renamed.update(zip(op.results, _renamed(inner.results, renamed), strict=True))


def _renamed(found: Iterable[Operand], renamed: Mapping[Value, Operand]) -> list[Operand]:
    return [renamed.get(x, x) if isinstance(x, Value) else x for x in found]
