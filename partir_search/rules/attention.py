"""Attention as one op, the result of `passes.attention`.

On whole keys the op runs its members as they were. On one block of keys after another it runs them
on a block: the forward pass rescales sums when the maximum grows; the backward pass recomputes
scores from the maximum and sum saved by the forward pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from partir_search.ir.blockwise import Blockwise, Where
from partir_search.ir.composite import Body, Labels, Member, Place, RowSum
from partir_search.ir.core import Literal, Op
from partir_search.ir.kind import Kind
from partir_search.ir.local_context import LocalContext
from partir_search.ir.local_op import run_local, widened
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register

Env = dict[int, Any]


FORWARD, BACKWARD = "attention", "attention_grad"


@register(FORWARD, BACKWARD)
def attention(op: Op) -> OpRule:
    """Loops over all dims but keys and dims of only one of the two products."""
    body: Body = op.params["body"]
    results = tuple(body.labels[place] for place in body.results)
    made = {out: m for m in body.members for out in m.outs}
    reducers = []
    blocked = {body.key_label}
    for f in range(len(body.sizes)):
        lacking = [p for p, dims in zip(body.results, results, strict=True) if f not in dims]
        reducers.append("sum" if lacking else "")
        if any(reduced_by(made[p], f) != "sum" for p in lacking):
            blocked.add(f)
    keys = [i for i in range(body.operands) if body.key_label in body.labels[i]]
    score = max((body.labels[p] for p in body.scores), key=lambda dims: _points(body, dims))
    flops = sum(m.rule.flops_per_point * math.prod(m.rule.sizes) for m in body.members)
    return OpRule(
        Kind.CONTRACTION,
        sizes=body.sizes,
        operands=body.labels[: body.operands],
        results=results,
        reducers=tuple(reducers),
        blocked=frozenset(blocked),
        flops_per_point=flops / max(math.prod(body.sizes), 1),
        local=local_attention,
        tolerates_padding=False,
        blockwise=Blockwise(
            factor=body.key_label,
            along=min(
                body.queries,
                key=lambda f: (body.sizes[f] != body.sizes[body.key_label], -body.sizes[f]),
            ),
            passing=tuple(i for i in keys if body.queries.isdisjoint(body.labels[i])),
            returning=tuple(i for i, dims in enumerate(results) if body.key_label in dims),
            scratch=SCRATCH * (1 if body.online else 2),
            stored=_stored_bytes(body),
            scratch_factors=tuple(f for f in score if f != NONE),
            causal=body.causal,
            turn=forward_turn if body.online else backward_turn,
            finish=forward_finish if body.online else backward_finish,
        ),
    )


SCRATCH = 8.0  # bytes per score: 32 bits, twice


def _stored_bytes(body: Body) -> float:
    """Bytes, for each score, of the products' results; see `XlaTraits.fuses_attention_scores`."""
    return float(
        sum(
            result.type.itemsize
            for m in body.members
            if m.rule.contracts
            for place, result in zip(m.outs, m.op.results, strict=True)
            if place in body.scores
        )
    )


def _points(body: Body, dims: Labels) -> int:
    return math.prod(body.sizes[f] for f in dims if f != NONE)


def reduced_by(member: Member, label: int) -> str:
    """Monoid by which a member combines a label's dim, or ""."""
    return member.rule.reducers[member.factors.index(label)] if label in member.factors else ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Inside:
    """`LocalContext` of a member of a composite op.

    Attributes:
      outer: context of the composite op; None if `where` has all labels.
      factors: label of each factor of the member.
      where: index and number of blocks, by label.
    """

    outer: LocalContext | None
    factors: Labels
    where: Where
    mesh: None = None

    def tiles(self, factor: int) -> int:
        label = self.factors[factor] if factor >= 0 else NONE
        if label in self.where:
            return self.where[label][1]
        return self.outer.tiles(label) if self.outer and label >= 0 else 1

    def tile_index(self, factor: int) -> Any:
        label = self.factors[factor]
        if label in self.where:
            return jnp.int32(self.where[label][0])
        return self.outer.tile_index(label) if self.outer else jnp.int32(0)

    def is_first(self, factor: int) -> Any:
        return self.tile_index(factor) == 0

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        raise NotImplementedError("members have no effects")

    def last_effects(self) -> Sequence[Any]:
        return ()

    def ran(self, token: Any) -> None:
        pass

    def shardings(self) -> Sequence[Any]:
        return ()


