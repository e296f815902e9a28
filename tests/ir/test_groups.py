"""Lists of numbers kept in two arrays are the lists that they were made of."""

import random

import pytest

from partir_search.ir.groups import Groups


def test_groups_are_the_lists_they_were_made_of():
    rng = random.Random(0)
    pairs = [(rng.randrange(20), rng.randrange(1000)) for _ in range(100)]
    pairs = [(i, n) for i, n in pairs if i not in (0, 7, 19)]  # some lists are empty
    groups = Groups(lambda: iter(pairs), 20)
    assert len(groups) == 20
    assert list(groups) == [tuple(n for i, n in pairs if i == k) for k in range(20)]
    with pytest.raises(IndexError):
        groups[20]


def test_no_groups_at_all():
    assert list(Groups(lambda: iter(()), 0)) == []
