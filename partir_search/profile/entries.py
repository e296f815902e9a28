"""Entries of a profile: collectives, products and segments, each with measured seconds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Group = tuple[tuple[int, int], ...]
"""Grouping pattern of a collective: (size, stride) of each axis, largest stride first.

Devices are numbered along the mesh, the last axis fastest: on a mesh of 4 by 2 the first axis is
(4, 2), the second (2, 1) and both together (8, 1). Source: PrimePar, ASPLOS 2024, section 4.2.
"""


CollectiveKey = tuple[str, Group]
"""Kind and grouping pattern of a collective."""


def group_of(axes: Sequence[tuple[int, int]]) -> Group:
    """Grouping pattern of several axes jointly: neighbours merged, axes of one device left out.

    Args:
      axes: (size, stride) of each axis, in any order.
    """
    found: list[tuple[int, int]] = []
    for size, stride in sorted((a for a in axes if a[0] > 1), key=lambda a: -a[1]):
        if found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return tuple(found)


def fit_line(nbytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(alpha in seconds, beta in seconds per byte) of least relative errors, neither negative."""
    x, y = np.array(nbytes, dtype=np.float64), np.array(seconds, dtype=np.float64)
    rows = np.stack((1 / y, x / y), axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)
    if alpha >= 0 and beta >= 0:
        return float(alpha), float(beta)
    column = 1 if alpha < 0 else 0  # all bandwidth or all latency
    value = float(rows[:, column].sum() / (rows[:, column] ** 2).sum())
    return (0.0, value) if column else (value, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """Seconds of one kind of collective on one grouping pattern.

    Attributes:
      kind: all_gather, all_reduce, reduce_scatter, all_to_all or collective_permute.
      nbytes: payloads, bytes of the larger side on one device.
      seconds: median seconds of each payload.
      alpha / beta: seconds, and seconds per byte, of the fitted line.
    """

    kind: str
    group: Group
    nbytes: tuple[int, ...]
    seconds: tuple[float, ...]
    alpha: float
    beta: float

    @classmethod
    def fitted(
        cls, kind: str, group: Group, nbytes: Sequence[int], seconds: Sequence[float]
    ) -> MeasuredCollective:
        """Entry of samples and their fitted line."""
        return cls(kind, group, tuple(nbytes), tuple(seconds), *fit_line(nbytes, seconds))

    @property
    def key(self) -> CollectiveKey:
        """Identity within a profile."""
        return self.kind, self.group

    @property
    def devices(self) -> int:
        """Number of devices of a group."""
        return math.prod(size for size, _ in self.group)


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredProduct:
    """Attained rate of a batch of matrix products.

    Attributes:
      dtype: numpy name of the operands' type.
      shape: (batch, m, n, k) of [batch, m, k] x [batch, k, n].
      flops_per_s: attained rate.
    """

    dtype: str
    shape: tuple[int, int, int, int]
    flops_per_s: float

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identity within a profile."""
        return self.dtype, self.shape


@dataclasses.dataclass(frozen=True, slots=True)
class KernelPart:
    """Kernel of a segment.

    Attributes:
      kind: kind of the leading op and type of the operand: ``contraction bfloat16``.
      content: digest of ops, types and forms of the kernel, sizes apart.
      sizes: sizes of the leading op's factors on one device.
      seconds: simulated seconds in one run of the segment, before any correction by segments.
    """

    kind: str
    content: str
    sizes: tuple[int, ...]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class CollectivePart:
    """Collectives of a segment of one kind on one grouping pattern.

    Attributes:
      seconds: simulated seconds in one run of the segment, before any correction by segments.
    """

    kind: str
    group: Group
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredSegment:
    """Measured seconds of a segment, and simulated parts to compare with.

    Attributes:
      seconds: median seconds of one run, of all that `kernels`, `collectives` and `rest` name.
      by: method of measurement: ``devices``, ``one device``, or a compiler's target.
      label: name for tables.
      spread: (largest - least) / median of the runs.
      runs: number of runs.
      total: seconds of the whole segment, where `seconds` leave collectives out; 0 for `seconds`.
      temp_bytes: temporaries by the compiler.
      rest: simulated seconds of all further parts: copies, collectives without an entry.
      basis: digest of the figures behind the simulated parts.
    """

    seconds: float
    by: str
    kernels: tuple[KernelPart, ...]
    collectives: tuple[CollectivePart, ...] = ()
    rest: float = 0.0
    basis: str = ""
    label: str = ""
    spread: float = 0.0
    runs: int = 1
    total: float = 0.0
    temp_bytes: int = 0

    @property
    def simulated(self) -> float:
        """Simulated seconds of one run, before any correction by segments."""
        kernels = sum(k.seconds for k in self.kernels)
        return kernels + sum(c.seconds for c in self.collectives) + self.rest


def to_json(entry: Any) -> dict[str, Any]:
    """JSON object of an entry, without fields at their defaults."""
    found = {}
    for field in dataclasses.fields(entry):
        value = getattr(entry, field.name)
        if value != field.default:
            nested = isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0])
            found[field.name] = [to_json(each) for each in value] if nested else value
    return found


def collective(data: Any) -> MeasuredCollective:
    """Collective of a JSON object."""
    return MeasuredCollective(
        data["kind"],
        _group(data["group"]),
        tuple(map(int, data["nbytes"])),
        tuple(map(float, data["seconds"])),
        float(data["alpha"]),
        float(data["beta"]),
    )


def product(data: Any) -> MeasuredProduct:
    """Product of a JSON object."""
    batch, m, n, k = map(int, data["shape"])
    return MeasuredProduct(data["dtype"], (batch, m, n, k), float(data["flops_per_s"]))


def segment(data: Any) -> MeasuredSegment:
    """Segment of a JSON object."""
    kernels = tuple(
        KernelPart(k["kind"], k["content"], tuple(map(int, k["sizes"])), float(k["seconds"]))
        for k in data["kernels"]
    )
    collectives = tuple(
        CollectivePart(c["kind"], _group(c["group"]), float(c["seconds"]))
        for c in data.get("collectives", ())
    )
    rest = {k: v for k, v in data.items() if k not in ("kernels", "collectives")}
    return MeasuredSegment(kernels=kernels, collectives=collectives, **rest)


def _group(data: Any) -> Group:
    return tuple((int(size), int(stride)) for size, stride in data)
