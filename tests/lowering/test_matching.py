"""Maximum matchings against enumeration."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from partir_search.lowering.matching import maximum_matching

EDGES = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


def is_matching(edges: tuple[tuple[int, int], ...]) -> bool:
    return all(len(set(ends)) == len(edges) for ends in zip(*edges, strict=True))


@given(EDGES)
@settings(max_examples=100, deadline=None)
def test_matchings_are_maximum(edges: set[tuple[int, int]]) -> None:
    found = maximum_matching(edges)
    assert set(found) <= edges
    assert is_matching(tuple(found))
    assert found == sorted(found)
    more = itertools.combinations(edges, len(found) + 1)
    assert not any(is_matching(some) for some in more)


def test_paths_longer_than_the_stack() -> None:
    """Each source first takes the target that the next source needs."""
    n = 3000
    edges = [(i, j) for i in range(n) for j in (i, i + 1) if j < n] + [(n, 0)]
    assert len(maximum_matching(edges)) == n
