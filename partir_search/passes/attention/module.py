"""Rewrite of a module with each attention as one op forward and one op backward."""

from __future__ import annotations

import dataclasses

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Operand, Region, Value, walk_regions
from partir_search.passes.attention.body import PhaseBody, build_body, makers
from partir_search.passes.attention.groups import (
    AttentionGroup,
    NotAttention,
    RegionOps,
    find_groups,
)
from partir_search.passes.attention.mask import is_causal
from partir_search.passes.attention.phases import Phase, split_phases
from partir_search.passes.attention.softmax_sums import find_online, find_sums
from partir_search.passes.constants_of_regions import values_outside
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.unread import without_unread
from partir_search.rules.attention import BACKWARD, FORWARD
from partir_search.rules.registry import RuleTable, rule_key


@dataclasses.dataclass(frozen=True, slots=True)
class FusedAttention:
    """One phase of an attention, to be written as one op.

    Attributes:
      phase: the ops replaced.
      phase_body: the body of the op, with its operands.
      prim: name of the op's primitive.
    """

    phase: Phase
    phase_body: PhaseBody
    prim: str


def with_attention(module: Module, table: RuleTable) -> tuple[Module, list[str]]:
    """Rewrites each attention of a module as one op forward and one backward.

    Scores (values with keys and queries) are recomputed in the backward op, not stored. A module
    without attention is returned unchanged.

    Returns:
      the module, and for each softmax left unfused the reason with its source line.
    """
    rewriter = _Rewriter(module, table)
    new = rewriter.run()
    if not rewriter.count:
        return module, rewriter.reasons
    return without_unread(new, table), rewriter.reasons  # masks of whole sequences


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardPhase:
    """Forward pass of an attention to be written as one op, by ids of ops.

    Attributes:
      scores: ops that make scores.
      rows: the further ops: of maxima and sums over keys, and of the result.
    """

    scores: frozenset[int]
    rows: frozenset[int]


def forward_phases(module: Module, table: RuleTable) -> tuple[ForwardPhase, ...]:
    """All forward phases made one op each by `with_attention`."""
    rewriter = _Rewriter(module, table)
    regions = (rewriter.region_ops(region) for region in walk_regions(module.body))
    fused = (found for ops in regions for found in rewriter.find_attentions(ops))
    phases = []
    for phase, inside in ((f.phase, f.phase_body) for f in fused if f.phase_body.body.online):
        scores = {v for v, place in inside.place_of.items() if place in inside.body.scores}
        ids = {op.id: all(r.id in scores for r in op.results) for op in phase.ops}
        made = frozenset(i for i, is_score in ids.items() if is_score)
        phases.append(ForwardPhase(made, frozenset(ids) - made))
    return tuple(phases)


class _Rewriter(Rewriter):
    """Replaces attentions region by region; ops are sorted topologically after fusion."""

    def __init__(self, module: Module, table: RuleTable) -> None:
        super().__init__(module)
        self.table, self.uses = table, def_use(module)
        self.outside = values_outside(module, table)
        self.count = 0
        self.reasons: list[str] = []

    def region_ops(self, region: Region) -> RegionOps:
        """Ops of a region, and values known outside."""
        return RegionOps(region, self.uses, self.table, self.outside)

    def ops(self, old: Region) -> list[Op]:
        ops = self.region_ops(old)
        found = self.find_attentions(ops)
        fused_ops = {id(op) for fused in found for op in fused.phase.ops}
        fused_by_result = {r.id: fused for fused in found for r in fused.phase.results}
        done: set[int] = set()
        new: list[Op] = []

        def need(x: Operand) -> None:
            if isinstance(x, Value) and x.id in fused_by_result:
                visit(fused_by_result[x.id])
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
            if id(op) not in fused_ops:
                visit(op)
            else:
                for r in op.results:
                    if r.id in fused_by_result:
                        visit(fused_by_result[r.id])
        for x in old.results:
            need(x)
        return new

    def fused_op(self, fused: FusedAttention) -> Op:
        """Returns the op that replaces the ops of one phase."""
        self.count += 1
        last = fused.phase.ops[-1]
        return Op(
            id=-1,
            prim=fused.prim,
            operands=tuple(map(self.value, fused.phase_body.operands)),
            results=tuple(map(self.value, fused.phase.results)),
            params={"body": fused.phase_body.body},
            origin=last.origin,
            scope=last.scope,
            backward=last.backward,
        )

    def find_attentions(self, ops: RegionOps) -> list[FusedAttention]:
        """Returns the fused phases of one region; records the reasons against fusing groups."""
        found: list[FusedAttention] = []
        for group in find_groups(ops):
            if isinstance(group, NotAttention):
                self.reasons.append(str(group))
                continue
            try:
                found += self.fuse(ops, group)
            except NotAttention as why:
                first = group.members(ops)[0]
                self.reasons.append(f"{why} (attention at {first.source})")
        return found

    def fuse(self, ops: RegionOps, group: AttentionGroup) -> list[FusedAttention]:
        """Returns the fused phases of one group.

        Raises:
          NotAttention: the group is no attention that can be computed by blocks of keys.
        """
        phases = split_phases(ops, group)
        forward = build_body(ops, group, phases.forward, rule_key)
        product = makers(forward.body)[forward.place_of[phases.product.results[0].id]]
        online, chain = find_online(forward, product)
        causal = is_causal(forward.body, online.exponentials)
        body = dataclasses.replace(forward.body, online=online, causal=causal)
        forward = dataclasses.replace(forward, body=body)
        found = [FusedAttention(phases.forward, forward, FORWARD)]
        if phases.backward is not None:
            result = phases.product.results[0]
            backward = build_body(ops, group, phases.backward, rule_key, (forward, result))
            sums = find_sums(forward, backward, chain)
            body = dataclasses.replace(backward.body, sums=sums, causal=causal)
            backward = dataclasses.replace(backward, body=body)
            found.append(FusedAttention(phases.backward, backward, BACKWARD))
        return found
