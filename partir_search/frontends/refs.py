"""Front end of jax's mutable refs (`jax.new_ref`) as arguments, with writes visible to the caller.

Outside of the trace a ref is a leaf of the call, read and written in place by the executable.
Inside of the trace the function gets a new ref of the traced value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from partir_search.frontends.protocol import Returned, SplitArguments, Unwrapped
from partir_search.ir.argument_paths import leaf_path


@dataclasses.dataclass(frozen=True)
class _RefPlaces:
    """Static data of the arguments, or of the results.

    Attributes:
      places: positions of refs among the flat arguments or results.
      owners: positions of the arguments with refs.
    """

    places: tuple[int, ...]
    owners: tuple[int, ...]


class Refs:
    """Implementation of `FrontEnd` for mutable refs."""

    module = "jax"

    def claims(self, kind: type) -> bool | None:
        """True for `jax.Ref` and for the type of `jax.typeof(ref)`."""
        return issubclass(kind, KINDS)

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """None: functions of refs use `jax.jit`."""
        return None

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> SplitArguments:
        """Arguments with their refs; types of refs become shapes, traced refs become values.

        Raises:
          ValueError: one ref is passed twice.
        """
        leaves, tree = _flat(values)
        owners = [i for i, v in enumerate(values) for _ in jax.tree.leaves(v)]
        places = tuple(i for i, x in enumerate(leaves) if is_ref(x))
        refs = {i: leaves[i] for i in places}
        if len(set(map(id, _objects(refs)))) < len(_objects(refs)):
            raise ValueError(_twice(values, names, refs))
        for i, ref in refs.items():
            leaves[i] = _leaf(ref)
        static = _RefPlaces(places, tuple(sorted({owners[i] for i in places})))
        return SplitArguments(tree.unflatten(leaves), static, (values, refs))

    def merge(self, static: _RefPlaces, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Arguments with new refs of the traced values."""
        leaves, tree = _flat(arrays)
        for i in static.places:
            leaves[i] = jax.new_ref(leaves[i])
        values: tuple[Any, ...] = tree.unflatten(leaves)
        return values, values

    def results(
        self, static: _RefPlaces, merged: Any, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Final values of the arguments' refs, and of refs returned by an initializer.

        Raises:
          ValueError: a step returns a ref.
        """
        leaves, tree = _flat(out)
        places = tuple(i for i, x in enumerate(leaves) if is_ref(x))
        if places and static.places:
            raise ValueError(
                f"a {jax.typeof(leaves[places[0]])} is returned, which jax does not allow: return"
                " its value, ref[...]"
            )
        for i in places:
            leaves[i] = leaves[i][...]
        updates = {
            i: jax.tree.map(lambda x: x[...] if is_ref(x) else None, merged[i])
            for i in static.owners
        }
        return tree.unflatten(leaves), updates, _RefPlaces(places, static.owners)

    def settle(self, split: SplitArguments, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """`arrays`: refs are moved in place (`moved`)."""
        return arrays

    def update(
        self,
        split: SplitArguments,
        static: _RefPlaces,
        out: Any,
        updates: Mapping[int, Any],
        fresh: bool,
    ) -> Any:
        """Result with new refs for returned ones.

        Traced refs get their final values here; the executable has written the remaining refs.
        """
        values, refs = split.objects
        found = {i: _flat(values[i])[1].flatten_up_to(x) for i, x in updates.items()}
        flat = [x for i, v in enumerate(values) for x in found.get(i, [None] * _count(v))]
        for i, ref in refs.items():
            if isinstance(ref, jax.core.Tracer) and not fresh:
                ref[...] = flat[i]
        leaves, tree = _flat(out)
        for i in static.places:
            leaves[i] = _made(leaves[i])
        return tree.unflatten(leaves)


KINDS = (jax.ref.Ref, jax.ref.AbstractRef)


def is_ref(x: Any) -> bool:
    """True for a ref, a traced ref, or the type of a ref."""
    return isinstance(x, KINDS)


@functools.cache
def _may_be_ref(kind: type) -> bool:
    return issubclass(kind, (*KINDS, jax.core.Tracer))


def have_refs(leaves: Iterable[Any]) -> bool:
    """True if any leaf is a ref. Types are checked first, for speed."""
    kinds = {kind for kind in set(map(type, leaves)) if _may_be_ref(kind)}
    return bool(kinds) and any(type(x) in kinds and is_ref(x) for x in leaves)


def in_place(returned: Returned) -> frozenset[int]:
    """Positions of the arguments with refs, written in place."""
    outs = (rest for _, rest in returned.static if isinstance(rest, _RefPlaces))
    return frozenset(i for rest in outs for i in rest.owners)


def value(x: Any) -> Any:
    """Value of a leaf inside of an executable: refs are read."""
    return x[...] if is_ref(x) else x


def written(leaves: Sequence[Any], ties: Sequence[tuple[int, int]], out: list[Any]) -> list[Any]:
    """Writes final values to the refs among the leaves, and removes them from the results.

    Args:
      leaves: flat arguments.
      ties: (argument, result with its next value) pairs.
      out: flat results, changed in place.
    """
    for i, j in ties:
        if is_ref(leaves[i]):
            leaves[i][...] = out[j]
            out[j] = None
    return out


def moved(ref: Any, sharding: Any, place: Callable[[Any, Any], Any]) -> Any:
    """The ref, moved in place to the sharding of a plan.

    jax has no operation to move a ref: the ref takes the state of a new ref of the moved value.

    Args:
      place: moves an array to a sharding.
    """
    now = ref.sharding
    if now == sharding or now.is_equivalent_to(sharding, ref.ndim):
        return ref
    vars(ref).update(vars(jax.new_ref(place(jax.ref.freeze(ref), sharding))))
    return ref


def _objects(refs: Mapping[int, Any]) -> list[Any]:
    """Refs, without types of refs."""
    return [x for x in refs.values() if not isinstance(x, jax.ref.AbstractRef)]


def _leaf(ref: Any) -> Any:
    """Leaf of a call for a ref: shape of a type, value of a traced ref, or the ref."""
    if isinstance(ref, jax.ref.AbstractRef):
        weak = bool(ref.weak_type)  # type: ignore[attr-defined]
        return jax.ShapeDtypeStruct(ref.shape, ref.dtype, weak_type=weak)
    return ref[...] if isinstance(ref, jax.core.Tracer) else ref


def _made(x: Any) -> Any:
    """New ref of a value, or for a shape the type of a ref."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return jax.new_ref(x)
    return jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(x).eqns[0].outvars[0].aval


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def _count(tree: Any) -> int:
    return len(jax.tree.leaves(tree))


def _twice(values: Sequence[Any], names: Sequence[str], refs: Mapping[int, Any]) -> str:
    """Message on a ref passed twice, with both paths."""
    paths = [
        leaf_path(n, keys)
        for n, v in zip(names, values, strict=True)
        for keys, _ in jax.tree_util.tree_leaves_with_path(v)
    ]
    seen: dict[int, int] = {}
    for i, ref in refs.items():
        first = seen.setdefault(id(ref), i)
        if first != i:
            break
    return (
        "only one reference to a mutable array may be passed as an argument to a function, but the"
        f" mutable array reference of type {jax.typeof(ref)} appeared at both {paths[first]} and"
        f" {paths[i]}"
    )
