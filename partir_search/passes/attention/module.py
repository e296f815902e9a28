"""Writes a module with each attention in it as one op forward and one backward."""

from __future__ import annotations

import dataclasses

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.passes.attention.body import PhaseBody, build_body, makers, with_sums_and_mask
from partir_search.passes.attention.groups import Group, NotAttention, Ops, find_groups
from partir_search.passes.attention.mask import is_causal
from partir_search.passes.attention.phases import Phase, split
from partir_search.passes.attention.softmax_sums import find_online, find_sums
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.attention import BACKWARD, FORWARD
from partir_search.rules.registry import RuleTable, rule_key


@dataclasses.dataclass(frozen=True, slots=True)
class FusedAttention:
    """An attention op in place of the ops of a phase."""

    phase: Phase
    phase_body: PhaseBody
    prim: str


def with_attention(module: Module, table: RuleTable) -> tuple[Module, list[str]]:
    """The module with each attention as one op, and why others are not.

    Scores, which have keys and queries, are not kept from the forward to the backward pass but
    made again there. A module without attention is given back as it is.

    Returns:
      the module, and reasons with source lines of what looked like attention and stays as it is.
    """
    rewriter = _Rewriter(module, table)
    new = rewriter.run()
    return (new if rewriter.count else module), rewriter.reasons


class _Rewriter(Rewriter):
    def __init__(self, module: Module, table: RuleTable) -> None:
        super().__init__(module)
        self.table, self.uses = table, def_use(module)
        self.count = 0
        self.reasons: list[str] = []

    def ops(self, old: Region) -> list[Op]:
        ops = Ops(old, self.uses, self.table)
        found = self.find(ops)
        owned = {id(op) for w in found for op in w.phase.ops}
        made_by = {r.id: w for w in found for r in w.phase.results}
        done: set[int] = set()
        new: list[Op] = []

        def need(x: Operand) -> None:
            if isinstance(x, Value) and x.id in made_by:
                visit(made_by[x.id])
            elif isinstance(x, Value) and (maker := ops.makers[x.id]) is not None:
                visit(maker)

        def visit(item: Op | FusedAttention) -> None:
            if id(item) in done:
                return
            done.add(id(item))
            if isinstance(item, FusedAttention):
                for v in item.phase_body.operands:
                    need(v)
                new.append(self.fused_op(item))
                return
            for x in item.operands:
                need(x)
            new.append(self.op(item))

        for op in old.ops:
            if id(op) not in owned:
                visit(op)
            else:
                for r in op.results:
                    if r.id in made_by:
                        visit(made_by[r.id])
        for x in old.results:
            need(x)
        return new

    def fused_op(self, item: FusedAttention) -> Op:
        """The attention op."""
        self.count += 1
        last = item.phase.ops[-1]
        return Op(
            id=-1,
            prim=item.prim,
            operands=tuple(map(self.value, item.phase_body.operands)),
            results=tuple(map(self.value, item.phase.results)),
            params={"body": item.phase_body.body},
            origin=last.origin,
            scope=last.scope,
            backward=last.backward,
        )

    def find(self, ops: Ops) -> list[FusedAttention]:
        """Attention ops for the ops of one region."""
        found: list[FusedAttention] = []
        for group in find_groups(ops):
            if isinstance(group, NotAttention):
                self.reasons.append(str(group))
                continue
            try:
                found += self.fused(ops, group)
            except NotAttention as why:
                first = group.members(ops)[0]
                self.reasons.append(f"{why} (attention at {first.source})")
        return found

    def fused(self, ops: Ops, group: Group) -> list[FusedAttention]:
        """The forward op of a group, and the backward op if the group has gradients."""
        phases = split(ops, group)
        forward = build_body(ops, group, phases.forward, rule_key)
        product = makers(forward.body)[forward.place[phases.product.results[0].id]]
        online, chain = find_online(forward, product)
        causal = is_causal(forward.body, online.weight)
        body = with_sums_and_mask(forward.body, online, (), causal)
        forward = dataclasses.replace(forward, body=body)
        found = [FusedAttention(phases.forward, forward, FORWARD)]
        if phases.backward is not None:
            result = phases.product.results[0]
            backward = build_body(ops, group, phases.backward, rule_key, (forward, result))
            sums = find_sums(forward, backward, chain)
            body = with_sums_and_mask(backward.body, None, sums, causal)
            backward = dataclasses.replace(backward, body=body)
            found.append(FusedAttention(phases.backward, backward, BACKWARD))
        return found
