"""Names of argument paths: numbers of layers are replaced, numbers inside a layer are not.

Folding may merge arguments of different layers only. `edges_7/dense_2/kernel` is the third matrix
of layer 7. Merging it with the second matrix would lose all plans with alternate matrices of an MLP
tiled along different dims, as in tensor parallelism.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Hashable, Mapping, Sequence

from partir_search.ir.core import Module, Value
from partir_search.passes.fold.linear import LinearOps, Ties

_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")
MIXED = 2  # gradients combined into a leaf of an optimizer's state that keeps its name, at most
CHAIN = 4  # longest chain of single matrices that does not fold


def leaf_names(
    module: Module, linear: LinearOps, prints: Sequence[int], marks: Mapping[int, Hashable]
) -> dict[int, int]:
    """Returns a number per value id, equal for values with the same role in like layers.

    Named are arguments, values computed from one argument, values that an optimizer computes from a
    leaf of its state and gradients, and the gradients themselves.

    Args:
      linear: the module's ops, with the ops of opened regions.
      prints: by op of `linear`; equal for ops of equal rule.
      marks: by value id; values with different marks have different names.
    """
    args, ops = module.body.args, linear.ops
    ties_at_start = {opened.start: opened.ties for opened in linear.opened.values()}
    paths = layer_names(module.arg_paths, [v.type.shape for v in args])
    ids: dict[Hashable, int] = {}
    names = {
        v.id: ids.setdefault((p, marks.get(v.id)), len(ids))
        for v, p in zip(args, paths, strict=True)
    }
    # By id of a value shaped like a leaf of the state: gradients combined into it.
    leaves = {args[i].id: 0 for i, _ in module.ties}

    def tie(ties: Ties) -> None:
        """Gives a value one name inside and outside of a region, and its stack another name."""
        for group in ties:
            known = next(((v.id, lead) for v, lead in group if v.id in names), None)
            if known is None:
                continue
            known_id, known_lead = known
            for v, lead in group:
                stacked = ("stacked", lead - known_lead, names[known_id])
                value_name = (
                    names[known_id] if lead == known_lead else ids.setdefault(stacked, len(ids))
                )
                names.setdefault(v.id, value_name)
                if lead == known_lead and known_id in leaves:
                    leaves.setdefault(v.id, leaves[known_id])

    def name_results(start: int) -> None:
        for at in range(start, len(ops)):
            fingerprint, op = prints[at], ops[at]
            if at in ties_at_start:
                tie(ties_at_start[at])
            if at in linear.opened:
                tie(linear.opened[at].ties)
                continue
            arrays = [x for x in op.operands if isinstance(x, Value) and x.type.shape]
            known = [x.id in names for x in arrays]
            if not any(known) or not op.results or op.results[0].id in names:
                continue
            gradients_in = [leaves.get(x.id, -1) for x in arrays]
            same_shape = all(x.type.shape == op.results[0].type.shape for x in arrays)
            gradient_count = max(gradients_in) + (min(gradients_in) < 0)
            keeps_name = len(arrays) == 1 or (same_shape and all(known))
            if not keeps_name and not (same_shape and 0 < gradient_count <= MIXED):
                continue
            key = (fingerprint, *(names.get(x.id) for x in arrays))
            for k, r in enumerate(op.results):
                if r.type.shape:
                    names[r.id] = ids.setdefault((key, k, marks.get(r.id)), len(ids))
                    if same_shape and max(gradients_in) >= 0:
                        leaves[r.id] = gradient_count

    name_results(0)
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
    name_results(first)
    return names


def layer_names(paths: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Returns a name per path, equal for paths with the same role in like layers.

    A number counts layers if at least two matrices lie under its component (`layer_7/...`) or,
    failing this, beside it with the same number (`norm_7/...`, `mlp_in_7/...`, `mlp_out_7/...`).
    Layers are alike if their matrices are. Further numbers stay, except in chains of single
    matrices (`dense_0` ... `dense_99`), in which only even and odd ones are distinguished.

    Args:
      paths: argument paths with "/" between components.
      shapes: shape of the argument at each path.
    """
    rank_of: dict[str, int] = collections.defaultdict(int)
    for path, shape in zip(paths, shapes, strict=True):
        rank_of[_tail(path)] = max(rank_of[_tail(path)], len(shape))
    chains: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    matrices: dict[int, list[_Matrix]] = collections.defaultdict(list)  # by depth of the number
    numbers = [_numbers(path) for path in paths]
    for path, shape, path_numbers in zip(paths, shapes, numbers, strict=True):
        for i, number in enumerate(path_numbers):
            pattern = _pattern(path, number)
            chains[number.parent, pattern].add(number.digits)
            if rank_of[_tail(path)] >= 2:
                found = number, pattern, shape, path_numbers[:i]
                matrices[number.parent.count("/")].append(found)
    kind_of = _kinds(matrices)

    kind_elsewhere: dict[str, int] = {}
    for layer, found_kind in kind_of.items():
        for end in _ends(layer):
            kind_elsewhere.setdefault(end, found_kind)

    def kind_at(number: _Number) -> int | None:
        """Returns the kind of the layer counted by a number; None if the number counts no layers.

        A layer without matrices (running means) has the kind of its namesake elsewhere.
        """
        for layer in (number.inside, number.beside):
            if layer in kind_of:
                return kind_of[layer]
        return next((kind_elsewhere[e] for e in _ends(number.inside) if e in kind_elsewhere), None)

    def name(path: str, path_numbers: Sequence[_Number]) -> str:
        out, at, nested = "", 0, False
        for number in path_numbers:
            kind = kind_at(number)
            if kind is not None:
                shown, nested = f"#{kind}", True
            elif not nested and len(chains[number.parent, _pattern(path, number)]) > CHAIN:
                shown = f"#{int(number.digits) % 2}"
            else:
                shown = number.digits
            out += path[at : number.start] + shown
            at = number.start + len(number.digits)
        return out + path[at:]

    return [name(path, path_numbers) for path, path_numbers in zip(paths, numbers, strict=True)]


