"""Mutable refs of jax (`jax.new_ref`) as arguments: what a function writes to them stays in them.

Outside of the trace a Ref remains a leaf of the call: the executable reads and writes it in place.
Inside of the trace the function is given a new ref of the traced value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from partir_search.frontends.protocol import Parts, Returned, Unwrapped
from partir_search.ir.argument_paths import leaf_path


@dataclasses.dataclass(frozen=True)
class _Held:
    """Positions of refs among the flat arguments, and of the arguments that hold them."""

    places: tuple[int, ...]
    owners: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Out:
    """Positions of refs among the flat results, and of the arguments that hold refs."""

    places: tuple[int, ...]
    owners: tuple[int, ...]


class Refs:
    """The front end of mutable refs; see `FrontEnd`."""

    module = "jax"

    def claims(self, kind: type) -> bool | None:
        """Tells whether a type is that of refs, or of their types (`jax.typeof(ref)`)."""
        return issubclass(kind, KINDS)

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """Nothing: functions of refs are under `jax.jit` itself."""
        return None

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> Parts:
        """The arguments with their refs, shapes in place of types and values of traced refs.

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
        held = _Held(places, tuple(sorted({owners[i] for i in places})))
        return Parts(tree.unflatten(leaves), held, (values, refs))

    def merge(self, static: _Held, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The arguments with refs of the traced values."""
        leaves, tree = _flat(arrays)
        for i in static.places:
            leaves[i] = jax.new_ref(leaves[i])
        values: tuple[Any, ...] = tree.unflatten(leaves)
        return values, values

    def results(
        self, static: _Held, merged: Any, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Last values of the arguments' refs, and of refs that the function made.

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
        return tree.unflatten(leaves), updates, _Out(places, static.owners)

    def settle(self, parts: Parts, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same: refs are moved themselves."""
        return arrays

    def update(
        self, parts: Parts, static: _Out, out: Any, updates: Mapping[int, Any], fresh: bool
    ) -> Any:
        """The result, with refs for those that were made. Traced refs are given their values.

        Others have been written by the executable.
        """
        values, refs = parts.objects
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
    """Tells whether a leaf is a ref, perhaps a traced one, or the type of one."""
    return isinstance(x, KINDS)


@functools.cache
def _may_be_ref(kind: type) -> bool:
    return issubclass(kind, (*KINDS, jax.core.Tracer))


def hold_refs(leaves: Iterable[Any]) -> bool:
    """Tells whether any leaf is a ref. Types are asked first, as asking a leaf takes some time."""
    kinds = {kind for kind in set(map(type, leaves)) if _may_be_ref(kind)}
    return bool(kinds) and any(type(x) in kinds and is_ref(x) for x in leaves)


def in_place(returned: Returned) -> frozenset[int]:
    """Positions of the arguments whose refs a function writes in place."""
    outs = (rest for _, rest in returned.static if isinstance(rest, _Out))
    return frozenset(i for rest in outs for i in rest.owners)


def value(x: Any) -> Any:
    """The value of a leaf inside of an executable."""
    return x[...] if is_ref(x) else x


def written(leaves: Sequence[Any], ties: Sequence[tuple[int, int]], out: list[Any]) -> list[Any]:
    """Results without the last values of refs among the leaves, which are written to these.

    Args:
      ties: pairs of an argument and the result that is its next value.
    """
    for i, j in ties:
        if is_ref(leaves[i]):
            leaves[i][...] = out[j]
            out[j] = None
    return out


def moved(ref: Any, sharding: Any, place: Callable[[Any, Any], Any]) -> Any:
    """The ref, whose value lies as the plan wants it from now on.

    No operation of jax's moves a ref: it becomes what a new one of the moved value is.
    """
    now = ref.sharding
    if now == sharding or now.is_equivalent_to(sharding, ref.ndim):
        return ref
    vars(ref).update(vars(jax.new_ref(place(jax.ref.freeze(ref), sharding))))
    return ref


def _objects(refs: Mapping[int, Any]) -> list[Any]:
    """Refs themselves, without types of refs."""
    return [x for x in refs.values() if not isinstance(x, jax.ref.AbstractRef)]


def _leaf(ref: Any) -> Any:
    if isinstance(ref, jax.ref.AbstractRef):
        weak = bool(ref.weak_type)  # type: ignore[attr-defined]
        return jax.ShapeDtypeStruct(ref.shape, ref.dtype, weak_type=weak)
    return ref[...] if isinstance(ref, jax.core.Tracer) else ref


def _made(x: Any) -> Any:
    """A ref of a value; the type of a ref of a shape."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return jax.new_ref(x)
    return jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(x).eqns[0].outvars[0].aval


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def _count(tree: Any) -> int:
    return len(jax.tree.leaves(tree))


def _twice(values: Sequence[Any], names: Sequence[str], refs: Mapping[int, Any]) -> str:
    """The message for a ref that is passed twice, with both paths."""
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
