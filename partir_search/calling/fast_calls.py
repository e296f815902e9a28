"""Calls with the signature and placement of an earlier call, straight to jax's compiled function.

Per leaf, such a call costs an identity comparison beside jax's own dispatch: a leaf that is the
argument of the last call, or the result for it, was checked by the last call.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from partir_search.arguments.abstract_values import SCALARS, is_array, leaf_key
from partir_search.arguments.axes import AnyMesh, within
from partir_search.arguments.placement import is_placed, place
from partir_search.calling.direct_calls import UNLIKE, direct_result
from partir_search.calling.executables import Entry
from partir_search.planning.trace import Call

SMALL = 16  # leaves of an argument that is placed before a direct call


class FastCalls:
    """Executables of one function by static arguments, latest first."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[FastCall]] = {}
        self._only: FastCall | None = None  # without static arguments, checked by jax alone

    def alone(self, args: Sequence[Any]) -> Any:
        """Result of a call without keywords by the only executable known; UNLIKE without one.

        Nothing of the call is read in Python but the leaves of small arguments. Inside of
        `jax.set_mesh` another mesh may be meant: UNLIKE.
        """
        only = self._only
        if only is None or jax.sharding.get_abstract_mesh().axis_names:
            return UNLIKE
        return only.direct(args)

    def find(self, call: Call, mesh: AnyMesh) -> Callable[[], Any] | None:
        """Function that runs a call; None unless an earlier call had its signature and placement.

        Args:
          call: the dynamic arguments.
          mesh: mesh of the arguments and results of the call.
        """
        if not self._known:
            return None
        try:
            known = self._known.get(call.statics)
        except TypeError:  # a static argument that is not hashable: planning names it
            return None
        if known and len(known) == 1 and known[0].mesh == mesh:
            out = UNLIKE if call.kwargs else known[0].direct(call.args)
            if out is not UNLIKE:
                return lambda: out
        for fast in known or ():
            leaves = fast.leaves(call) if fast.mesh == mesh else None
            changed = None if leaves is None else fast.changed(leaves)
            if leaves is not None and changed is not None:
                return functools.partial(fast.run, leaves, changed)
        return None

    def add(self, call: Call, mesh: AnyMesh, entry: Entry) -> None:
        """Records a call that ran.

        Args:
          call, mesh: as in `find`.
          entry: the executable of the call.
        """
        if all(map(_is_fast, map(type, call.leaves()))):
            known = self._known.setdefault(call.statics, [])
            known[:] = [f for f in known if f.entry is not entry]
            known.insert(0, FastCall(entry, mesh, call))
        calls = [fast for known in self._known.values() for fast in known]
        alone = len(calls) == 1 and () in self._known and calls[0].entry.direct is not None
        within = bool(jax.sharding.get_abstract_mesh().axis_names)
        self._only = calls[0] if alone and not within else None

    def clear(self) -> None:
        """Removes all records."""
        self._known.clear()
        self._only = None


