"""Checks for deleted or repeated donated buffers, on either of which XLA aborts the process.

Results of a function own their buffers. Only arrays that were not returned by the last call are
checked for repetition; for returned arrays the cost is some tenths of a microsecond each.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from partir_search.arguments.abstract_values import is_array


def check_alive(name: str, leaves: Sequence[Any], paths: Sequence[str]) -> None:
    """Checks that no argument was deleted.

    Args:
      name: name of the called function, for messages.
      leaves: flat arguments.
      paths: path of each leaf.

    Raises:
      RuntimeError: an array was donated to an earlier call, or deleted.
    """
    for i, x in enumerate(leaves):
        if is_array(x) and x.is_deleted():
            raise RuntimeError(
                f"{name}: {paths[i]} was donated to an earlier call, or deleted, and its buffer is"
                " gone: pass what that call returned, copy it before (jnp.copy), or leave its"
                " argument out of donate_argnums"
            )


class Returned:
    """Weak references to the arrays returned by a function's last call.

    Each array is the sole owner of its buffer.
    """

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Any]] = []

    def note(self, references: list[weakref.ref[Any]]) -> None:
        """Replaces the references by references to the results of a call."""
        self._refs = references

    def ids(self) -> set[int]:
        """`id` of each returned array still alive."""
        return set(map(id, [ref() for ref in self._refs]))


class Buffers:
    """Checks of the buffers donated by one executable."""

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        sizes: Sequence[int],
        donated: Sequence[bool],
        returned: Returned,
    ) -> None:
        """Checks for an executable of the function `name`.

        Args:
          name: name of the function, for messages.
          paths, sizes, donated: path, bytes and donation of each flat argument.
          returned: last results of the function, shared by its executables.
        """
        self._name, self._paths, self._donated = name, paths, donated
        groups: dict[int, list[int]] = collections.defaultdict(list)
        for i, size in enumerate(sizes):
            groups[size].append(i)
        shared = [g for size, g in groups.items() if size and any(donated[i] for i in g)]
        self._rivals = {i: g for g in shared if len(g) > 1 for i in g}
        self._returned = returned

    def check(self, leaves: Sequence[Any]) -> None:
        """Checks that no donated buffer is passed twice. No leaf may be deleted.

        Raises:
          ValueError: two leaves share a buffer, and at least one of both is donated.
        """
        if not self._rivals:
            return
        places = dict(zip(map(id, leaves), range(len(leaves)), strict=True))
        if len(places) < len(leaves):
            self._check_same(leaves, range(len(leaves)), lambda x: (id(x),))
        not_returned = [places[i] for i in places.keys() - self._returned.ids()]
        candidates = [i for i in not_returned if i in self._rivals and is_array(leaves[i])]
        if candidates:
            same_size = sorted({j for i in candidates for j in self._rivals[i]})
            self._check_same(leaves, same_size, pointers)

    def check_changed(self, leaves: Sequence[Any], changed: Iterable[int]) -> None:
        """Checks as `check` does, after a checked call.

        Args:
          leaves: flat arguments.
          changed: positions of the leaves that are neither arguments nor results of that call.
        """
        if any(i in self._rivals for i in changed):
            self.check(leaves)

    def returned(self, results: Iterable[Any]) -> list[weakref.ref[Any]]:
        """Remembers the flat results of a call; returns weak references to them."""
        references = list(map(weakref.ref, results))
        self._returned.note(references)
        return references

    def _check_same(
        self,
        leaves: Sequence[Any],
        places: Iterable[int],
        keys: Callable[[Any], Iterable[Any]],
    ) -> None:
        seen: dict[Any, int] = {}
        for i in places:
            if not is_array(leaves[i]) or i not in self._rivals:
                continue
            for key in keys(leaves[i]):
                first = seen.setdefault(key, i)
                if first != i and (self._donated[first] or self._donated[i]):
                    raise ValueError(self._twice(first, i))

    def _twice(self, first: int, second: int) -> str:
        donated, copied = (first, second) if self._donated[first] else (second, first)
        argument = self._paths[donated].partition("/")[0]
        return (
            f"{self._name}: {self._paths[first]} and {self._paths[second]} are one buffer, and"
            f" {argument} is donated: copy one of them (jnp.copy({self._paths[copied]})), or make"
            f" {argument} by step.init"
        )


def pointers(x: Any) -> list[tuple[Any, int]]:
    """Device and address of each addressable shard of an array."""
    blocks = map(x.addressable_data, range(len(x.sharding.addressable_devices)))
    return [(block.device, block.unsafe_buffer_pointer()) for block in blocks]
