"""Tracing of a call to a module: argument paths, static arguments, donation, and train state."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from partir_search.arguments.abstract_values import SCALARS, abstract, leaf_key
from partir_search.arguments.checks import NotAnArray, check_statics
from partir_search.frontends.protocol import Returned
from partir_search.frontends.refs import in_place
from partir_search.ir.argument_paths import leaf_path, parameter_names
from partir_search.ir.core import Module
from partir_search.ir.from_jaxpr import read_module
from partir_search.ir.reading.manual import RegionAxes
from partir_search.passes.early_lookups import with_early_lookups
from partir_search.passes.first import first_passes
from partir_search.passes.row_lookups import with_row_lookups
from partir_search.passes.unread import without_unread
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.stage import print_module, recorded
from partir_search.rules import RULES
from partir_search.rules.registry import RuleTable
from partir_search.rules.unruled import UNRULED


@dataclasses.dataclass(frozen=True)
class Call:
    """Dynamic arguments of one call, and the values of static ones.

    Attributes:
      args: dynamic positional arguments.
      kwargs: dynamic keyword arguments.
      names: parameter name of each dynamic positional argument.
      statics: (name, value) of static arguments, for the cache key.
      places: position of each dynamic positional argument among all positional arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    statics: tuple[tuple[str, Any], ...]
    places: tuple[int, ...]

    @functools.cached_property
    def flat(self) -> tuple[list[Any], Any]:
        """Leaves and structure of (args, kwargs)."""
        return jax.tree.flatten((self.args, self.kwargs))

    def leaves(self) -> list[Any]:
        return self.flat[0]

    def key(self) -> Hashable:
        leaves, tree = self.flat
        if self.statics:
            check_statics(self.statics)
        try:
            return tree, tuple(map(leaf_key, leaves)), self.statics
        except NotAnArray as error:
            raise error.at(self.paths(), leaves) from None

    def program_key(self) -> Hashable:
        """Argument paths and static values: alike for all shapes of one step.

        Unlike the tree structure, paths are equal after an optimizer was created again.
        """
        return self._paths, self.statics

    def plan_key(self) -> Hashable:
        """`program_key` and types without weak types, as plans do not depend on weak types."""
        return self._plan_key

    @functools.cached_property
    def _plan_key(self) -> Hashable:
        return self.program_key(), tuple([leaf_key(x)[:2] for x in self.leaves()])

    def filled(
        self, args: Sequence[Any], kwargs: dict[str, Any], dynamic: Sequence[Any], named: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """All arguments (args, kwargs) of the call, with new dynamic ones."""
        positional = list(args)
        for at, x in zip(self.places, dynamic, strict=True):
            positional[at] = x
        return positional, {**kwargs, **named}

    def paths(self) -> tuple[str, ...]:
        """Paths of the leaves, ``state/params/w``."""
        return self._paths

    @functools.cached_property
    def _paths(self) -> tuple[str, ...]:
        out = []
        for keys, _ in jax.tree_util.tree_leaves_with_path((self.args, self.kwargs)):
            if keys[0].idx == 0:
                out.append(leaf_path(self.names[keys[1].idx], keys[2:]))
            else:
                out.append(leaf_path(str(keys[1].key), keys[2:]))
        return tuple(out)


def split_call(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static_argnums: Sequence[int],
    static_argnames: Sequence[str],
    names: Sequence[str] | None = None,
) -> Call:
    """Separates static from dynamic arguments, as `jax.jit` does.

    Args:
      fun: the function.
      args, kwargs: all arguments.
      static_argnums, static_argnames: positions and names of static arguments.
      names: names of the positional arguments; None to read the signature of `fun`.
    """
    names = parameter_names(fun, len(args)) if names is None else names
    static = {i % len(args) for i in static_argnums if -len(args) <= i < len(args)}
    static |= {i for i, n in enumerate(names) if n in static_argnames}
    static_kw = set(static_argnames)
    statics = [(names[i], args[i]) for i in sorted(static)]
    statics += [(k, v) for k, v in sorted(kwargs.items()) if k in static_kw]
    return Call(
        tuple(a for i, a in enumerate(args) if i not in static),
        {k: v for k, v in kwargs.items() if k not in static_kw},
        tuple(n for i, n in enumerate(names) if i not in static),
        tuple(statics),
        tuple(i for i in range(len(args)) if i not in static),
    )


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced call.

    Attributes:
      module: the traced program.
      in_tree, out_tree: tree structures of (args, kwargs) and of the results.
      donated: per flat argument, True if its buffer may be reused.
      weak: per flat result, True for a weak type (`shard_map` makes all types strong).
      passes: records of the trace and of the passes on the traced program.
      rewrites: rewrites of the traced program so far, among those of a plan.
      twice: function that traces the call with twice the batch; None without a batch.
    """

    module: Module
    in_tree: Any
    out_tree: Any
    donated: tuple[bool, ...]
    weak: tuple[bool, ...]
    passes: tuple[PassRecord, ...]
    rewrites: Rewrites = dataclasses.field(default_factory=Rewrites)
    twice: Callable[[], Traced] | None = None

    def run(
        self,
        name: str,
        rewrite: Callable[[Module], Module],
        text: Callable[[], str] | None = None,
    ) -> Traced:
        """Runs a pass on the traced program.

        Args:
          name: a key of PIPELINE.
          rewrite: the pass.
          text: function that prints the result; default: the new program without loops.
        """
        module, record = recorded(name, rewrite, self.module)
        if text is not None:
            record = dataclasses.replace(record, text=text)
        return dataclasses.replace(self, module=module, passes=(*self.passes, record))


class ClosesOverTraced(ValueError):
    """The function closes over a value traced by an enclosing transformation."""


def trace_call(
    jitted: Any,
    call: Call,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str,
    donated: tuple[bool, ...] | None = None,
    trip_counts: Mapping[str, int] = MappingProxyType({}),
    region_axes: RegionAxes | None = None,
) -> Traced:
    """Traces a call with `read_call`, and runs the first passes."""
    found = read_call(jitted, call, args, kwargs, name, donated, trip_counts, region_axes)
    return functools.reduce(lambda traced, each: traced.run(*each), first_passes(1).items(), found)


def read_call(
    jitted: Any,
    call: Call,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str,
    donated: tuple[bool, ...] | None = None,
    trip_counts: Mapping[str, int] = MappingProxyType({}),
    region_axes: RegionAxes | None = None,
    platform: str = "",
) -> Traced:
    """Traces `jitted(*args, **kwargs)` with abstract arguments.

    Args:
      jitted: a jitted function.
      call, args, kwargs: the dynamic arguments, and all arguments.
      name: name of the function, for messages.
      donated: per flat argument, True if donated; None to ask `jitted`.
      trip_counts: iterations of data-dependent loops, by glob.
      region_axes, platform: as in `read_module`.

    Raises:
      ClosesOverTraced: the function closes over a traced value.
    """
    begin = time.perf_counter()
    traced = _trace(jitted, call, args, kwargs)
    if len(traced.jaxpr.jaxpr.invars) > traced.in_tree.num_leaves:
        why = "closes over a traced value, which cannot be planned; pass it as an argument"
        raise ClosesOverTraced(f"{name} {why}")
    in_tree, out_info = traced.in_tree, traced.out_info  # made anew at each access
    if donated is None:
        donated = _donated(traced)
    out_leaves = jax.tree_util.tree_leaves_with_path(out_info)
    ties = find_ties(call, out_info, donated)
    in_refs = _in_refs(call, out_info)  # refs reuse their buffers without donation
    donated = tuple(d and i not in in_refs for i, d in enumerate(donated))
    reused = in_refs & {i for i, _ in ties}
    module = read_module(
        traced.jaxpr,
        name=name,
        arg_paths=call.paths(),
        result_paths=[leaf_path("", keys) for keys, _ in out_leaves],
        ties=ties,
        donated=frozenset(reused | {i for i, d in enumerate(donated) if d}),
        trip_counts=trip_counts,
        ruled=(*RULES, *UNRULED),
        region_axes=region_axes,
        platform=platform,
    )
    record = PassRecord(
        "trace",
        time.perf_counter() - begin,
        len(traced.jaxpr.jaxpr.eqns),
        len(module.ops),
        lambda: print_module(module),
    )
    weak = tuple(bool(getattr(x, "weak_type", False)) for _, x in out_leaves)
    _forget(jitted)
    found = Traced(module, in_tree, jax.tree.structure(out_info), donated, weak, (record,))
    found = found.run("unread", lambda module: without_unread(module, RuleTable()))
    return found.run("row_lookups", with_row_lookups).run("early_lookups", with_early_lookups)


def _forget(jitted: Any) -> None:
    """Clears jax's trace cache of `jitted`, to free a jaxpr as large as the module.

    The cache is kept if `jitted` has been called, as clearing would force another compilation.
    """
    calls = getattr(jitted, "_cache_size", None)
    if calls is not None and not calls():
        jitted.clear_cache()


def _donated(traced: Any) -> tuple[bool, ...]:
    return tuple(bool(i.donated) for i in jax.tree.leaves(traced.args_info))


def _trace(jitted: Any, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`jax.stages.Traced` of a call, from shapes."""
    leaves, in_tree = jax.tree.flatten((call.args, call.kwargs))
    try:
        shapes = {id(x): x if isinstance(x, SCALARS) else abstract(x) for x in leaves}
    except NotAnArray as error:
        raise error.at(call.paths(), leaves) from None
    lifted = jax.tree.map(lambda leaf: shapes[id(leaf)], (call.args, call.kwargs))
    given, named = call.filled(args, kwargs, *lifted)
    traced = jitted.trace(*given, **named)
    if traced.in_tree != in_tree:
        raise ValueError(
            "the jitted function has static arguments that auto_partition was not told of;"
            " pass the same static_argnums or static_argnames to auto_partition"
        )
    return traced


def own_shardings(
    jitted: Any, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Shardings of flat arguments and results in the `jax.jit` options of `jitted`.

    An entry is a NamedSharding or jax's marker for an unspecified sharding; () if none is
    specified. An existing trace for the same shapes is reused.
    """
    leaves = jax.tree.leaves((call.args, call.kwargs))
    arrays = [x for x in leaves if not isinstance(x, SCALARS)]

    def run(*inner: Any) -> Any:
        known = {id(x): x for x in leaves} | dict(zip(map(id, arrays), inner, strict=True))
        lifted = jax.tree.map(lambda leaf: known[id(leaf)], (call.args, call.kwargs))
        given, named = call.filled(args, kwargs, *lifted)
        return jitted(*given, **named)

    try:
        types = [abstract(x) for x in arrays]
    except NotAnArray:  # `trace_call` raises with the path
        return (), ()
    eqns = jax.make_jaxpr(run)(*types).eqns
    while eqns:
        for eqn in eqns:
            given, made = (eqn.params.get(f"{end}_shardings", ()) for end in ("in", "out"))
            fixed = any(isinstance(s, jax.sharding.NamedSharding) for s in (*given, *made))
            if fixed and len(given) == len(leaves):
                return given, made
        # A function jitted again, to donate more arguments, is the only equation of the outer one.
        alone = len(eqns) == 1 and len(given) == len(leaves)
        eqns = eqns[0].params["jaxpr"].jaxpr.eqns if alone else []
    return (), ()


def find_ties(call: Call, out_info: Any, donated: Sequence[bool]) -> list[tuple[int, int]]:
    """Finds the train state: arguments returned as a whole pytree with equal types.

    A single array is tied only if donated. Each result is tied at most once. Arguments changed in
    place are tied leaf by leaf.

    Returns:
      (argument, result) pairs of flat positions.
    """
    ties: list[tuple[int, int]] = []
    if isinstance(out_info, Returned):
        ties, out_info = _changed(call, out_info), out_info.out
    changed = {i for i, _ in ties}
    all_leaves, tree = jax.tree.flatten(out_info)
    outputs: list[tuple[Any, list[Any], int]] = [(tree, all_leaves, 0)]
    entries: Sequence[Any] = ()
    if isinstance(out_info, tuple | list):
        entries = out_info
    elif isinstance(out_info, dict):
        entries = [out_info[key] for key in sorted(out_info)]
    at = 0
    for entry in entries:
        leaves, tree = jax.tree.flatten(entry)
        outputs.append((tree, leaves, at))
        at += len(leaves)
    used: set[int] = set()
    first = 0
    for entry in (*call.args, *(call.kwargs[k] for k in sorted(call.kwargs))):
        leaves, tree = jax.tree.flatten(entry)
        types = [_type(x) for x in leaves]
        single = jax.tree_util.treedef_is_leaf(tree)
        own = set(range(first, first + len(leaves)))
        if leaves and (not single or donated[first]) and not own & changed:
            for out_tree, out_leaves, start in outputs:
                span = set(range(start, start + len(out_leaves)))
                if out_tree == tree and not span & used and types == [_type(x) for x in out_leaves]:
                    ties += [(first + i, start + i) for i in range(len(leaves))]
                    used |= span
                    break
        first += len(leaves)
    return ties


def _in_refs(call: Call, out_info: Any) -> set[int]:
    """Flat positions of the leaves in arguments with refs."""
    if not isinstance(out_info, Returned):
        return set()
    owners = in_place(out_info)
    values = (*call.args, *call.kwargs.values())
    marks = [jax.tree.map(lambda _, i=i: i in owners, v) for i, v in enumerate(values)]
    named = dict(zip(call.kwargs, marks[len(call.args) :], strict=True))
    flat = jax.tree.leaves((tuple(marks[: len(call.args)]), named))
    return {i for i, mark in enumerate(flat) if mark}


def _changed(call: Call, returned: Returned) -> list[tuple[int, int]]:
    """Ties between arguments and their updates, matched by path and type."""
    leaves = zip(call.paths(), call.leaves(), strict=True)
    given = {(path, _type(x)): i for i, (path, x) in enumerate(leaves)}
    at, ties = len(jax.tree.leaves(returned.out)), []
    for name, argument in returned.updates.items():
        for keys, x in jax.tree_util.tree_leaves_with_path(argument):
            found = given.get((leaf_path(name, keys), _type(x)))
            if found is not None:
                ties.append((found, at))
            at += 1
    return ties


def _type(x: Any) -> Any:
    return leaf_key(x)[:2]
