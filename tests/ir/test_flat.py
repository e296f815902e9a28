"""Lists of numbers kept in two arrays are the lists that they were made of."""

import random

import pytest

from partir_search.ir.flat import FlatLists


def test_lists_are_the_lists_they_were_made_of():
    rng = random.Random(0)
    pairs = [(rng.randrange(20), rng.randrange(1000)) for _ in range(100)]
    pairs = [(i, n) for i, n in pairs if i not in (0, 7, 19)]  # some lists are empty
    lists = FlatLists(iter(pairs), 20)
    assert len(lists) == 20
    assert list(lists) == [tuple(n for i, n in pairs if i == k) for k in range(20)]
    with pytest.raises(IndexError):
        lists[20]


def test_no_lists_at_all():
    assert list(FlatLists(iter(()), 0)) == []
