"""Reshards and windows of one region, with copies shared among ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Literal, Op, Operand
from partir_search.ir.partition import Layout, Partial, Window
from partir_search.lowering.halo import keeps_tile, window_steps
from partir_search.lowering.home_layouts import HomeLayouts
from partir_search.lowering.local_ir import Instruction, Reshard, RingReshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Halo, HaloPermute, Mask, Permute


@dataclasses.dataclass(slots=True)
class _Copy:
    """A resharded copy of a value.

    Attributes:
      local: the copy.
      last_use: position of the last op that read the copy.
      backward: True if the copy was made in the backward pass.
    """

    local: LocalValue
    last_use: int
    backward: bool


class ReshardBuilder:
    """Reshards of one region, with the copies made.

    Attributes:
      steps: instructions in order.
      copies: copies by value and layout, or by value and window.
      ring_operands: operands left by earlier rings, by value, layout and offsets (`Ring.place`).
      position: position in the region of the op being lowered.
    """

    def __init__(self, owner: HomeLayouts) -> None:
        self.owner = owner
        self.steps: list[Instruction] = []
        self.copies: dict[tuple[object, ...], _Copy] = {}
        self.ring_operands: dict[tuple[object, ...], LocalValue] = {}
        self.position = 0

    def reshard_operand(self, operand: Operand, layout: Layout, op: Op | None) -> Source:
        """Operand in `layout`: at home, a copy, or a new reshard.

        Partial sums stay as at home, except on axes looped over by the op: these are scattered.
        """
        if isinstance(operand, Literal):
            return operand
        home = self.owner.home(operand.id)
        if home.layout == layout:
            return home
        backward = op.backward if op else True
        key = (operand.id, layout)
        copy = self.copies.get(key)
        near = copy and copy.backward == backward and self.is_near(copy)
        if copy and (near or self.keeps_gathered(home.layout, layout)):
            copy.last_use = self.position
            return copy.local
        keep = self.unfinished(home, op)
        local = self.reshard(home, layout, keep, op, regather=copy is not None)
        self.copies[key] = _Copy(local, self.position, backward)
        return local

    def unfinished(self, local: LocalValue, op: Op | None) -> Partial:
        """Partial sums of an operand passed on by an op: on axes without a loop."""
        if not local.partial or op is None or op.regions:
            return local.partial
        axes = self.owner.partition.axes
        return tuple((a, monoid) for a, monoid in local.partial if axes[a].loops[op.id] < 0)

    def is_near(self, copy: _Copy) -> bool:
        """True if at most `regather_distance_ops` ops lie between here and a copy's last use."""
        return self.position - copy.last_use <= self.owner.cache.traits.regather_distance_ops

    def keeps_gathered(self, source: Layout, target: Layout) -> bool:
        """True if a copy is gathered only along axes of `Modes.keep_gathered`."""
        gathered = {a for axes in source for a in axes} - {a for axes in target for a in axes}
        return bool(gathered) and gathered <= self.owner.partition.modes.keep_gathered

    def reshard(
        self,
        local: LocalValue,
        layout: Layout,
        keep: Partial,
        op: Op | None,
        *,
        regather: bool = False,
    ) -> LocalValue:
        """Appends the steps from a local value to `layout`; see `HomeLayouts.reshards`."""
        steps = self.owner.reshards(local, layout, keep, op, regather)
        self.steps += steps
        return steps[-1].target if steps else local

    def window(self, source: Source, windows: tuple[Window, ...], op: Op) -> Source:
        """Windows of `source`, as read by the op: a nearby copy, or new steps."""
        if isinstance(source, Literal):
            return source
        takes_halos = self.owner.partition.rules[op.id].accepts_haloed_tile
        key = (source.value.id, source.layout, windows, takes_halos)
        copy = self.copies.get(key)
        if copy and copy.backward == op.backward and self.is_near(copy):
            copy.last_use = self.position
            return copy.local
        local = source
        for w in windows:
            extent, tiled = local.value.type.shape[w.dim], bool(local.layout[w.dim])
            last, tile = w is windows[-1] and takes_halos, local.shape[w.dim]
            blocks: list[LocalValue] = []
            for step in window_steps(w, extent, tiled, local.layout, local.partial):
                if isinstance(step, HaloPermute):
                    blocks.append(self.halo_block(local, step, op))
                    continue
                if last and isinstance(step, Halo) and keeps_tile(step, tile):
                    step = dataclasses.replace(step, joined=False)
                target = self.owner.cache.after_step(local, step, blocks)
                self.steps.append(Reshard(step, local, target, op, received=tuple(blocks)))
                local = target
        self.copies[key] = _Copy(local, self.position, op.backward)
        return local

    def mask(self, source: Source, axes: tuple[int, ...], op: Op) -> Source:
        """`source` on the first device of `axes` alone, as a partial sum."""
        assert isinstance(source, LocalValue)
        sums = dict(source.partial) | dict.fromkeys(axes, "sum")
        partial = tuple((a, sums[a]) for a in self.owner.order if a in sums)
        target = self.owner.local(source.value, source.layout, partial)
        step = Mask(axes=axes, layout=source.layout, partial=partial)
        self.steps.append(Reshard(step, source, target, op))
        return target

    def halo_block(self, local: LocalValue, step: HaloPermute, op: Op) -> LocalValue:
        """Block received from a neighbour; kept for both passes, as halos are small."""
        key = (local.id, step)
        if key not in self.copies:
            target = self.owner.cache.after_step(local, step)
            self.steps.append(Reshard(step, local, target, op))
            self.copies[key] = _Copy(target, self.position, op.backward)
        return self.copies[key].local

    def reshard_results(self, outs: Sequence[LocalValue], op: Op) -> None:
        """Reshards results of an op to their home layouts."""
        for made in outs:
            home = self.owner.home(made.value.id)
            if made is not home:
                self.reshard(made, home.layout, home.partial, op)

    def permute_block(
        self, step: Permute, source: LocalValue, target: LocalValue, op: Op, turn: int
    ) -> None:
        """Appends the permute of a block for a turn.

        A permute that repeats one of the forward pass is a regather: merged with the first permute,
        the received block would stay alive between the passes.
        """
        key = (source.id, step)
        regather = key in self.copies
        self.steps.append(RingReshard(step, source, target, op, regather, turn=turn))
        self.copies[key] = _Copy(target, self.position, op.backward)
