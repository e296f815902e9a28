"""Logical mesh: named axes with sizes, without devices.

An axis of the user's mesh may be split into sub-axes (`model` of 16 into `model.0` of 8 and
`model.1` of 2, device order unchanged): a dim of 8 can then be tiled by a sub-axis.
Planning treats each sub-axis as an axis.

Two axes r and c of equal size n have a *diagonal*, `r~c`, with device coordinate (r + c) mod n. Any
two of the three identify a device, and a value may be tiled on two of them. An op that loops over
all three, one of them a sum, runs as a ring (see `ir/skewed_schedule.py`).

A *time axis* has parts in place of devices: the parts of a tiled value exist one after the other, a
tile is one microbatch, a sum over the axis is an accumulation (see `lowering/time/`).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence

from partir_search.ir.sub_axis import SubAxis, parse_sub_axis
from partir_search.messages.validators import names as as_names
from partir_search.messages.validators import whole_number
from partir_search.messages.wording import did_you_mean, shown

DIAGONAL = "~"  # between the names of the two axes


@dataclasses.dataclass(frozen=True, slots=True)
class MeshShape:
    """Axes in major to minor order.

    Attributes:
      names: axis names, unique.
      sizes: devices along each axis.
      whole: for each axis, the user's axis it is, or is a sub-axis of.
      diagonals: (axis, axis) of each diagonal; diagonals come last among the axes.
      skewed_state: train state tiled on a diagonal keeps the order of blocks on devices between
        steps, instead of the order of the array.
      time_axes: number of time axes; they come last, after the diagonals.
      triples: (axis, axis, diagonal) of each diagonal.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    whole: tuple[str, ...] = ()
    diagonals: tuple[tuple[int, int], ...] = ()
    skewed_state: bool = False
    time_axes: int = 0
    triples: tuple[tuple[int, int, int], ...] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.whole:
            object.__setattr__(self, "whole", self.names)
        as_names("names of mesh axes", self.names, "('batch', 'model')")
        if not isinstance(self.sizes, tuple | list):
            raise TypeError(f"sizes of mesh axes are a tuple of ints, (2, 4), not {self.sizes!r}")
        if len(set(self.names)) != len(self.names) or len(self.names) != len(self.sizes):
            raise ValueError(
                f"mesh axes must be unique and each have a size: names {self.names}, sizes"
                f" {self.sizes}"
            )
        for name, size in zip(self.names, self.sizes, strict=True):
            if whole_number(f"the size of mesh axis {name!r}", size) < 1:
                raise ValueError(f"mesh axis {name!r} has size {size}; it must be at least 1")
        first = len(self.names) - len(self.diagonals) - self.time_axes
        triples = tuple((r, c, first + i) for i, (r, c) in enumerate(self.diagonals))
        object.__setattr__(self, "triples", triples)

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """Mesh of a text such as `"batch:2,model:4"`.

        Raises:
          ValueError: the text has another form.
        """
        if not isinstance(text, str):
            raise TypeError(f"a mesh is written as batch:2,model:4, not {shown(text)}")
        pairs = [tuple(s.strip() for s in entry.split(":")) for entry in text.split(",")]
        about = f"cannot read the mesh {text!r} (write it as batch:2,model:4)"
        for entry, pair in zip(text.split(","), pairs, strict=True):
            if len(pair) != 2 or not pair[0] or not pair[1].isdecimal():
                raise ValueError(f"{about}: {entry.strip()!r} is no axis and size")
        try:
            return cls(tuple(n for n, _ in pairs), tuple(int(s) for _, s in pairs))
        except ValueError as error:
            raise ValueError(f"{about}: {error}") from error

    @property
    def devices(self) -> int:
        return math.prod(self.device_sizes)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of all axes but diagonals and time axes."""
        return self.names[: len(self.names) - len(self.diagonals) - self.time_axes]

    @property
    def device_sizes(self) -> tuple[int, ...]:
        return self.sizes[: len(self.device_names)]

    @property
    def diagonal_names(self) -> tuple[str, ...]:
        return self.names[len(self.device_names) : len(self.names) - self.time_axes]

    @property
    def time_names(self) -> tuple[str, ...]:
        return self.names[len(self.names) - self.time_axes :]

    def is_time(self, axis: int) -> bool:
        """True if an axis is a time axis."""
        return axis >= len(self.names) - self.time_axes

    def triple(self, axis: int) -> tuple[int, ...]:
        """Two axes and their diagonal if `axis` is one of the three, or ()."""
        return next((t for t in self.triples if axis in t), ())

    def coordinate(self, axis: int, place: Sequence[int]) -> int:
        """Device's coordinate on an axis or a diagonal, from its coordinates on the device axes."""
        triple = self.triple(axis)
        if triple and triple[2] == axis:
            return (place[triple[0]] + place[triple[1]]) % self.sizes[axis]
        return place[axis]

    def with_diagonals(self, names: Iterable[str], skewed_state: bool = False) -> MeshShape:
        """The mesh with diagonals, named `r~c`.

        Raises:
          ValueError: the two axes are one, differ in size, or belong to a previous diagonal.
        """
        names = tuple(dict.fromkeys(names))
        pairs: list[tuple[int, int]] = []
        for name in names:
            r, _, c = name.partition(DIAGONAL)
            pair = self.index(r), self.index(c)
            size, other = (self.sizes[a] for a in pair)
            if size != other or r == c:
                raise ValueError(
                    f"{name!r} needs two axes of equal size; {r!r} has size {size} and {c!r} has"
                    f" {other}: use axes of equal size, or reshape the mesh"
                )
            if any(a in taken for taken in pairs for a in pair):
                raise ValueError(f"an axis can lie on one diagonal only; {list(names)} share some")
            pairs.append(pair)
        return MeshShape(
            self.names + names,
            self.sizes + tuple(self.sizes[r] for r, _ in pairs),
            self.whole + names,
            tuple(pairs),
            skewed_state,
        )

    def index(self, name: str) -> int:
        """Position of the axis `name`.

        Raises:
          ValueError: no such axis; the message lists the axes.
        """
        if name not in self.names:
            raise ValueError(self._unknown(name))
        return self.names.index(name)

    def axes(self, name: str) -> tuple[int, ...]:
        """Positions of a user's axis, of a sub-axis, or of several joined by `+`.

        Raises:
          ValueError: no such axis, with a list of the axes; or other sub-axes of the axis.
        """
        found: list[int] = []
        if not isinstance(name, str):
            raise ValueError(self._unknown(name))
        for one in name.split("+"):
            if one in self.names:
                found.append(self.names.index(one))
            elif one in self.whole:
                found += [a for a, whole in enumerate(self.whole) if whole == one]
            elif (sub := parse_sub_axis(one)) and sub.axis in self.whole:
                found += self._sub_axes_of(sub)
            else:
                raise ValueError(self._unknown(one))
        return tuple(found)

    def _sub_axes_of(self, sub: SubAxis) -> list[int]:
        """Positions of the axes that form a sub-axis."""
        found, before = list[int](), 1
        for a in self.axes(sub.axis):
            if sub.before <= before < sub.before * sub.size:
                found.append(a)
            before *= self.sizes[a]
        first = math.prod(self.sizes[a] for a in self.axes(sub.axis) if found and a < found[0])
        if not found or (first, self.size(found)) != sub[1:]:
            sizes = [self.sizes[a] for a in self.axes(sub.axis)]
            raise ValueError(f"axis {sub.axis!r} is in sub-axes of {sizes}, without {sub.name}")
        return found

    def _unknown(self, name: str) -> str:
        """Message for an unknown axis name."""
        axes = list(dict.fromkeys(self.whole))
        near = did_you_mean(str(name), axes)
        return f"axis {name!r} is not in the mesh; its axes are {axes}{near}"

    def label(self, axes: Sequence[int]) -> str:
        """Inverse of `axes`: all sub-axes of an axis, in order, are written as the axis."""
        names: list[str] = []
        left = tuple(axes)
        while left:
            siblings = self.axes(self.whole[left[0]])
            together = left[: len(siblings)] == siblings
            names.append(self.whole[left[0]] if together else self.names[left[0]])
            left = left[len(siblings) if together else 1 :]
        return "+".join(names)

    def size(self, axes: Sequence[int]) -> int:
        """Number of devices along several axes jointly."""
        return math.prod(self.sizes[a] for a in axes)

    def equal_pairs(self) -> list[str]:
        """Possible diagonals: pairs of axes of equal size, each axis in at most one.

        Minor axes come first: meshes are laid out with the fastest links on minor axes.
        """
        left, found = list(self.device_names), list[str]()
        while left:
            c = left.pop()
            size = self.sizes[self.index(c)]
            r = next((o for o in left[::-1] if self.sizes[self.index(o)] == size > 1), None)
            if r is not None:
                left.remove(r)
                found.append(r + DIAGONAL + c)
        return found

    @property
    def user(self) -> MeshShape:
        """The user's mesh: sub-axes joined, without diagonals."""
        names = tuple(dict.fromkeys(self.whole[: len(self.device_names)]))
        return MeshShape(names, tuple(self.size(self.axes(n)) for n in names))

    @property
    def unsplit(self) -> MeshShape:
        """The user's mesh with the diagonals of this one."""
        return self.user.with_diagonals(self.diagonal_names, self.skewed_state)

    def split(self, sub_axes: Mapping[str, Sequence[int]]) -> MeshShape:
        """The mesh with axes split into sub-axes; axes with a diagonal must not be split.

        Args:
          sub_axes: sizes of the sub-axes by axis name, major to minor.

        Raises:
          ValueError: the product of the sizes is not the size of the axis.
        """
        names, sizes, whole = list[str](), list[int](), list[str]()
        for name, size in zip(self.device_names, self.device_sizes, strict=True):
            pieces = tuple(sub_axes.get(name, (size,)))
            if math.prod(pieces) != size:
                raise ValueError(f"axis {name!r} of size {size} does not split into {pieces}")
            one = len(pieces) == 1
            names += [name] if one else [f"{name}.{i}" for i in range(len(pieces))]
            sizes += pieces
            whole += [name] * len(pieces)
        plain = MeshShape(tuple(names), tuple(sizes), tuple(whole))
        return plain.with_diagonals(self.diagonal_names, self.skewed_state)

    def sub_axes(self) -> dict[str, list[int]]:
        """Sizes of the sub-axes of each split axis, major to minor: the argument of `split`."""
        every = {name: [self.sizes[a] for a in self.axes(name)] for name in self.whole}
        return {name: sizes for name, sizes in every.items() if len(sizes) > 1}

    def parts(self) -> dict[str, list[int]]:
        """Former name of `sub_axes`, for one version."""
        warnings.warn("MeshShape.parts is now sub_axes", DeprecationWarning, stacklevel=2)
        return self.sub_axes()

    def as_dict(self) -> Mapping[str, int]:
        return dict(zip(self.names, self.sizes, strict=True))

    def __str__(self) -> str:
        pairs = zip(self.device_names, self.device_sizes, strict=True)
        return ", ".join(f"{n}:{s}" for n, s in pairs)

    @property
    def text(self) -> str:
        """The mesh in printed programs: `mesh<stage:4, data:2> time<mb:8>`."""
        times = zip(self.time_names, self.sizes[len(self.sizes) - self.time_axes :], strict=True)
        each = ", ".join(f"{n}:{s}" for n, s in times)
        return f"mesh<{self}>" + (f" time<{each}>" if each else "")