def _kinds(matrices: Mapping[int, Sequence[_Matrix]]) -> dict[str, int]:
    """Returns the kind of each layer; layers with the same matrices are of one kind.

    Layers within layers (`block_3/dense_0`) are alike in all outer layers of one kind, so outer
    layers come first.

    Args:
      matrices: matrices under each number, by the number's depth in its path.
    """
    kinds: dict[Hashable, int] = {}
    kind_of: dict[str, int] = {}
    for _, found in sorted(matrices.items()):
        outer: dict[str, str] = {}
        layers: dict[str, list[Hashable]] = collections.defaultdict(list)
        for number, pattern, shape, before in found:
            if number.parent not in outer:
                outer[number.parent] = _with_kinds(number.parent, before, kind_of)
            for layer in (number.inside, number.beside):
                layers[layer].append((outer[number.parent], pattern, shape))
        kind_of |= {
            layer: kinds.setdefault(tuple(inside), len(kinds))
            for layer, inside in layers.items()
            if len(inside) >= 2
        }
    return kind_of


def _with_kinds(path: str, numbers: Sequence[_Number], kind_of: Mapping[str, int]) -> str:
    """Returns a path with the kind of the layer in place of each number that counts layers."""
    out, at = "", 0
    for number in numbers:
        kind = kind_of.get(number.inside, kind_of.get(number.beside))
        out += path[at : number.start] + (number.digits if kind is None else f"#{kind}")
        at = number.start + len(number.digits)
    return out + path[at:]


@dataclasses.dataclass(frozen=True, slots=True)
class _Number:
    """The last number in one component of a path.

    Attributes:
      parent: the path before the component.
      component: position in the path of the component's first character.
      start: position of the number's first character.
      digits: of the number.
      inside: key of the paths under the component.
      beside: key of the paths under the same parent with the same number.
    """

    parent: str
    component: int
    start: int
    digits: str
    inside: str
    beside: str


def _numbers(path: str) -> list[_Number]:
    """Returns the last number of each component of a path that has one."""
    found, start = [], 0
    for component in path.split("/"):
        number = _LAST_NUMBER.search(component)
        if number:
            parent, n = path[:start], number[0]
            inside, beside = path[: start + len(component)], f"{parent} {n}"
            found.append(_Number(parent, start, start + number.start(), n, inside, beside))
        start += len(component) + 1
    return found


def _ends(path: str) -> list[str]:
    """Returns the proper suffixes of a path, longest first, without suffixes of a number alone."""
    keys = path.split("/")
    ends = ("/".join(keys[i:]) for i in range(1, len(keys)))
    return [end for end in ends if not end.isdecimal()]


def _pattern(path: str, number: _Number) -> str:
    """Returns the path from the component on, with "#" in place of the number."""
    return path[number.component : number.start] + "#" + path[number.start + len(number.digits) :]


def _tail(path: str) -> str:
    """Returns the last two components, shared by a parameter and its optimizer statistics."""
    return "/".join(path.split("/")[-2:])


_Matrix = tuple[_Number, str, tuple[int, ...], Sequence[_Number]]
"""A number in a matrix's path, the pattern and shape of the matrix, and the numbers before it."""
