"""Numbers in arguments' paths that count layers, or that tell the parts of one layer apart.

Folding may only make the arguments of different layers one. `edges_7/dense_2/kernel` is the third
matrix of layer 7: folded with the second one it would lose the plans that tile every other matrix
of an MLP the other way, which is what tensor parallelism does.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Hashable, Mapping, Sequence

from partir_search.ir.core import Module, Value
from partir_search.passes.fold.linear import Linear, Ties

_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
MIXED = 2  # gradients, say, that may enter what is still taken for a leaf of an optimizer's state
CHAIN = 4  # chains of more single matrices than this fold, every other one


def leaf_names(
    module: Module, linear: Linear, prints: Sequence[int], marks: Mapping[int, Hashable]
) -> dict[int, int]:
    """Numbers by value id, equal for those in the same role of like layers.

    Named are arguments, what is made of one argument, what an optimizer makes of a leaf of its
    state and of gradients, and those gradients.

    Args:
      linear: the module's ops, with those of opened regions.
      prints: per such op; equal for ops of equal rule.
      marks: by value id; values with different marks have different names.
    """
    args, ops = module.body.args, linear.ops
    enters = {opened.start: opened.ties for opened in linear.opened.values()}
    paths = layer_names(module.arg_paths, [v.type.shape for v in args])
    ids: dict[Hashable, int] = {}
    names = {
        v.id: ids.setdefault((p, marks.get(v.id)), len(ids))
        for v, p in zip(args, paths, strict=True)
    }
    # What has the shape and role of a leaf of the state, and how much else is in it.
    leaves = {args[i].id: 0 for i, _ in module.ties}

    def tie(ties: Ties) -> None:
        """Gives one value inside and outside of a region one name, and its stack another."""
        for group in ties:
            known = next(((v.id, lead) for v, lead in group if v.id in names), None)
            if known is None:
                continue
            one, depth = known
            for v, lead in group:
                stacked = ("stacked", lead - depth, names[one])
                name = names[one] if lead == depth else ids.setdefault(stacked, len(ids))
                names.setdefault(v.id, name)
                if lead == depth and one in leaves:
                    leaves.setdefault(v.id, leaves[one])

    def forward(start: int) -> None:
        for at in range(start, len(ops)):
            fingerprint, op = prints[at], ops[at]
            if at in enters:
                tie(enters[at])
            if at in linear.opened:
                tie(linear.opened[at].ties)
                continue
            arrays = [x for x in op.operands if isinstance(x, Value) and x.type.shape]
            known = [x.id in names for x in arrays]
            if not any(known) or not op.results or op.results[0].id in names:
                continue
            mixed = [leaves.get(x.id, -1) for x in arrays]
            alike = all(x.type.shape == op.results[0].type.shape for x in arrays)
            depth = max(mixed) + (min(mixed) < 0)
            plain = len(arrays) == 1 or (alike and all(known))
            if not plain and not (alike and 0 < depth <= MIXED):
                continue
            made = (fingerprint, *(names.get(x.id) for x in arrays))
            for k, r in enumerate(op.results):
                if r.type.shape:
                    names[r.id] = ids.setdefault((made, k, marks.get(r.id)), len(ids))
                    if alike and max(mixed) >= 0:
                        leaves[r.id] = depth

    forward(0)
    first = len(ops)
    for i in range(len(ops) - 1, -1, -1):
        if i in linear.opened:
            tie(linear.opened[i].ties)
            continue
        result = ops[i].results[0] if ops[i].results else None
        if result is None or not leaves.get(result.id, 0):
            continue
        first = i
        arrays = [x for x in ops[i].operands if isinstance(x, Value) and x.type.shape]
        if all(x.type.shape == result.type.shape for x in arrays):
            for x in arrays:
                if x.id not in names:
                    names[x.id] = ids.setdefault(("for", names[result.id]), len(ids))
                    leaves[x.id] = 1
    forward(first)
    return names


def layer_names(paths: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Names that only values in the same role of like layers share.

    A number counts layers if two matrices or more stand under it (`layer_7/...`) or, failing that,
    beside it with the same number (`norm_7/...`, `mlp_in_7/...`, `mlp_out_7/...`); layers are alike
    if their matrices are. Other numbers stay, except in chains of single matrices (`dense_0` ...
    `dense_99`), where even and odd ones are told apart.

    Args:
      paths: argument paths with "/" between components.
      shapes: per path.
    """
    rank_of: dict[str, int] = collections.defaultdict(int)
    for path, shape in zip(paths, shapes, strict=True):
        rank_of[_tail(path)] = max(rank_of[_tail(path)], len(shape))
    layers: dict[str, list[Hashable]] = collections.defaultdict(list)
    chains: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    numbers = [_numbers(path) for path in paths]
    for path, shape, found in zip(paths, shapes, numbers, strict=True):
        for place in found:
            pattern = _pattern(path, place)
            chains[place.parent, pattern].add(place.number)
            if rank_of[_tail(path)] >= 2:
                layers[place.inside].append((place.parent, pattern, shape))
                layers[place.beside].append((place.parent, pattern, shape))
    kinds: dict[Hashable, int] = {}
    kind_of = {
        layer: kinds.setdefault(tuple(matrices), len(kinds))
        for layer, matrices in layers.items()
        if len(matrices) >= 2
    }

    kind_elsewhere: dict[str, int] = {}
    for layer, found_kind in kind_of.items():
        for end in _ends(layer):
            kind_elsewhere.setdefault(end, found_kind)

    def kind_at(place: _Place) -> int | None:
        """Kind of a layer; one without matrices (running means) is of the kind of its namesake."""
        for layer in (place.inside, place.beside):
            if layer in kind_of:
                return kind_of[layer]
        return next((kind_elsewhere[e] for e in _ends(place.inside) if e in kind_elsewhere), None)

    def name(path: str, found: Sequence[_Place]) -> str:
        out, at, nested = "", 0, False
        for place in found:
            kind = kind_at(place)
            if kind is not None:
                shown, nested = f"#{kind}", True
            elif not nested and len(chains[place.parent, _pattern(path, place)]) > CHAIN:
                shown = f"#{int(place.number) % 2}"
            else:
                shown = place.number
            out += path[at : place.start] + shown
            at = place.start + len(place.number)
        return out + path[at:]

    return [name(path, found) for path, found in zip(paths, numbers, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The last number of a path's component.

    Attributes:
      parent: the path before the component.
      component / start: starts of the component and of its number.
      inside / beside: names for all under it, and for all with its number and parent.
    """

    parent: str
    component: int
    start: int
    number: str
    inside: str
    beside: str


def _numbers(path: str) -> list[_Place]:
    found, start = [], 0
    for component in path.split("/"):
        number = _LAST_NUMBER.search(component)
        if number:
            parent, n = path[:start], number[0]
            inside, beside = path[: start + len(component)], f"{parent} {n}"
            found.append(_Place(parent, start, start + number.start(), n, inside, beside))
        start += len(component) + 1
    return found


def _ends(path: str) -> list[str]:
    """Ends of a path that say more than a number, the longest first."""
    parts = path.split("/")
    ends = ("/".join(parts[i:]) for i in range(1, len(parts)))
    return [end for end in ends if not end.isdecimal()]


def _pattern(path: str, place: _Place) -> str:
    """The component without its number, and the rest of the path."""
    return path[place.component : place.start] + "#" + path[place.start + len(place.number) :]


def _tail(path: str) -> str:
    """The last two components: a parameter and its optimizer's statistics share them."""
    return "/".join(path.split("/")[-2:])
