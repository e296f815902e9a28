"""Cuts, orders and texts, on toys."""

from __future__ import annotations

import jax
import numpy as np

from partir_search.ir.kind import Kind
from partir_search.segments.atoms import Atom, dependencies
from partir_search.segments.find import Finder
from partir_search.segments.order import by_results
from partir_search.segments.text import stable


def chain(*nodes: tuple[str, str]) -> list[Atom]:
    """Atoms from (reads, makes), values as letters."""
    return [
        Atom(i, i + 1, tuple(map(ord, reads)), tuple(map(ord, makes)))
        for i, (reads, makes) in enumerate(nodes)
    ]


def test_cut_where_the_fewest_bytes_cross() -> None:
    """Of four equal layers of three ops each, and a start that looks like a layer's end.

    Between the second and the third op 100 bytes cross, between all others 1.
    """
    atoms, nbytes = [Atom(0, 1, (0,), (1,))], {0: 1, 1: 1}
    for layer in range(4):
        first = 3 * layer + 1
        for op in range(3):
            atoms.append(Atom(len(atoms), len(atoms) + 1, (first + op,), (first + op + 1,)))
            nbytes[first + op + 1] = 100 if op == 1 else 1
    prints = [2] + [0, 1, 2] * 4  # the repeat found begins with the third op of a layer
    weights = [10] * len(atoms)
    found = Finder(atoms, prints, weights, nbytes, [13]).stretches()
    assert [part.copies for part in found] == [
        ((0,),),
        ((1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)),
    ]
    assert found[1].layers


def test_results_bring_their_own_together() -> None:
    """Phase by phase becomes weight by weight."""
    atoms = chain(("a", "m"), ("b", "n"), ("m", "p"), ("n", "q"))
    order = by_results(atoms, dependencies(atoms), range(4), [ord("p"), ord("q")])
    assert order == [0, 2, 1, 3]


def test_values_made_twice_stay_in_order() -> None:
    """The second maker of a value follows the readers of the first."""
    atoms = chain(("a", "g"), ("g", "x"), ("a", "g"), ("g", "y"))
    follows = dependencies(atoms)
    assert follows == [[], [0], [1, 0], [2]]
    assert by_results(atoms, follows, range(4), [ord("y"), ord("x")]) == [0, 1, 2, 3]


def test_texts_have_no_addresses() -> None:
    assert stable({"b": np.arange(3), "a": (Kind.CONTRACTION, 1.5)}) == stable(
        {"a": (Kind.CONTRACTION, 1.5), "b": np.arange(3)}
    )
    assert stable(np.arange(3)) != stable(np.arange(3) + 1)
    assert stable(object()) == stable(object())
    assert stable(jax.nn.relu) != stable(jax.nn.gelu)
