"""Broadcasts of values known before a scan, moved into the scan.

jax moves ops without operands from an iteration out of scans with gradients: the broadcast of an
attention mask [positions, positions] to the scores [batch, heads, positions, positions]. Inside of
the scan, kernels repeat the elements themselves; outside, the broadcast is an array in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.registry import role_of

_MOVES = frozenset({Role.BROADCAST, Role.RESHAPE, Role.SQUEEZE, Role.TRANSPOSITION})


def with_broadcasts_inside(module: Module) -> Module:
    """Module with broadcasts inside of the scans with a use; the same one without any."""
    if not any(role_of(op) is Role.SCAN for op in module.ops):
        return module
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


class _Rewriter(Rewriter):
    """Rewriter of all regions, outer regions first.

    Attributes:
      found: True after the first rewritten scan.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)

    def ops(self, old: Region) -> list[Op]:
        makers = {r: op for op in old.ops for r in op.results}
        read = {x for x in old.results if isinstance(x, Value)}
        kept = list[Op]()
        for op in reversed(old.ops):  # ops without readers after the rewrite are left out
            if not op.effect and read.isdisjoint(op.results):
                continue
            scan = self._with_broadcasts(op, makers) if role_of(op) is Role.SCAN else op
            read.update(x for _, x in scan.inputs())
            kept.append(scan)
        return [self.op(op) for op in reversed(kept)]

    def _with_broadcasts(self, op: Op, makers: Mapping[Value, Op]) -> Op:
        """A scan that makes broadcast constants itself."""
        (body,), count = op.regions, int(op.params["num_consts"])
        operands, args, inside = list[Operand](), list[Value](), list[Op]()
        for arg, x in zip(body.args[:count], op.operands[:count], strict=True):
            moves = _moves(x, makers) if isinstance(x, Value) else []
            if not moves:
                operands.append(x)
                args.append(arg)
                continue
            self.found = True
            source = moves[0].operands[0]
            if isinstance(source, Value):
                operands.append(source)
                source = self._fresh(source)
                args.append(source)
            for move in moves:
                made = arg if move is moves[-1] else self._fresh(move.results[0])
                inside.append(move.with_parts((source, *move.operands[1:]), (made,), ()))
                source = made
        if not inside:
            return op
        region = Region((*args, *body.args[count:]), (*inside, *body.ops), body.results)
        params = {k: v for k, v in op.params.items() if k != "linear"}
        return dataclasses.replace(
            op,
            operands=(*operands, *op.operands[count:]),
            regions=(region,),
            params={**params, "num_consts": len(args)},
            key=None,
        )

    def _fresh(self, value: Value) -> Value:
        return Value(-1, value.type, self._names(value.name))


def _moves(value: Value, makers: Mapping[Value, Op]) -> Sequence[Op]:
    """Ops that make a value of at most half as many bytes, first op first; () if none do."""
    found = list[Op]()
    source: Operand = value
    while isinstance(source, Value) and (maker := makers.get(source)) is not None:
        if role_of(maker) not in _MOVES or len(maker.inputs()) > 1:
            break
        found.append(maker)
        source = maker.operands[0]
    return found[::-1] if 2 * source.type.nbytes <= value.type.nbytes else []
