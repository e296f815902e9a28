"""Protocol of front ends, for a library with objects as arguments of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import jax


@dataclasses.dataclass(frozen=True)
class SplitArguments:
    """Arguments of one call, split into arrays and static data.

    Attributes:
      arrays: [arguments] pytrees of arrays; keys of the pytrees become argument paths.
      static: hashable data, in the key of cached plans; equal data share a trace.
      objects: the caller's objects, for `FrontEnd.update`.
      mutable: positions of arguments with objects for `FrontEnd.settle` to change.
    """

    arrays: tuple[Any, ...]
    static: Hashable
    objects: Any = None
    mutable: frozenset[int] = frozenset()


class FrontEnd(Protocol):
    """Support for arguments of a step that are objects of a library.

    A call runs `split`, then inside of the trace `merge`, the function and `results`, then
    `update`.

    Attributes:
      module: name of the library's module; the front end is skipped until the module is imported.
    """

    module: str

    def claims(self, kind: type) -> bool | None:
        """True for types of the library; None for its pytrees not to be searched for objects."""

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """Function under the library's own `jit`; None if `fun` is no wrapper by the library."""

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> SplitArguments:
        """Splits the arguments of a call.

        Args:
          names: paths of the arguments, for messages.

        Raises:
          TypeError: a leaf is neither an array nor hashable; names the path of the leaf.
        """

    def merge(self, static: Any, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Arguments of traced arrays, with objects, and the `merged` argument of `results`."""

    def results(
        self, static: Any, merged: Any, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Splits the results of the function, inside of the trace.

        Args:
          merged: second result of `merge`.
          out: result of the function, with objects.
          donated: [arguments] donated arguments are returned even if unchanged.

        Returns:
          The result as arrays; changed arguments as arrays, by position, in the structure of
          `split` unless the structure changed; and hashable static data.
        """

    def settle(self, split: SplitArguments, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Stores arrays, moved to the shardings of a plan, in mutable objects of the arguments.

        Later calls then find them in place. Libraries of immutable objects build new ones.

        Returns:
          The arguments, with objects.
        """

    def update(
        self, split: SplitArguments, static: Any, out: Any, updates: Mapping[int, Any], fresh: bool
    ) -> Any:
        """Builds the result of the call, and stores changed arrays in the arguments' objects.

        Args:
          static: third result of `results`.
          out: first result of `results`, computed.
          updates: second result of `results`, computed.
          fresh: do not change the arguments' objects.
        """


@dataclasses.dataclass(frozen=True)
class Unwrapped:
    """A function taken out of a library's `jit`, with the options of the `jit`.

    Attributes:
      fun: the function.
      static_argnums: positions of static arguments.
      donate_first, donate_rest: donate the first argument, donate the remaining arguments.
      donated_by: function from (args, kwargs) to donated positions and names; None if unused.
      everything: all leaves but arrays are static, in every call.
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
    """Result of the traced function of arrays behind a function of objects.

    Attributes:
      out: the result, as arrays.
      updates: changed arguments by parameter name, as arrays.
      static: static data of the front ends, to build objects from `out` and `updates`.
    """

    out: Any
    updates: dict[str, Any]
    static: Any

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        """Children with keys: the result, then the changed arguments by name."""
        named = ((jax.tree_util.DictKey(n), x) for n, x in self.updates.items())
        first = jax.tree_util.GetAttrKey("result"), self.out
        return (first, *named), (tuple(self.updates), self.static)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> Returned:
        """Inverse of `tree_flatten_with_keys`."""
        names, static = aux
        return cls(children[0], dict(zip(names, children[1:], strict=True)), static)
