"""Conversion of a call with objects to a call of a function of arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from partir_search.arguments.placement import place
from partir_search.calling.executables import Executables
from partir_search.frontends.protocol import FrontEnd, Returned, SplitArguments
from partir_search.frontends.refs import have_refs
from partir_search.frontends.registry import claimed, claims, imported
from partir_search.plan.plan import Plan
from partir_search.planning.options import Options
from partir_search.planning.trace import Call


@dataclasses.dataclass(frozen=True)
class Form:
    """A call of a function of arrays.

    Attributes:
      fun, plain: the function, and its `jax.jit` with static and donated arguments.
      executables: plans and executables of the function.
      static: positions and names of static arguments.
      call: the dynamic arguments.
      args, kwargs: all arguments of `plain`.
      direct: runs the caller's function on the caller's arguments, unpartitioned.
      finish: converts the function's result to the caller's result and updates objects among the
        arguments; with `fresh=True` the objects are left unchanged.
      settle: places leaves without a committed sharding, and updates the objects that hold the
        leaves, to spare later calls the move; returns all leaves.
    """

    fun: Callable[..., Any]
    plain: Any
    executables: Executables
    static: tuple[tuple[int, ...], tuple[str, ...]]
    call: Call
    args: Sequence[Any]
    kwargs: dict[str, Any]
    direct: Callable[[], Any]
    finish: Callable[..., Any] = lambda out, fresh=False: out
    settle: Callable[[list[Any], Sequence[Any]], list[Any]] = lambda leaves, shardings: leaves


class Adapter:
    """Functions of arrays made from a function of objects, cached by the objects' static data."""

    def __init__(self, fun: Callable[..., Any], name: str, options: Options) -> None:
        """Adapter of `fun`, a function of a library's objects."""
        self._fun, self._name, self._options = fun, name, options
        self._similar: dict[Hashable, Plan] = {}
        self._made: dict[Hashable, tuple[Callable[..., Any], Any, Executables]] = {}

    def form(
        self,
        fronts: tuple[FrontEnd, ...],
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        donated: Callable[..., frozenset[str]],
    ) -> Form:
        """Splits the arguments of a call into arrays and static data.

        Args:
          fronts: front ends of the objects in the call.
          call: the dynamic arguments.
          args, kwargs: all arguments.
          donated: function from (names, args, kwargs) to the names of donated arguments.
        """
        names = (*call.names, *call.kwargs)
        values: tuple[Any, ...] = (*call.args, *call.kwargs.values())
        layers: list[tuple[FrontEnd, SplitArguments]] = []
        for front in fronts:
            layers.append((front, front.split(values, names)))
            values = layers[-1][1].arrays
        count = len(call.args)
        arrays = dict(zip(call.kwargs, values[count:], strict=True))
        key = names, call.statics, tuple((f.module, p.static) for f, p in layers)
        if key not in self._made:
            static = [(f, p.static) for f, p in layers]
            self._made[key] = self._make(static, call, args, kwargs, donated(names, args, kwargs))
        fun, plain, executables = self._made[key]
        new = dataclasses.replace(
            call, args=values[:count], kwargs=arrays, statics=(), places=tuple(range(count))
        )

        def finish(returned: Returned, fresh: bool = False) -> Any:
            return rebuilt(layers, names, returned, fresh)

        def direct() -> Any:
            return self._fun(*args, **kwargs)

        def settle(leaves: list[Any], shardings: Sequence[Any]) -> list[Any]:
            return settled(layers, new, leaves, shardings)

        return Form(
            fun=fun,
            plain=plain,
            executables=executables,
            static=((), ()),
            call=new,
            args=new.args,
            kwargs=new.kwargs,
            direct=direct,
            finish=finish,
            settle=settle,
        )

    def clear(self) -> None:
        """Removes all functions with their plans and executables."""
        self._made.clear()
        self._similar.clear()

    def _make(
        self,
        static: list[tuple[FrontEnd, Any]],
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        donated: frozenset[str],
    ) -> tuple[Callable[..., Any], Any, Executables]:
        """Builds a function of arrays alone, the function under `jax.jit`, and `Executables`."""
        names = (*call.names, *call.kwargs)
        flags = tuple(n in donated for n in names)
        places = call.places
        given = {k: v for k, v in kwargs.items() if k not in call.kwargs}
        keywords = tuple(call.kwargs)
        fixed = list(args)
        for i in places:
            fixed[i] = None

        def pure(*arrays: Any, **named: Any) -> Returned:
            values: tuple[Any, ...] = (*arrays, *(named[k] for k in keywords))
            merged: list[Any] = []
            for front, rest in reversed(static):
                values, rebuilt = front.merge(rest, values)
                merged.append(rebuilt)
            bound = list(fixed)
            for i, x in zip(places, values, strict=False):
                bound[i] = x
            by_name = dict(zip(keywords, values[len(places) :], strict=True))
            out = self._fun(*bound, **given, **by_name)
            layers = [(f, s, m) for (f, s), m in zip(static, reversed(merged), strict=True)]
            return returned(layers, names, out, flags)

        pure.__name__ = pure.__qualname__ = self._name
        pure.argument_paths = call.names  # type: ignore[attr-defined]
        plain = jax.jit(
            pure,
            donate_argnums=[i for i, n in enumerate(call.names) if n in donated] or None,
            donate_argnames=[k for k in keywords if k in donated] or None,
        )
        executables = Executables(pure, plain, self._name, self._options, self._similar)
        return pure, plain, executables


