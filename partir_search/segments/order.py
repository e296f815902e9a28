"""Order of a stretch by results: instructions for one result alone stand together.

Optimizers work phase by phase over all weights: all first moments, then all second moments, then
all updates. Weight by weight the same instructions hand nothing on from weight to weight, equal
layers stand side by side, and the compiler fuses within a weight anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.segments.atoms import Atom


def by_results(
    atoms: Sequence[Atom],
    follows: Sequence[Sequence[int]],
    places: Sequence[int],
    roots: Sequence[int],
) -> list[int]:
    """Positions `places` in the order of a depth-first walk from the makers of results.

    Args:
      atoms: of the region.
      follows: positions of the atoms followed by each atom (`dependencies`).
      places: positions of the stretch, in order.
      roots: ids of local values, in the order of the program's results.
    """
    inside = set(places)
    maker = {i: at for at in places for i in atoms[at].makes}
    found: dict[int, None] = {}

    def visit(root: int) -> None:
        waiting = [(root, iter(follows[root]))]
        entered = {root}
        while waiting:
            at, rest = waiting[-1]
            deeper = next((i for i in rest if i in inside and i not in found), None)
            if deeper is None:
                found[at] = None
                waiting.pop()
            elif deeper not in entered:
                entered.add(deeper)
                waiting.append((deeper, iter(follows[deeper])))

    for root in roots:
        if root in maker and maker[root] not in found:
            visit(maker[root])
    for at in places:
        if at not in found:
            visit(at)
    return list(found)