def run_members(
    ctx: LocalContext | None,
    body: Body,
    env: Env,
    where: Where,
    change: Mapping[int, Callable[[Any], Any]] | None = None,
    wanted: Callable[[Member], bool] = lambda _: True,
) -> Env:
    """Runs members on one block and adds their results to `env`.

    Values in `env` are not recomputed.

    Args:
      where: index and number of blocks by label; labels without an entry are tiled as in `ctx`.
      change: functions applied to results, by place, before any member reads them.
      wanted: selects the members to run.
    """
    change = change or {}
    for m in body.members:
        if m.outs[0] in env or not wanted(m):
            continue
        ins = [_read(env, x) for x in m.ins]
        wide = m.rule.contracts and m.outs[0] in body.results and body.key_label in where
        op = widened(m.op) if wide else m.op
        outs = run_local(_Inside(ctx, m.factors, where), m.rule, op, ins)
        for place, out in zip(m.outs, outs, strict=True):
            env[place] = change[place](out) if place in change else out
    return env


def _read(env: Mapping[int, Any], x: Place) -> Any:
    return jnp.asarray(x.value, x.type.dtype) if isinstance(x, Literal) else env[x]


def local_attention(ctx: LocalContext, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results of the members on whole keys."""
    body: Body = op.params["body"]
    env = run_members(ctx, body, dict(enumerate(args)), {})
    return [env[p] for p in body.results]


def forward_turn(
    ctx: LocalContext, op: Op, args: Sequence[Any], state: Any, where: Where
) -> tuple[Any, Sequence[Any]]:
    """One block of keys; the state is (maximum, sum, product) so far."""
    body: Body = op.params["body"]
    online = body.online
    assert online is not None
    env: Env = dict(enumerate(args))
    top_before, total_before, result_before = state or (None, None, None)

    def larger(top: Any) -> Any:
        top = top if top_before is None else jnp.maximum(top_before, top)
        env[-1] = top
        return jnp.where(jnp.isfinite(top), top, jnp.zeros((), top.dtype))

    def undivided(share: Any) -> Any:
        return env[online.exponentials].astype(share.dtype)

    change: dict[int, Callable[[Any], Any]] = {online.weights: undivided}
    if online.maximum is not None:
        change[online.maximum] = larger
    run_members(ctx, body, env, where, change)
    total, result = env[online.total], env[online.result]
    top = None
    if online.maximum is not None:
        top = env[-1]
        if top_before is not None:
            dims, scale = body.labels[online.maximum], jnp.exp(top_before - env[online.maximum])
            total_before = total_before * fit(scale, dims, body.labels[online.total])
            result_before = result_before * fit(scale, dims, body.labels[online.result])
    if total_before is not None:
        total, result = total + total_before, result + result_before
    return (top, total, result), ()


def forward_finish(
    ctx: LocalContext, op: Op, args: Sequence[Any], state: Any, where: Where
) -> Sequence[Any]:
    """Results of the forward pass: rows of maximum and sum, and the product over the sum."""
    body: Body = op.params["body"]
    online = body.online
    assert online is not None
    top, total, result = state
    rows: Env = dict(enumerate(args)) | {online.total: total}
    if online.maximum is not None:
        rows[online.maximum] = top

    def of_rows(m: Member) -> bool:
        inner = not body.scores.isdisjoint(m.outs) or body.key_label in m.factors
        return not inner and all(x == NONE or x in rows for x in m.reads)

    run_members(ctx, body, rows, where, wanted=of_rows)
    result = result / fit(
        rows[online.divisor], body.labels[online.divisor], body.labels[online.result]
    )
    (made,) = (m.op.results[0] for m in body.members if online.result in m.outs)
    rows[online.result] = result.astype(made.type.dtype)
    return [rows[p] for p in body.results]


def backward_turn(
    ctx: LocalContext, op: Op, args: Sequence[Any], state: Any, where: Where
) -> tuple[Any, Sequence[Any]]:
    """One block of keys; the state is sums over keys known beforehand, and results so far."""
    body: Body = op.params["body"]
    env: Env = dict(enumerate(args))
    if state is None:
        made = {out: m.op.results[0].type for m in body.members for out in m.outs}
        state = [_row_sum(body, env, s).astype(made[s.place].dtype) for s in body.sums], {}
    sums, before = state
    env |= {s.place: x for s, x in zip(body.sums, sums, strict=True)}
    run_members(ctx, body, env, where)
    so_far = {}
    for p in body.results:
        if body.key_label not in body.labels[p]:
            now: Any = env[p]
            so_far[p] = now if p not in before or p not in summed(body) else before[p] + now
    kept = zip(body.results, op.results, strict=True)
    return (sums, so_far), [env[p].astype(r.type.dtype) for p, r in kept if p not in so_far]


def backward_finish(
    ctx: LocalContext, op: Op, args: Sequence[Any], state: Any, where: Where
) -> Sequence[Any]:
    """Results of the backward pass that do not travel with the blocks."""
    body: Body = op.params["body"]
    _, so_far = state
    return [
        so_far[p].astype(r.type.dtype) if p in so_far else ()
        for p, r in zip(body.results, op.results, strict=True)
    ]


def summed(body: Body) -> set[int]:
    """Places of a backward pass that are sums over keys."""
    return {
        out for m in body.members if reduced_by(m, body.key_label) == "sum" for out in m.outs
    } - {s.place for s in body.sums}


def _row_sum(body: Body, env: Env, known: RowSum) -> Any:
    """A sum over keys, from the result and its cotangent."""
    (member,) = (m for m in body.members if known.place in m.outs)
    dims = body.labels[known.place]
    both = [(known.result, 1), (known.cotangent, 1)]
    wide = jnp.promote_types(member.op.results[0].type.dtype, jnp.float32)
    terms: list[Any] = []
    for x, power in (*both, *known.rows):
        labels = () if isinstance(x, Literal) else body.labels[x]
        value = jnp.asarray(_read(env, x), wide)
        kept = [d for d, f in enumerate(labels) if f != NONE]
        value = value.reshape([value.shape[d] for d in kept])
        terms += [value if power > 0 else 1 / value, [labels[d] for d in kept]]
    total = jnp.einsum(*terms, [f for f in dims if f != NONE])
    shape = [1 if f == NONE else total.shape[i] for f, i in _positions(dims)]
    return known.sign * total.reshape(shape)


def _positions(dims: Labels) -> list[tuple[int, int]]:
    """(label, number of labels before it) of each dim."""
    return [(f, sum(g != NONE for g in dims[:d])) for d, f in enumerate(dims)]


def fit(x: Any, labels: Labels, wanted: Labels) -> Any:
    """`x` transposed and reshaped to the dims of `wanted`; absent dims get size 1."""
    kept = [d for d, f in enumerate(labels) if f != NONE and f in wanted]
    order = sorted(kept, key=lambda d: wanted.index(labels[d]))
    others = [d for d in range(len(labels)) if d not in kept]
    x = jnp.transpose(x, (*order, *others))
    sizes = {labels[d]: x.shape[i] for i, d in enumerate(order)}
    return x.reshape([sizes.get(f, 1) for f in wanted])
