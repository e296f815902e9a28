"""Ratios of measured to simulated seconds, by content of kernels and groups of collectives.

A segment's seconds are one sum of many parts. Ratios of parts are found such that the sums of all
segments agree with their measurements, with the least change of the parts (entropy; the
multiplicative updates of Byrne 1993, SMART). They are found level by level, each from the level
before: one ratio for everything, one per kind, one per content whatever its sizes, and one per
content and sizes. A kernel that no segment has at its sizes takes the one ratio of everything:
kinds and contents at further sizes predicted held-out plans no better (docs/evidence/profiles.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from partir_search.profile.entries import CollectiveKey, Group, MeasuredSegment

SWEEPS = 30  # of updates per level: sums agree within some percent where any ratios give them
LIMIT = 50.0  # of a ratio and of its inverse
LEVELS = ("all", "kind", "content", "sizes")
FALLBACK = "all"  # finest level of the ratio of a kernel of unknown sizes

Key = tuple[str, Hashable]
"""Level and name of a ratio."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios by level and name.

    Attributes:
      known: ratio by level and name; parts that nothing names have ratio 1.
      fallback: finest level of kernels of unknown sizes; "" for ratio 1.
    """

    known: Mapping[Key, float]
    fallback: str = FALLBACK

    def of_kernel(self, kind: str, content: str) -> float:
        """Ratio of a kernel of unknown sizes."""
        levels = LEVELS[: LEVELS.index(self.fallback) + 1] if self.fallback else ()
        keys = kernel_keys(kind, content, None)[: len(levels)]
        return next((self.known[key] for key in reversed(keys) if key in self.known), 1.0)

    def of_links(self, key: CollectiveKey) -> float:
        """Ratio of a collective; 1 if no segment has it."""
        return self.known.get(collective_keys(*key)[-1], 1.0)

    def has_links(self, key: CollectiveKey) -> bool:
        """True if a segment has the collective."""
        return collective_keys(*key)[-1] in self.known

    def of_sizes(self) -> dict[tuple[str, tuple[int, ...]], float]:
        """Ratios of the finest level, by content and sizes."""
        found = {}
        for (level, name), ratio in self.known.items():
            if level == "sizes":
                assert isinstance(name, tuple)
                found[name] = ratio
        return found


def kernel_keys(kind: str, content: str, sizes: tuple[int, ...] | None) -> tuple[Key, ...]:
    """Keys of a kernel, from the coarsest level to the finest."""
    return ("all", None), ("kind", kind), ("content", content), ("sizes", (content, sizes))


def collective_keys(kind: str, group: Group) -> tuple[Key, ...]:
    """Keys of a collective, from the coarsest level to the finest: collectives share no ratio with
    kernels.
    """
    return (("links", None), ("links", kind), *((("links", (kind, group)),) * 2))


def fit(segments: Sequence[MeasuredSegment], levels: int = len(LEVELS)) -> Ratios:
    """Ratios of measured segments.

    Args:
      levels: number of levels, from the coarsest; fewer in experiments.
    """
    known: dict[Key, float] = {}
    segments = [s for s in segments if s.seconds > 0 and list(_parts(s))]
    parts = [list(_parts(s)) for s in segments]
    if not parts:
        return Ratios(known)
    measured = np.array([s.seconds for s in segments])
    rest = np.array([s.rest for s in segments])
    numbers: dict[tuple[Key, ...], int] = {}
    for each in parts:
        for keys, _ in each:
            numbers.setdefault(keys, len(numbers))
    seconds = np.zeros((len(segments), len(numbers)))
    for row, each in zip(seconds, parts, strict=True):
        for keys, s in each:
            row[numbers[keys]] += s
    target = np.maximum(measured - rest, 0.05 * measured)
    ratio = np.ones(len(numbers))
    for level in range(levels):
        names = [keys[level] for keys in numbers]
        index = {name: i for i, name in enumerate(dict.fromkeys(names))}
        of = np.array([index[name] for name in names])
        joined = np.zeros((len(segments), len(index)))
        np.add.at(joined.T, of, (seconds * ratio).T)
        change = _balanced(joined, target)
        ratio = np.clip(ratio * change[of], 1 / LIMIT, LIMIT)
        known |= {name: _mean(ratio, seconds, of == i) for name, i in index.items()}
    return Ratios(known)


def _parts(segment: MeasuredSegment) -> list[tuple[tuple[Key, ...], float]]:
    found = [(kernel_keys(k.kind, k.content, k.sizes), k.seconds) for k in segment.kernels]
    found += [(collective_keys(c.kind, c.group), c.seconds) for c in segment.collectives]
    return [(keys, seconds) for keys, seconds in found if seconds > 0]


def _balanced(seconds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[parts] factors with which the rows of `seconds` [segments, parts] sum to the target."""
    factors = np.ones(seconds.shape[1])
    share = seconds / np.maximum(seconds.sum(axis=0), 1e-300)  # of a part's seconds, by segment
    for _ in range(SWEEPS):
        sums = np.maximum(seconds @ factors, 1e-300)
        factors *= np.exp(np.log(target / sums) @ share)
    return factors


def _mean(ratio: np.ndarray, seconds: np.ndarray, of: np.ndarray) -> float:
    """Mean ratio of some parts, weighted by their seconds."""
    weights = seconds[:, of].sum(axis=0)
    return float((ratio[of] * weights).sum() / weights.sum())
