"""Copies of one program in a list of ops: layers, and the origins of each layer's operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Union

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.passes.roll.places import named

NO_EQUALS: Mapping[int, Value] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    """Result `result` of op `offset` of the same layer."""

    offset: int
    result: int


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """Result `result` of op `offset` of an earlier layer, `age` layers before.

    The first `age` layers read `initials`, one each.
    """

    offset: int
    result: int
    initials: tuple[Value, ...]

    @property
    def age(self) -> int:
        """Number of layers from the maker to the reader."""
        return len(self.initials)

    @property
    def initial(self) -> Value:
        """Value read by the first layer."""
        return self.initials[0]

    @property
    def younger(self) -> Carried | None:
        """The same value one layer before; None of a value of the layer before."""
        return Carried(self.offset, self.result, self.initials[1:]) if self.age > 1 else None


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """Values made outside of all layers, one for each layer."""

    values: tuple[Value, ...]

    @property
    def one(self) -> bool:
        """True if all layers read one value."""
        return all(v is self.values[0] for v in self.values)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Numbers:
    """Scalars of the program's text, one for each layer: numbers folded into random keys."""

    literals: tuple[Literal, ...]


Source = Union[Inner, Carried, Given, Literal, Numbers]


class Unlike(ValueError):
    """Layers whose operands do not correspond."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Layers:
    """Layers in execution order.

    Attributes:
      ops: ops of each layer; ops at equal positions (offsets) have equal fingerprints.
      sources: [offset][operand] origin of the operand.
      equals: by value id, the first of all values known to be equal.
    """

    ops: tuple[tuple[Op, ...], ...]
    sources: tuple[tuple[Source, ...], ...]
    equals: Mapping[int, Value]

    @property
    def first(self) -> tuple[Op, ...]:
        """Ops of the first layer."""
        return self.ops[0]

    @property
    def carries(self) -> list[Carried]:
        """Distinct values handed from layer to layer, by first use.

        A value handed on for several layers is one of each age, the eldest first.
        """
        found: dict[Carried, None] = {}
        for source in (s for sources in self.sources for s in sources):
            carry = source if isinstance(source, Carried) else None
            while carry is not None:
                found[carry] = None
                carry = carry.younger
        return list(found)

    @property
    def given(self) -> list[Given]:
        """Distinct values from outside, by first use."""
        found = (s for sources in self.sources for s in sources if isinstance(s, Given))
        return list({tuple(v.id for v in s.values): s for s in found}.values())

    @property
    def all_made(self) -> list[tuple[Value, ...]]:
        """Each result of each op, of each layer."""
        places = [(o, r) for o, op in enumerate(self.first) for r in range(len(op.results))]
        return [self.made(*place) for place in places]

    def made(self, offset: int, result: int) -> tuple[Value, ...]:
        """A result of an op, of each layer."""
        return tuple([ops[offset].results[result] for ops in self.ops])

    def entering(self, carry: Carried) -> tuple[Value, ...]:
        """Value of a carry read by each layer."""
        made = self.made(carry.offset, carry.result)
        return *carry.initials, *made[: -carry.age]

    def last(self, carry: Carried) -> Value:
        """Value of a carry after the last layer."""
        return self.made(carry.offset, carry.result)[-carry.age]

    def with_ops(self, ops: Sequence[Sequence[Op]]) -> Layers:
        """Layers with new ops."""
        return layers_of(ops, self.equals)


def layers_of(ops: Sequence[Sequence[Op]], equals: Mapping[int, Value] = NO_EQUALS) -> Layers:
    """Layers with the ops of each.

    Args:
      equals: by value id, the first of all values known to be equal.

    Raises:
      Unlike: an operand is made at different places in different layers.
    """
    made = {
        v.id: (k, offset, result)
        for k, layer in enumerate(ops)
        for offset, op in enumerate(layer)
        for result, v in enumerate(op.results)
    }

    def source(op: Op, xs: Sequence[Operand]) -> Source:
        first = xs[0]
        if isinstance(first, Literal):
            literals = tuple([x for x in xs if isinstance(x, Literal)])
            alike = all(repr(x.number) == repr(first.number) for x in literals)
            return first if alike else Numbers(literals)
        values = [x for x in xs if isinstance(x, Value)]
        places = [made.get(v.id) for v in values]
        if all(place is None for place in places):
            found = {equals.get(v.id, v) for v in values}
            return Given(tuple(values) if len(found) > 1 else (*found,) * len(values))
        age = next(k for k, place in enumerate(places) if place is not None)
        _, offset, result = places[age] or (0, 0, 0)
        expected = [*(None,) * age, *((k, offset, result) for k in range(len(places) - age))]
        if places == expected and 2 * age <= len(places):  # else few layers hand a value on
            return Carried(offset, result, tuple(values[:age])) if age else Inner(offset, result)
        raise Unlike(f"{named(op)} reads {_unlike(values, [p and p[0] for p in places])}")

    return Layers(
        tuple(map(tuple, ops)),
        tuple(
            tuple(source(column[0], xs) for xs in zip(*(op.operands for op in column), strict=True))
            for column in zip(*ops, strict=True)
        ),
        equals,
    )


def _unlike(values: Sequence[Value], makers: Sequence[int | None]) -> str:
    """Values read at one place by the second layer and by a layer unlike it.

    Args:
      makers: number of the layer that makes the value read by each layer; None for none.
    """
    back = [None if j is None else k - j for k, j in enumerate(makers)]
    first = 1 if back[1] in (0, 1) else 0  # else a value of two layers before, or of outside
    other = next((k for k in range(1, len(back)) if back[k] != back[first]), 0)

    def read(k: int) -> str:
        maker = makers[k]
        where = "made outside of the layers" if maker is None else f"made in layer {maker + 1}"
        return f"in layer {k + 1} %{values[k].name}, {where}"

    return f"{read(first)}, and {read(other)}"


def independent(layers: Layers, late: Set[int] = frozenset()) -> tuple[set[int], set[int]]:
    """Offsets of ops on common values only, and on a layer's own values as well.

    Args:
      late: ids of values counted as handed from layer to layer.
    """
    common: set[int] = set()
    own: set[int] = set()
    for offset, sources in enumerate(layers.sources):
        shared = True
        for source in sources:
            if isinstance(source, Carried):
                break
            if isinstance(source, Inner):
                if source.offset not in common and source.offset not in own:
                    break
                shared &= source.offset in common
            elif isinstance(source, Numbers):
                shared = False
            elif isinstance(source, Given):
                if any(v.id in late for v in source.values):
                    break
                shared &= source.one
        else:
            (common if shared else own).add(offset)
    return common, own


def crossing_bytes(ops: Sequence[Op], start: int, period: int) -> int:
    """Bytes of the values read by the second layer from the first, of layers from `start` on."""
    made = {r.id: r.type.nbytes for op in ops[start : start + period] for r in op.results}
    read = {v.id for op in ops[start + period : start + 2 * period] for _, v in op.inputs()}
    return sum(nbytes for i, nbytes in made.items() if i in read)
