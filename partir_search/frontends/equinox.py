"""Front end of equinox: arrays are traced, further leaves are static, as in `eqx.filter_jit`."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from partir_search.frontends.protocol import SplitArguments, Unwrapped
from partir_search.ir.argument_paths import leaf_path

_ARRAY = object()  # placeholder of an array among static leaves


class Equinox:
    """Implementation of `FrontEnd` for equinox."""

    module = "equinox"

    def claims(self, kind: type) -> bool:
        """True for subclasses of `equinox.Module`."""
        return issubclass(kind, sys.modules["equinox"].Module)

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """Function under `equinox.filter_jit`."""
        if type(fun) is not type(sys.modules["equinox"].filter_jit(_same)):
            return None
        first, rest = (bool(getattr(fun, f"donate_{n}", False)) for n in ("first", "rest"))
        return Unwrapped(fun.__wrapped__, (), first, rest, everything=True)

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> SplitArguments:
        """Arrays, with None for each static leaf; static leaves by type and value.

        Raises:
          TypeError: a leaf is neither an array nor hashable.
        """
        arrays, static = _partition(values)
        for (keys, _), x in zip(
            jax.tree_util.tree_leaves_with_path(values), static[1], strict=True
        ):
            if x is _ARRAY:
                continue
            try:
                hash(x)
            except TypeError:
                path = leaf_path(names[keys[0].idx], keys[1:])
                raise TypeError(
                    f"{path} is a {type(x[1]).__name__}, neither an array nor hashable; pass an"
                    " array, or something that can be static: a number, a string, a function"
                ) from None
        return SplitArguments(arrays, static)

    def merge(self, static: Any, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Arguments of traced arrays and static leaves."""
        return _combine(static, arrays), None

    def results(
        self, static: Any, merged: Any, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Arrays and static leaves of the result; no updates, since modules are immutable."""
        arrays, rest = _partition(out)
        return arrays, {}, rest

    def settle(self, split: SplitArguments, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with moved arrays, as new modules."""
        values: tuple[Any, ...] = _combine(split.static, arrays)  # type: ignore[arg-type]
        return values

    def update(
        self, split: SplitArguments, static: Any, out: Any, updates: Mapping[int, Any], fresh: bool
    ) -> Any:
        """Result of arrays and static leaves."""
        return _combine(static, out)


def _same(x: Any) -> Any:
    return x


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _partition(tree: Any) -> tuple[Any, tuple[Any, tuple[Any, ...]]]:
    """(tree with None for static leaves, (structure, static leaves by type and value))."""
    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(tree)
    arrays = structure.unflatten([x if _is_array(x) else None for x in leaves])
    static = tuple(_ARRAY if _is_array(x) else (type(x), x) for x in leaves)
    return arrays, (structure, static)


def _combine(static: tuple[Any, tuple[Any, ...]], arrays: Any) -> Any:
    """Inverse of `_partition`."""
    structure, rest = static
    leaves = structure.flatten_up_to(arrays)
    return structure.unflatten(
        [x if s is _ARRAY else s[1] for x, s in zip(leaves, rest, strict=True)]
    )
