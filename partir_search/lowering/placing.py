"""Places operands and results: the redistributions and windows of one region's instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Literal, Op, Operand
from partir_search.ir.partition import Layout, Pending, Window
from partir_search.lowering.halo import Stretch, keeps_tile, window_steps
from partir_search.lowering.local_ir import Apply, Move
from partir_search.lowering.reshard import Step
from partir_search.lowering.resting import Resting
from partir_search.lowering.slots import Slot, Source


@dataclasses.dataclass(slots=True)
class _Copy:
    slot: Slot
    last_use: int
    backward: bool


class Placer:
    """One region's instructions, with the copies made so far."""

    def __init__(self, owner: Resting) -> None:
        self.owner = owner
        self.steps: list[Apply | Move] = []
        self.copies: dict[tuple[object, ...], _Copy] = {}
        self.left: dict[tuple[object, ...], Slot] = {}  # by place, where rings have left operands
        self.position = 0

    def need(self, operand: Operand, layout: Layout, op: Op | None) -> Source:
        """The operand in `layout`, pending as it rests; redistributes it if it must."""
        if isinstance(operand, Literal):
            return operand
        rest = self.owner.rest(operand.id)
        if rest.layout == layout:
            return rest
        backward = op.backward if op else True
        key = (operand.id, layout)
        copy = self.copies.get(key)
        near = copy and copy.backward == backward and self.is_near(copy)
        if copy and (near or self.held(rest.layout, layout)):
            copy.last_use = self.position
            return copy.slot
        slot = self.move(rest, layout, rest.pending, op, again=copy is not None)
        self.copies[key] = _Copy(slot, self.position, backward)
        return slot

    def is_near(self, copy: _Copy) -> bool:
        """True if a copy was used so few ops ago that it is kept."""
        return self.position - copy.last_use <= self.owner.cache.traits.regather_distance_ops

    def held(self, source: Layout, target: Layout) -> bool:
        """Tells whether a copy is gathered along axes that hold copies, and no other axes."""
        gathered = {a for axes in source for a in axes} - {a for axes in target for a in axes}
        return bool(gathered) and gathered <= self.owner.partition.modes.holds

    def move(
        self, slot: Slot, layout: Layout, keep: Pending, op: Op | None, *, again: bool = False
    ) -> Slot:
        moves = self.owner.moves(slot, layout, keep, op, again)
        self.steps += moves
        return moves[-1].target if moves else slot

    def window(self, source: Source, windows: tuple[Window, ...], op: Op) -> Source:
        """The stretches of `source` that the op reads."""
        if isinstance(source, Literal):
            return source
        takes_parts = self.owner.partition.rules[op.id].beside
        key = (source.value.id, source.layout, windows, takes_parts)
        copy = self.copies.get(key)
        if copy and copy.backward == op.backward and self.is_near(copy):
            copy.last_use = self.position
            return copy.slot
        slot = source
        for w in windows:
            extent, tiled = slot.value.type.shape[w.dim], bool(slot.layout[w.dim])
            last, tile = w is windows[-1] and takes_parts, slot.shape[w.dim]
            blocks: list[Slot] = []
            for step in window_steps(w, extent, tiled, slot.layout, slot.pending):
                if step.kind == "collective_permute":
                    blocks.append(self.fetch(slot, step, op))
                    continue
                target = self.owner.cache.stretched(slot, step, blocks)
                beside = last and isinstance(step.detail, Stretch) and keeps_tile(step.detail, tile)
                found = tuple(blocks)
                self.steps.append(Move(step, slot, target, op, blocks=found, beside=beside))
                slot = target
        self.copies[key] = _Copy(slot, self.position, op.backward)
        return slot

    def fetch(self, slot: Slot, step: Step, op: Op) -> Slot:
        """A neighbour's block: so small that it is kept for all uses, also in the backward pass."""
        key = (slot.id, step)
        if key not in self.copies:
            target = self.owner.cache.stretched(slot, step)
            self.steps.append(Move(step, slot, target, op))
            self.copies[key] = _Copy(target, self.position, op.backward)
        return self.copies[key].slot

    def settle(self, outs: Sequence[Slot], op: Op) -> None:
        """Brings fresh results to the layouts in which they rest."""
        for made in outs:
            rest = self.owner.rest(made.value.id)
            if made is not rest:
                self.move(made, rest.layout, rest.pending, op)

    def pass_on(self, step: Step, source: Slot, target: Slot, op: Op, turn: int) -> None:
        """A block moves on. One that did so in the forward pass does it again: merged with that,
        it would be kept until now.
        """
        key = (source.id, step)
        again = key in self.copies
        self.steps.append(Move(step, source, target, op, again, turn=turn))
        self.copies[key] = _Copy(target, self.position, op.backward)
