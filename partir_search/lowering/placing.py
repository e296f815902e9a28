"""Reshards and windows of one region's instructions, and the copies that later ops share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Literal, Op, Operand
from partir_search.ir.partition import Layout, Pending, Window
from partir_search.lowering.halo import keeps_tile, window_steps
from partir_search.lowering.home_layouts import HomeLayouts
from partir_search.lowering.local_ir import Instruction, Reshard, RingReshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Halo, HaloPermute, Permute


@dataclasses.dataclass(slots=True)
class _Copy:
    local: LocalValue
    last_use: int
    backward: bool


class Placer:
    """One region's instructions, with the copies made so far."""

    def __init__(self, owner: HomeLayouts) -> None:
        self.owner = owner
        self.steps: list[Instruction] = []
        self.copies: dict[tuple[object, ...], _Copy] = {}
        self.left: dict[
            tuple[object, ...], LocalValue
        ] = {}  # by place, where rings have left operands
        self.position = 0

    def reshard_operand(self, operand: Operand, layout: Layout, op: Op | None) -> Source:
        """The operand in `layout`, with the partial sums of its home; resharded if need be."""
        if isinstance(operand, Literal):
            return operand
        home = self.owner.home(operand.id)
        if home.layout == layout:
            return home
        backward = op.backward if op else True
        key = (operand.id, layout)
        copy = self.copies.get(key)
        near = copy and copy.backward == backward and self.is_near(copy)
        if copy and (near or self.held(home.layout, layout)):
            copy.last_use = self.position
            return copy.local
        local = self.reshard(home, layout, home.pending, op, regather=copy is not None)
        self.copies[key] = _Copy(local, self.position, backward)
        return local

    def is_near(self, copy: _Copy) -> bool:
        """True if a copy was used so few ops ago that it is kept."""
        return self.position - copy.last_use <= self.owner.cache.traits.regather_distance_ops

    def held(self, source: Layout, target: Layout) -> bool:
        """Tells whether a copy is gathered along axes that hold copies, and no other axes."""
        gathered = {a for axes in source for a in axes} - {a for axes in target for a in axes}
        return bool(gathered) and gathered <= self.owner.partition.modes.keep_gathered

    def reshard(
        self,
        local: LocalValue,
        layout: Layout,
        keep: Pending,
        op: Op | None,
        *,
        regather: bool = False,
    ) -> LocalValue:
        steps = self.owner.reshards(local, layout, keep, op, regather)
        self.steps += steps
        return steps[-1].target if steps else local

    def window(self, source: Source, windows: tuple[Window, ...], op: Op) -> Source:
        """The windows of `source` that the op reads."""
        if isinstance(source, Literal):
            return source
        takes_parts = self.owner.partition.rules[op.id].accepts_halo_parts
        key = (source.value.id, source.layout, windows, takes_parts)
        copy = self.copies.get(key)
        if copy and copy.backward == op.backward and self.is_near(copy):
            copy.last_use = self.position
            return copy.local
        local = source
        for w in windows:
            extent, tiled = local.value.type.shape[w.dim], bool(local.layout[w.dim])
            last, tile = w is windows[-1] and takes_parts, local.shape[w.dim]
            blocks: list[LocalValue] = []
            for step in window_steps(w, extent, tiled, local.layout, local.pending):
                if isinstance(step, HaloPermute):
                    blocks.append(self.fetch(local, step, op))
                    continue
                if last and isinstance(step, Halo) and keeps_tile(step, tile):
                    step = dataclasses.replace(step, joined=False)
                target = self.owner.cache.after(local, step, blocks)
                self.steps.append(Reshard(step, local, target, op, received=tuple(blocks)))
                local = target
        self.copies[key] = _Copy(local, self.position, op.backward)
        return local

    def fetch(self, local: LocalValue, step: HaloPermute, op: Op) -> LocalValue:
        """A neighbour's block, kept for all uses, also in the backward pass: halos are small."""
        key = (local.id, step)
        if key not in self.copies:
            target = self.owner.cache.after(local, step)
            self.steps.append(Reshard(step, local, target, op))
            self.copies[key] = _Copy(target, self.position, op.backward)
        return self.copies[key].local

    def reshard_results(self, outs: Sequence[LocalValue], op: Op) -> None:
        """Brings the results of an op to their home layouts."""
        for made in outs:
            home = self.owner.home(made.value.id)
            if made is not home:
                self.reshard(made, home.layout, home.pending, op)

    def pass_on(
        self, step: Permute, source: LocalValue, target: LocalValue, op: Op, turn: int
    ) -> None:
        """Passes a block on for a turn. A block that the forward pass passed on is passed again:
        merged with the first permute, the block would be kept until here.
        """
        key = (source.id, step)
        regather = key in self.copies
        self.steps.append(RingReshard(step, source, target, op, regather, turn=turn))
        self.copies[key] = _Copy(target, self.position, op.backward)