class FastCall:
    """Calls of one executable.

    Attributes:
      entry: the executable.
      mesh: mesh of arguments and results.
    """

    def __init__(self, entry: Entry, mesh: AnyMesh, call: Call) -> None:
        """Calls like `call`."""
        self.entry, self.mesh = entry, mesh
        self._unlike, self._arity = False, len(call.args)
        self._small, end = list[tuple[int, int, Any]](), 0  # argument, its first leaf, its tree
        for i, argument in enumerate(call.args):
            tree: Any = jax.tree.structure(argument)
            if tree.num_leaves <= SMALL:
                self._small.append((i, end, tree))
            end += tree.num_leaves
        leaves, self._tree = call.flat
        self._types, self._keys = list(map(type, leaves)), list(map(leaf_key, leaves))
        self._arrays = [
            (kind.is_deleted, [i for i, other in enumerate(self._types) if other is kind])
            for kind in set(self._types)
            if issubclass(kind, jax.Array)
        ]
        # Per leaf, a function that returns the array known to be right, or None.
        self._expected = _references(leaves, map(is_placed, leaves, entry.shardings))
        results = dict(entry.traced.module.ties)
        count, self._tied = len(leaves), bool(results)
        self._order = [count + results[i] if i in results else i for i in range(count)]

    def direct(self, args: Sequence[Any]) -> Any:
        """Result of a call checked by jax alone; UNLIKE if this is another call, once and for all.

        A function with calls of several kinds is checked in Python, leaf by leaf.

        Args:
          args: the dynamic arguments, none by keyword.
        """
        entry = self.entry
        if entry.direct is None or self._unlike:
            return UNLIKE
        placed = self._small_placed(args)
        if placed is not None:
            with within(entry.plan.mesh):
                out = direct_result(entry.direct, placed)
        self._unlike = placed is None or out is UNLIKE
        if self._unlike:
            return UNLIKE
        entry.moves.note(id(entry), (), (), ())
        return out

    def _small_placed(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """Arguments, those of few leaves (batches) placed; None if a committed array must move."""
        found, given = list(args), self.entry.shardings
        if len(found) != self._arity:
            return None
        for i, begin, tree in self._small:
            x, alone = args[i], tree.num_leaves == 1
            kind: Any = type(x)
            if alone and isinstance(x, jax.Array) and _is_fast(kind) and x.sharding == given[begin]:
                continue  # jax compares tree and type
            try:
                leaves = tree.flatten_up_to(args[i])
            except (TypeError, ValueError):
                return None
            if not all(map(_is_fast, set(map(type, leaves)))):
                return None
            for at, x in enumerate(leaves):
                sharding = given[begin + at]
                if not is_placed(x, sharding):
                    if _noted(x):
                        return None
                    leaves[at] = place(x, sharding)
            found[i] = tree.unflatten(leaves)
        return found

    def leaves(self, call: Call) -> list[Any] | None:
        """Flat arguments of a call; None if their tree structure differs."""
        try:
            found: list[Any] = self._tree.flatten_up_to((call.args, call.kwargs))
        except (TypeError, ValueError):
            return None
        return found

    def changed(self, leaves: Sequence[Any]) -> dict[int, Any] | None:
        """Leaves that are neither arguments of the last call nor results for them, placed.

        Returns:
          Placed leaves by position. None if a type differs, or if a committed array must move.
        """
        same = map(operator.is_, map(operator.call, self._expected), leaves)
        found: dict[int, Any] = {}
        for i in [i for i, known in enumerate(same) if not known]:
            x, sharding = leaves[i], self.entry.shardings[i]
            if self._types[i] is not type(x) or leaf_key(x) != self._keys[i]:
                return None
            stays = is_placed(x, sharding)
            if not stays and _noted(x):
                return None
            found[i] = x if stays else place(x, sharding)
        return found

    def run(self, leaves: list[Any], changed: dict[int, Any]) -> Any:
        """Runs a call.

        Args:
          leaves: the flat arguments.
          changed: leaves found by `changed`.
        """
        entry = self.entry
        entry.check(leaves, changed, self._any_deleted(leaves))
        moved = [i for i, x in changed.items() if x is not leaves[i]]
        placed = list(leaves)
        for i in moved:
            placed[i] = changed[i]
        results = entry.execute(placed)
        out = entry.traced.out_tree.unflatten(results)
        if not all(map(_is_fast, set(map(type, results)))):  # within a trace
            return out
        references = entry.buffers.returned(results)
        if not (changed or self._tied):
            return out
        expected = list(self._expected)
        new = _references([leaves[i] for i in changed], (i not in moved for i in changed))
        for i, reference in zip(changed, new, strict=True):
            expected[i] = reference
        both: list[Any] = [*expected, *references]
        self._expected = [both[i] for i in self._order]
        return out

    def _any_deleted(self, leaves: list[Any]) -> bool:
        return any(
            any(map(is_deleted, map(leaves.__getitem__, positions)))
            for is_deleted, positions in self._arrays
        )


def _references(leaves: Sequence[Any], placed: Iterable[bool]) -> list[Callable[[], Any]]:
    return [weakref.ref(x) if p else _nothing for x, p in zip(leaves, placed, strict=True)]


def _noted(x: Any) -> bool:
    """True for arrays whose move, or use after deletion, is noted by a call that is not fast."""
    return is_array(x) and (x.committed or x.is_deleted())


def _nothing() -> None:
    return None


@functools.cache
def _is_fast(kind: Hashable) -> bool:
    """True for types of concrete arrays and scalars; False for tracers, shapes and refs."""
    if not isinstance(kind, type) or issubclass(kind, jax.core.Tracer):
        return False
    return issubclass(kind, (jax.Array, np.ndarray, np.generic, *SCALARS))
