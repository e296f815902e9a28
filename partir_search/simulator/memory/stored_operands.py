"""Elementwise values stored by XLA because of the reading ops.

- Pieces of concatenations read by dots (`XlaTraits.stores_concatenated_pieces`): the dot's kernel
  pads and merges the pieces, and computes none of them: halves of rotary embeddings, waves of
  positions, features of edges.
- Repeated elements and converted arguments read by convolutions as images
  (`XlaTraits.stores_repeated_images`): neither a broadcast behind a reshape nor a copy of an
  argument into the layout of images is made inside of a convolution.
- Values sliced by several readers (`XlaTraits.stores_values_sliced_twice`). A pad with a negative
  number of elements at an end, made of a slice where dims are padded to divide, is one.
- Values sliced by several readers and computed from such values
  (`XlaTraits.stores_values_sliced_again`): levels of recursions and of associative scans.
- Operands and results of moves with gaps between elements
  (`XlaTraits.materializes_dilations`).
- Operands of the user's kernels, on every target. Reshapes and transposes of an operand count
  as layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.float_types import changes_width
from partir_search.simulator.target.traits import XlaTraits


def stored_operands(module: Module, rules: Sequence[OpRule], traits: XlaTraits) -> frozenset[int]:
    """Ids of the values stored for their readers.

    Args:
      rules: per op id.
    """
    found = _Operands(module, rules, traits.stored_repeat_fraction)
    ids = set[int]()
    for op in module.ops:
        if rules[op.id].kind is Kind.KERNEL:
            ids.update(map(found.laid_out, (v for _, v in op.inputs())))
        if traits.materializes_dilations:
            ids.update(found.apart(op))
        if traits.stores_concatenated_pieces:
            ids.update(found.pieces(op))
        if traits.stores_repeated_images:
            ids.update(found.images(op))
        if traits.stores_values_sliced_twice:
            ids.update(found.sliced_twice(op))
        if traits.stores_values_sliced_again:
            ids.update(found.sliced_again(op))
    return frozenset(ids)


def piece_shapes(
    module: Module, rules: Sequence[OpRule], traits: XlaTraits
) -> dict[int, tuple[int, ...]]:
    """Shape of the widest piece, by id of each piece of a concatenation along the last dim that is
    stored for a dot.

    Args:
      rules: per op id.
    """
    found = dict[int, tuple[int, ...]]()
    operands = _Operands(module, rules, traits.stored_repeat_fraction)
    for op in module.ops if traits.stores_concatenated_pieces else ():
        pieces, shapes = set(operands.pieces(op)), [v.type.shape for _, v in op.inputs()]
        whole = op.results[0].type.shape if pieces else ()
        if len(whole) > 1 and all(shape[:-1] == whole[:-1] for shape in shapes):
            found.update(dict.fromkeys(pieces, max(shapes, key=lambda shape: shape[-1])))
    return found


class _Operands:
    """Queries about the makers and readers of a module's values."""

    def __init__(self, module: Module, rules: Sequence[OpRule], fraction: float) -> None:
        self.rules, self.fraction = rules, fraction
        self.uses: DefUse = def_use(module)
        self.arguments = {v.id for v in module.body.args}
        self.sliced = set[int]()  # ids of values computed from values sliced twice and not stored
        self.computed, self.read_by_dots = self._computed(module), self._read_by_dots(module)

    def apart(self, op: Op) -> Iterator[int]:
        """Operands and results of pads between elements, results of slices with strides."""
        rule = self.rules[op.id]
        if rule.elementwise and any(read.over > 1 for read in rule.reads):
            yield from (v.id for _, v in op.inputs())
            yield from (r.id for r in op.results)
        elif rule.role is Role.SLICE and any(abs(read.step) > 1 for read in rule.reads):
            yield from (r.id for r in op.results)

    def laid_out(self, value: Value) -> int:
        """Id of the value of which another is a reshape or transpose."""
        maker = self.uses.makers[value.id]
        while maker is not None and self.rules[maker.id].role in (Role.RESHAPE, Role.TRANSPOSITION):
            ((_, value),) = maker.inputs()
            maker = self.uses.makers[value.id]
        return value.id

    def pieces(self, op: Op) -> Iterator[int]:
        """Computed operands of a concatenation read by a dot."""
        concatenates = self.rules[op.id].role is Role.CONCATENATION
        if concatenates and op.results[0].id in self.read_by_dots:
            yield from (v.id for _, v in op.inputs() if v.id in self.computed)

    def images(self, op: Op) -> Iterator[int]:
        """The image of a convolution, if repeated or a converted argument."""
        image = op.operands[0] if op.operands else None
        if self.rules[op.id].role is not Role.CONVOLUTION or not isinstance(image, Value):
            return
        if self._repeats(image) or self._converts_argument(image):
            yield image.id

    def sliced_twice(self, op: Op) -> Iterator[int]:
        """The result of an elementwise op, if several readers take slices or cut ends off."""
        rule = self.rules[op.id]
        if rule.elementwise and not rule.moves and not op.regions and len(op.results) == 1:
            readers = self.uses.users[op.results[0].id]
            if sum(self._reads_part(u) for u in readers) > 1:
                yield op.results[0].id

    def sliced_again(self, op: Op) -> Iterator[int]:
        """The result of an elementwise op, if several readers take slices, and the value is
        computed from another such value that is not stored.
        """
        if op.regions or not self.rules[op.id].elementwise:
            return
        again = any(v.id in self.sliced for _, v in op.inputs())
        twice = list(self.sliced_twice(op))
        if again and twice:
            yield from twice
        elif again or twice:
            self.sliced.update(r.id for r in op.results)

    def _reads_part(self, op: Op) -> bool:
        """True for a slice, and for a pad with a negative number of elements at an end."""
        rule = self.rules[op.id]
        if rule.role is not Role.PADDING:
            return rule.role is Role.SLICE
        whole, padded = (x.type.shape for x in (op.operands[0], op.results[0]))
        windows = [(r.dim, *r.tile_window(0, padded[r.dim])) for r in rule.reads]
        return any(start > 0 or start + width < whole[d] for d, start, width in windows)

    def _read_by_dots(self, module: Module) -> set[int]:
        """Ids of values read by dots, directly or moved."""
        found = set[int]()
        for op in reversed(module.ops):
            rule = self.rules[op.id]
            moved = rule.moves and rule.elementwise and len(op.results) == 1
            dot = rule.contracts and rule.role is not Role.CONVOLUTION
            if dot or (moved and op.results[0].id in found):
                found.update([v.id for _, v in op.inputs()])
        return found

    def _computed(self, module: Module) -> set[int]:
        """Ids of results of arithmetic or of repeating broadcasts, directly or moved."""
        found = set[int]()
        for op in module.ops:
            rule, inputs = self.rules[op.id], op.inputs()
            if op.regions or not rule.elementwise:
                continue
            if rule.role is Role.BROADCAST:
                computed = any(self._is_large(v, op.results[0]) for _, v in inputs)
            else:
                computed = any(v.id in found for _, v in inputs) if rule.moves else bool(inputs)
            if computed:
                found.update([r.id for r in op.results])
        return found

    def _repeats(self, value: Value) -> bool:
        """True for a repeating broadcast of an array, directly or moved."""
        maker = self._elementwise_maker(value)
        inputs = [v for _, v in maker.inputs()] if maker is not None else []
        if maker is None or len(inputs) != 1:
            return False
        rule = self.rules[maker.id]
        if rule.role is Role.BROADCAST:
            smaller = inputs[0].type.nbytes < value.type.nbytes
            return smaller and self._is_large(inputs[0], value)
        return rule.moves and self._repeats(inputs[0])

    def _converts_argument(self, value: Value) -> bool:
        maker = self._elementwise_maker(value)
        if maker is None or not changes_width(maker, self.rules[maker.id]):
            return False
        return all(v.id in self.arguments for _, v in maker.inputs())

    def _elementwise_maker(self, value: Value) -> Op | None:
        maker = self.uses.makers[value.id]
        if maker is None or maker.regions or not self.rules[maker.id].elementwise:
            return None
        return maker

    def _is_large(self, source: Value, repeated: Value) -> bool:
        """True if a broadcast makes too few copies for readers to repeat the value themselves."""
        return source.type.nbytes > self.fraction * repeated.type.nbytes
