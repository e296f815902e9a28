"""Grouping of names with different numbers (layers), with the numbers of each group."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_NUMBER = re.compile(r"\d+")
MOST_LISTED = 6  # numbers of a group that are no full grid


def number_groups(items: Iterable[tuple[str, _K]]) -> list[tuple[str, list[int], _K]]:
    """Groups names of equal keys, different in numbers only.

    Args:
      items: (name, key).

    Returns:
      (label, positions in `items`, key) in order of the first member. The label names the numbers:
      `layer_{0..2,4..31}/w`.
    """
    found: dict[tuple[str, _K], list[tuple[int, tuple[int, ...]]]] = {}
    names: list[str] = []
    for at, (name, key) in enumerate(items):
        names.append(name)
        numbers = tuple(map(int, _NUMBER.findall(name)))
        found.setdefault((_NUMBER.sub("#", name), key), []).append((at, numbers))
    out = []
    for (pattern, key), members in found.items():
        places = [i for i, _ in members]
        several = len(places) > 1
        label = _label(pattern, [n for _, n in members]) if several else names[places[0]]
        out.append((label, places, key))
    return out


def _label(pattern: str, members: Sequence[tuple[int, ...]]) -> str:
    """Pattern with the numbers of all members in place of `#`."""
    slots = [sorted(set(column)) for column in zip(*members, strict=True)]
    distinct = set(members)
    if math.prod(map(len, slots)) == len(distinct):
        texts = iter(_ranges(slot) for slot in slots)
        return re.sub("#", lambda _: next(texts), pattern)
    listed = [".".join(map(str, m)) for m in sorted(distinct)[:MOST_LISTED]]
    more = ", ..." if len(distinct) > MOST_LISTED else ""
    return f"{pattern} (# of {', '.join(listed)}{more})"


def _ranges(numbers: Sequence[int]) -> str:
    """Text of sorted numbers: `3`, `{0..2,5}`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] + 1 == n:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts = [
        str(r[0]) if len(r) == 1 else ",".join(map(str, r)) if len(r) == 2 else f"{r[0]}..{r[-1]}"
        for r in runs
    ]
    return parts[0] if len(numbers) == 1 else f"{{{','.join(parts)}}}"
