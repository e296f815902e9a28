"""Front end of flax nnx: modules, optimizers, metrics and random streams, read and mutated.

As in `nnx.jit`, a Variable shared by several objects is one array, and changes of the object graph
inside of the function (new Variables, changed attributes) are applied to the caller's objects.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from partir_search.frontends.protocol import SplitArguments, Unwrapped


@dataclasses.dataclass(frozen=True)
class _Static:
    """Static data of a call's arguments.

    Attributes:
      tree: pytree structure of the arguments, with graph nodes as leaves.
      places: [nodes] positions among the leaves.
      owners: [nodes] position of the argument with the node.
      graphdef: nnx's static description of the nodes.
      paths: [arrays] number of the node, then attribute names.
    """

    tree: Any
    places: tuple[int, ...]
    owners: tuple[int, ...]
    graphdef: Any
    paths: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class _Objects:
    """Objects of a call.

    Attributes:
      values: the arguments.
      index: nnx's RefMap from node to graph index.
      leaves / arrays: Variables and arrays of the nodes, in the order of `_Static.paths`.
    """

    values: tuple[Any, ...]
    index: Any
    leaves: list[Any]
    arrays: list[Any]


@dataclasses.dataclass(frozen=True)
class _Merged:
    """Nodes inside of the trace.

    Attributes:
      index: nnx's IndexMap from graph index to node.
      arrays: traced arrays of the nodes, in the order of `_Static.paths`.
    """

    nodes: list[Any]
    index: Any
    arrays: list[Any]


@dataclasses.dataclass(frozen=True)
class _Out:
    """Static data of the results.

    Attributes:
      tree, places: as in `_Static`, for the result.
      graphdef: nnx's static description of the arguments' and the result's nodes.
      sources: [arrays of `graphdef`] origin: ("kept", position among the arguments' arrays),
        ("update", argument, node, path) or ("out", node, path).
    """

    tree: Any
    places: tuple[int, ...]
    graphdef: Any
    sources: tuple[tuple[Any, ...], ...]


class Nnx:
    """Implementation of `FrontEnd` for flax nnx."""

    module = "flax.nnx"

    def claims(self, kind: type) -> bool | None:
        """True for graph nodes (Module, Optimizer, Metric, Rngs, Variable), None for State."""
        nnx = _nnx()
        if issubclass(kind, nnx.State):
            return None
        return issubclass(kind, nnx.Pytree | nnx.Variable)

    def unwrap(self, fun: Any) -> Unwrapped | None:
        """Function under `nnx.jit`."""
        if type(fun) not in {type(_nnx().jit(_same, graph_updates=u)) for u in (True, False)}:
            return None
        static = getattr(fun, "static_argnums", None)
        static = () if static is None else (static,) if isinstance(static, int) else tuple(static)
        return Unwrapped(fun.fun, static, donated_by=_donated_by(fun))

    def split(self, values: tuple[Any, ...], names: Sequence[str]) -> SplitArguments:
        """Nested dicts of arrays, keyed by attribute names, in place of graph nodes.

        A shared Variable appears once, in the first node with a reference to it.
        """
        nnx = _nnx()
        leaves, tree = self._flatten(values)
        owners = [i for i, v in enumerate(values) for _ in self._flatten(v)[0]]
        places = tuple(i for i, x in enumerate(leaves) if self.claims(type(x)))
        nodes = [leaves[i] for i in places]
        index = nnx.graphlib.RefMap()
        graphdef, state = nnx.flatten(nodes, ref_index=index, graph=True)
        paths, arrays = tuple(state.paths), [_raw(x) for x in state.leaves]
        for i, made in zip(places, _nested(len(nodes), paths, arrays), strict=True):
            leaves[i] = made
        static = _Static(tree, places, tuple(owners[i] for i in places), graphdef, paths)
        objects = _Objects(values, index, list(state.leaves), arrays)
        return SplitArguments(tree.unflatten(leaves), static, objects, frozenset(static.owners))

    def merge(self, static: _Static, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Arguments with new nodes of the traced arrays."""
        nnx = _nnx()
        leaves = static.tree.flatten_up_to(arrays)
        given = [_at(leaves[static.places[node]], path) for node, *path in static.paths]
        index = nnx.graphlib.IndexMap()
        nodes = nnx.unflatten(static.graphdef, list(given), index_ref=index)
        for i, node in zip(static.places, nodes, strict=True):
            leaves[i] = node
        return static.tree.unflatten(leaves), _Merged(nodes, index, given)

    def results(
        self, static: _Static, merged: _Merged, out: Any, donated: Sequence[bool]
    ) -> tuple[Any, Mapping[int, Any], Hashable]:
        """Arrays of the nodes in the result, and of arguments with changed or donated nodes."""
        nnx = _nnx()
        leaves, tree = self._flatten(out)
        places = tuple(i for i, x in enumerate(leaves) if self.claims(type(x)))
        first, made = len(merged.nodes), [leaves[i] for i in places]
        graphdef, state = nnx.flatten(
            [*merged.nodes, *made],
            ref_index=nnx.graphlib.RefMap(),
            ref_outer_index=nnx.graphlib.RefMap.from_indexmap(merged.index),
            graph=True,
        )
        paths, arrays = state.paths, [_raw(x) for x in state.leaves]
        given = dict(zip(static.paths, range(len(merged.arrays)), strict=True))
        changed = {
            static.owners[path[0]]
            for path, x in zip(paths, arrays, strict=True)
            if path[0] < first and not (path in given and x is merged.arrays[given[path]])
        }
        changed |= {static.owners[path[0]] for path in set(given) - set(paths)}
        changed |= {o for o in static.owners if donated[o]}
        sources: list[tuple[Any, ...]] = []
        for node, *path in paths:
            if node >= first:
                sources.append(("out", node - first, tuple(path)))
            elif static.owners[node] in changed:
                sources.append(("update", static.owners[node], node, tuple(path)))
            else:
                sources.append(("kept", given[node, *path]))
        nested = _nested(first + len(made), paths, arrays)
        for i, x in zip(places, nested[first:], strict=True):
            leaves[i] = x
        updates = {o: self._argument(static, nested, o) for o in sorted(changed)}
        return tree.unflatten(leaves), updates, _Out(tree, places, graphdef, tuple(sources))

    def settle(self, split: SplitArguments, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sets Variables to their moved arrays."""
        given, objects, variable = split.static, split.objects, _nnx().Variable
        assert isinstance(given, _Static)
        leaves = given.tree.flatten_up_to(arrays)
        for i, (node, *path) in enumerate(given.paths):
            x, leaf = _at(leaves[given.places[node]], path), objects.leaves[i]
            if isinstance(leaf, variable) and x is not objects.arrays[i]:
                leaf.set_raw_value(x)
                objects.arrays[i] = x
        values: tuple[Any, ...] = objects.values
        return values

    def update(
        self, split: SplitArguments, static: _Out, out: Any, updates: Mapping[int, Any], fresh: bool
    ) -> Any:
        """Result with nodes, after changes are applied to the nodes of the arguments."""
        nnx = _nnx()
        given, objects = split.static, split.objects
        assert isinstance(given, _Static)
        leaves = static.tree.flatten_up_to(out)
        found = {o: self._nodes(given, x, o) for o, x in updates.items()}
        arrays = []
        for kind, *where in static.sources:
            if kind == "kept":
                arrays.append(objects.arrays[where[0]])
            elif kind == "update":
                arrays.append(_at(found[where[0]][where[1]], where[2]))
            else:
                arrays.append(_at(leaves[static.places[where[0]]], where[1]))
        outer = None if fresh else nnx.graphlib.IndexMap.from_refmap(objects.index)
        nodes = nnx.unflatten(
            static.graphdef,
            arrays,
            index_ref=nnx.graphlib.IndexMap(),
            outer_index_outer_ref=outer,
        )
        for i, node in zip(static.places, nodes[len(given.places) :], strict=True):
            leaves[i] = node
        return static.tree.unflatten(leaves)

    def _flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves and structure of a pytree, with graph nodes and States as leaves."""
        return jax.tree.flatten(tree, is_leaf=lambda x: self.claims(type(x)) is not False)

    def _argument(self, static: _Static, nested: Sequence[Any], owner: int) -> Any:
        """Argument number `owner`, with nested dicts for nodes and None for further leaves."""
        at = {place: n for n, place in enumerate(static.places)}
        leaves = [nested[at[i]] if i in at else None for i in range(static.tree.num_leaves)]
        return static.tree.unflatten(leaves)[owner]

    def _nodes(self, static: _Static, argument: Any, owner: int) -> dict[int, Any]:
        """Nested dicts of the nodes of argument number `owner`, by number of the node; inverse of
        `_argument`.
        """
        children = static.tree.children()
        start = sum(t.num_leaves for t in children[:owner])
        leaves = children[owner].flatten_up_to(argument)
        mine = [n for n, o in enumerate(static.owners) if o == owner]
        return {n: leaves[static.places[n] - start] for n in mine}


def _nnx() -> Any:
    return sys.modules["flax.nnx"]


def _same(x: Any) -> Any:
    return x


def _raw(x: Any) -> Any:
    """Array of a Variable, or `x` for further leaves."""
    return x.get_raw_value() if isinstance(x, _nnx().Variable) else x


def _nested(count: int, paths: Iterable[tuple[Any, ...]], arrays: Iterable[Any]) -> list[Any]:
    """[nodes] arrays in nested dicts; the bare array if the node is a Variable."""
    found: list[Any] = [{} for _ in range(count)]
    for path, x in zip(paths, arrays, strict=True):
        at: Any = found
        for key in path[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        at[path[-1]] = x
    return [_sortable(x) for x in found]


def _sortable(tree: Any) -> Any:
    """Nested dicts with keys of one type, since jax sorts the keys of a dict."""
    if type(tree) is not dict:
        return tree
    mixed = len({type(k) for k in tree}) > 1
    return {str(k) if mixed else k: _sortable(x) for k, x in tree.items()}


def _at(tree: Any, path: Iterable[Any]) -> Any:
    """Entry of nested dicts at a path."""
    for key in path:
        tree = tree[key] if key in tree else tree[str(key)]
    return tree


def _donated_by(fun: Any) -> Any:
    """Function from a call to the positions and names donated by `nnx.jit`, read off a trace: nnx
    shows donation nowhere else.
    """

    def donated(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[set[int], set[str]]:
        traced = fun.trace(*args, **kwargs)
        args_info, kwargs_info = getattr(traced, "traced", traced).args_info
        positions = {i for i, x in enumerate(args_info) if _any(x)}
        return positions, {k for k, x in kwargs_info.items() if _any(x)}

    return donated


def _any(tree: Any) -> bool:
    return any(getattr(x, "donated", False) for x in jax.tree.leaves(tree))
