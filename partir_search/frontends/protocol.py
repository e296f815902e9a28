"""The protocol that a library of modules fills so that its objects may be arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import jax


@dataclasses.dataclass(frozen=True)
class Parts:
    """The arguments of one call without objects.

    Attributes:
      arrays: per argument, a pytree of arrays. Its keys are the paths that users know.
      static: everything else, by which plans are kept: equal if the same trace holds.
      objects: the objects themselves, for `FrontEnd.update`.
      mutable: positions of arguments whose objects `FrontEnd.settle` can change.
    """

    arrays: tuple[Any, ...]
    static: Hashable
    objects: Any = None
    mutable: frozenset[int] = frozenset()


class FrontEnd(Protocol):
    """A library whose objects may be arguments of a step.

    `split` and `update` are called outside of the trace, `merge` and `results` inside of it.

    Attributes:
      module: name of the library's module. Where it is not imported, nothing is looked for.
    """

    module: str

    def claims(self, kind: type) -> bool | None:
        """True if objects of a type are the library's; None for pytrees not to be looked into."""

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """The function under the library's own `jit`, or None if `fun` is no such wrapper."""

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> Parts:
        """Arrays and the rest of a call's arguments.

        Args:
          names: paths of the arguments, for messages.

        Raises:
          TypeError: what is neither an array nor hashable; names its path.
        """

    def merge(self, static: Any, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The arguments made of traced arrays again, and what `results` needs of them."""

    def results(
        self, static: Any, merged: Any, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Arrays that leave the trace.

        Args:
          merged: the second result of `merge`.
          out: the function's result; objects of the library in it become arrays.
          donated: per argument; what is donated is returned even if it did not change.

        Returns:
          The result as arrays, by position the arguments that changed as arrays (with the same
          structure as in `split`, if that did not change), and everything else.
        """

    def settle(self, parts: Parts, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Gives objects among the arguments the same arrays, moved to where a plan has them.

        Later calls need not move them again. A library of immutable objects gives none.

        Returns:
          The arguments as `split` takes them.
        """

    def update(
        self, parts: Parts, static: Any, out: Any, updates: Mapping[int, Any], fresh: bool
    ) -> Any:
        """The result of the call. Objects among the arguments are given their new arrays.

        Args:
          static: the third result of `results`; `out` and `updates` are the first two, computed.
          fresh: leave the arguments' objects alone.
        """


@dataclasses.dataclass(frozen=True)
class Unwrapped:
    """A function that was under a library's `jit`, and what that was told.

    Attributes:
      donated: positions of donated arguments; None if `donated_by` finds them in a call.
      everything: whether what is no array is static in every call.
    """

    fun: Any
    static_argnums: tuple[int, ...] = ()
    donate_first: bool = False
    donate_rest: bool = False
    donated_by: Any = None
    everything: bool = False


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Returned:
    """Result of a function of arrays that stands for one of objects.

    Attributes:
      out: the result, as arrays.
      updates: arguments that the function changed, by parameter name, as arrays.
      static: what front ends need to make objects of them again.
    """

    out: Any
    updates: dict[str, Any]
    static: Any

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        """Children with keys: the result, then the arguments by their names."""
        named = ((jax.tree_util.DictKey(n), x) for n, x in self.updates.items())
        first = jax.tree_util.GetAttrKey("result"), self.out
        return (first, *named), (tuple(self.updates), self.static)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> Returned:
        """Inverse of `tree_flatten_with_keys`."""
        names, static = aux
        return cls(children[0], dict(zip(names, children[1:], strict=True)), static)