class FrontEndCache:
    """Cache of the front ends needed by a function's calls, by tree structure of the arguments."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[FrontEnd, ...]] = {}

    def fronts(self, call: Call) -> tuple[FrontEnd, ...]:
        """Front ends of the objects among the arguments of a call."""
        values = (*call.args, *call.kwargs.values())
        if has_objects(call):  # cyclic objects cannot be flattened
            return claimed(values)
        leaves, tree = call.flat
        key = tree, frozenset(map(type, leaves)), len(imported()), have_refs(leaves)
        if key not in self._known:
            self._known[key] = claimed(values)
        return self._known[key]


def has_objects(call: Call) -> bool:
    """True if an argument of a call, or an entry of an argument, is an object of a library."""
    values = (*call.args, *call.kwargs.values())
    kinds = set(map(type, values))
    for value in values:
        if type(value) in (tuple, list, dict):
            kinds.update(map(type, value.values() if type(value) is dict else value))
    return any(map(claims, kinds))


def returned(
    layers: Sequence[tuple[FrontEnd, Any, Any]],
    names: Sequence[str],
    out: Any,
    donated: Sequence[bool],
) -> Returned:
    """Result of a trace and its updated arguments, as arrays.

    Args:
      layers: per front end, the static data of the arguments and the merged objects.
      names: names of the arguments.
      out: the result of the function.
      donated: per argument, True if donated.
    """
    updates: dict[int, Any] = {}
    static: list[Any] = []
    for front, given, merged in layers:
        # Updates of one front end may contain static data of the next.
        (out, before), more, rest = front.results(given, merged, (out, updates), donated)
        static.append((tuple(before), rest))
        updates = {**before, **more}
    return Returned(out, {names[i]: x for i, x in updates.items()}, tuple(static))


def rebuilt(
    layers: Sequence[tuple[FrontEnd, SplitArguments]],
    names: Sequence[str],
    found: Returned,
    fresh: bool,
) -> Any:
    """Caller's result of a call, after the objects among the arguments received their new arrays.

    Args:
      layers: front ends with the split arguments.
      names: names of the arguments.
      found: result and updated arguments, as arrays.
      fresh: True leaves the caller's objects unchanged.
    """
    out = found.out
    updates: dict[int, Any] = {names.index(n): x for n, x in found.updates.items()}
    for (front, split), (first, static) in zip(
        reversed(layers), reversed(found.static), strict=True
    ):
        before = {i: updates[i] for i in first}
        own = {i: x for i, x in updates.items() if i not in before}
        out, updates = front.update(split, static, (out, before), own, fresh)
    return out


def settled(
    layers: Sequence[tuple[FrontEnd, SplitArguments]],
    call: Call,
    leaves: list[Any],
    shardings: Sequence[Any],
) -> list[Any]:
    """Leaves of a call, with uncommitted arrays of mutable objects placed by `shardings`."""
    mutable = frozenset[int]().union(*(split.mutable for _, split in layers))
    own = _leaves_of(call, mutable)
    loose = [i for i in own if not getattr(leaves[i], "committed", False)]
    if not loose:
        return leaves
    leaves = list(leaves)
    for i in loose:
        if not (isinstance(leaves[i], jax.Array) and leaves[i].is_deleted()):
            leaves[i] = place(leaves[i], shardings[i])
    args, kwargs = jax.tree.unflatten(call.flat[1], leaves)
    values = (*args, *(kwargs[k] for k in call.kwargs))
    for front, split in reversed(layers):
        values = front.settle(split, values)
    return leaves


def _leaves_of(call: Call, arguments: frozenset[int]) -> list[int]:
    """Positions of the leaves of some arguments, positional ones first."""
    positional, named = call.flat[1].children()
    order = [list(call.kwargs).index(k) for k in sorted(call.kwargs)]
    found, at = list[int](), 0
    for argument, tree in zip(
        (*range(len(call.args)), *(len(call.args) + i for i in order)),
        (*positional.children(), *named.children()),
        strict=True,
    ):
        found += range(at, at + tree.num_leaves) if argument in arguments else ()
        at += tree.num_leaves
    return found


class InitialState:
    """Initial state of a step: abstract at first, then as arrays with a plan's shardings.

    Attributes:
      shapes: the state with ShapeDtypeStructs for arrays.
    """

    def __init__(self, init_fn: Callable[[], Any]) -> None:
        """Initial state returned by `init_fn`: a library's objects or a pytree of arrays."""
        self._layers: list[tuple[FrontEnd, SplitArguments]] = []
        self._make: Callable[[], Any] = init_fn
        try:
            self._abstract = self.shapes = jax.eval_shape(init_fn)
        except (TypeError, ValueError):  # results are objects or refs
            self._abstract = None
        if self._abstract is None or claimed(self._abstract):
            self._make = lambda: self._arrays(init_fn())
            self._abstract = jax.eval_shape(self._make)
            self.shapes = self.objects(self._abstract)

    def arrays(self, shardings: list[Any]) -> Any:
        """Computes the state as arrays.

        Args:
          shardings: sharding of each leaf.
        """
        tree: Any = jax.tree.structure(self._abstract)
        if not isinstance(self._abstract, Returned):
            return jax.jit(self._make, out_shardings=tree.unflatten(shardings))()
        # Static data may be a new object in each call: that of the shapes stays.
        make = self._make
        return tree.unflatten(jax.jit(lambda: jax.tree.leaves(make()), out_shardings=shardings)())

    def changed(self, arrays: Any, change: Callable[[Any], Any], several: bool) -> Any:
        """State as arrays after `change` of the state or, if `several`, of each argument."""
        out = arrays.out if isinstance(arrays, Returned) else arrays
        out = tuple(map(change, out)) if several else change(out)
        return dataclasses.replace(arrays, out=out) if isinstance(arrays, Returned) else out

    def objects(self, arrays: Any) -> Any:
        """State with the classes returned by `init_fn`."""
        if not isinstance(arrays, Returned):
            return arrays
        return rebuilt(self._layers, (), arrays, True)

    def _arrays(self, out: Any) -> Returned:
        self._layers = [(front, front.split((), ())) for front in claimed(out)]
        objects = [(front, p.static, front.merge(p.static, ())[1]) for front, p in self._layers]
        return returned(objects, (), out, ())
