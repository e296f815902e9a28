"""Reader of jaxprs of every supported jax into a `Module`: the front of `ir/reading/`.

Nested `jit`, `custom_jvp_call` and `custom_vjp_call` are inlined; `scan`, `while`, `cond` and remat
become ops with regions; equations with unused results are dropped (about one in twenty in a train
step). jax 0.11 merged ClosedJaxpr into Jaxpr and gave `scan` flat trees for its counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.numbering import number
from partir_search.ir.origins import Origins
from partir_search.ir.reading.batched_loops import is_batched, write_out
from partir_search.ir.reading.counted_loops import Counted, counted_while
from partir_search.ir.reading.foreign_primitives import Bodies
from partir_search.ir.reading.manual import RegionAxes, read_manual, same_names
from partir_search.ir.reading.platforms import runs_of_branches
from partir_search.ir.reading.refs.discharge import READ
from partir_search.ir.reading.refs.regions import (
    carried,
    check_no_ref,
    has_effect,
    write_back,
    written,
)
from partir_search.ir.reading.sharding_constraints import laid
from partir_search.ir.reading.trip_counts import set_trips
from partir_search.ir.source_names import clean, is_backward, value_stem

INLINED = {
    "call_hi_primitive": "_prim",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "composite": "call_jaxpr",  # XLA's lowering of an unknown composite
    "custom_jvp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_partitioning": "call",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "custom_linear_solve": "jaxprs",
    "linear_call": "callee",
    "remat_opt": "fwd_jaxpr",
    "xla_metadata_call": "jaxpr",
}
TAKEN_APART = frozenset({"split"})  # into slices
OWN = frozenset({"device_put", "shard_map", *TAKEN_APART})  # read in this file
REGIONS: Mapping[str, tuple[str, ...]] = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
}


def read_module(
    jaxpr: Any,
    *,
    name: str,
    arg_paths: Sequence[str],
    result_paths: Sequence[str],
    ties: Sequence[tuple[int, int]] = (),
    donated: frozenset[int] = frozenset(),
    trip_counts: Mapping[str, int] = MappingProxyType({}),
    ruled: Iterable[str] | None = None,
    region_axes: RegionAxes | None = None,
    platform: str = "",
) -> Module:
    """Module of a traced function's jaxpr (`jax.jit(f).trace(...).jaxpr`).

    Args:
      jaxpr: closed jaxpr.
      arg_paths / result_paths: one path per argument and per result.
      ties: (argument, result) index pairs with one tiling.
      donated: indices of donated arguments.
      trip_counts: counts of data-dependent loops, by glob (see `ir/reading/trip_counts.py`).
      ruled: primitives kept as ops; all remaining ones are read through their definitions. None:
        every primitive is kept.
      region_axes: maps axes of the mesh of a `shard_map` region to axes of the program's mesh; None
        if the names are equal.
      platform: jax's name of the target platform, of branches by platform; "" if unknown.
    """
    reader = _Reader()
    reader.platform = platform
    reader.region_axes = region_axes or same_names
    if ruled is not None:
        reader.bodies = Bodies({*ruled, *INLINED, *REGIONS, *OWN, *READ})
    body, constants = reader.region_of(jaxpr, names=[_identifier(p) for p in arg_paths])
    module = Module(
        name=name,
        body=body,
        values=[],
        ops=[],
        constants=constants,
        arg_paths=tuple(arg_paths),
        result_paths=tuple(result_paths),
        ties=tuple(ties),
        donated=donated,
    )
    number(module, reader.constant_values)
    set_trips(module, reader.counted, trip_counts)
    return module


class FunctionReader:
    """Reads functions of arrays into ops, for passes written in jax.

    Attributes:
      constants: (value, array) of the arrays in the functions, by `id` of the array.
    """

    def __init__(self, ruled: Iterable[str]) -> None:
        """A reader to keep primitives named in `ruled` as ops."""
        self._reader = _Reader()
        self._reader.bodies = Bodies({*ruled, *INLINED, *REGIONS, *OWN, *READ})
        self.constants: dict[int, tuple[Value, Any]] = self._reader.constant_values

    def read(
        self, fun: Callable[..., Sequence[Any]], operands: Sequence[Operand]
    ) -> tuple[list[Op], list[Operand]]:
        """Ops of `fun(*arrays)`, and the operands in place of the results."""
        ops: list[Op] = []
        types = (jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in operands)
        inner, env = self._reader.run(jax.make_jaxpr(fun)(*types), operands, ops, prefix="")
        return ops, [self._reader.read(env, v) for v in inner.outvars]


def tensor_type(aval: Any) -> TensorType:
    """Type of a jaxpr variable; tokens and other non-arrays become scalars of no bytes."""
    dtype = getattr(aval, "dtype", np.dtype(np.bool_))
    return TensorType(tuple(getattr(aval, "shape", ())), dtype, int(dtype.itemsize))


def _identifier(path: str) -> str:
    return path.replace("/", ".")


def is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")


class _Reader:
    """State of one reading: names given, constants, and caches of shared objects."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.bodies: Bodies | None = None  # of primitives without a rule
        self.backward = False  # inside a region of the backward pass
        self.platform = ""
        self.region_axes: RegionAxes = same_names
        self.manual_mesh: Any = None  # of the outermost `shard_map` around
        self.constant_values: dict[int, tuple[Value, Any]] = {}
        self.types: dict[tuple[Any, Any], TensorType] = {}  # one object per type
        self.literals: dict[tuple[type, bytes, TensorType], Literal] = {}
        self.scopes: dict[tuple[str, Any], str] = {}
        self.counted: dict[int, Counted | None] = {}  # by id of a `while`
        self.origins = Origins()

    def type(self, aval: Any) -> TensorType:
        key = getattr(aval, "shape", None), getattr(aval, "dtype", None)
        found = self.types.get(key)
        if found is None:
            found = self.types[key] = tensor_type(aval)
        return found

    def scope(self, prefix: str, eqn: Any) -> str:
        """Name stack of an equation, cached: slow to build, and shared by many equations."""
        key = prefix, eqn.source_info.name_stack
        found = self.scopes.get(key)
        if found is None:
            found = self.scopes[key] = _join(prefix, str(key[1]))
        return found

    def value(self, aval: Any, name: str) -> Value:
        seen = self.taken.get(name, 0)
        self.taken[name] = seen + 1
        return Value(-1, self.type(aval), f"{name}_{seen}" if seen else name)

    def constant(self, array: Any, aval: Any) -> Value:
        if id(array) not in self.constant_values:
            check_no_ref(array)
            self.constant_values[id(array)] = (self.value(aval, "constant"), array)
        return self.constant_values[id(array)][0]

    def region_of(
        self, jaxpr: Any, names: Sequence[str] | None = None, scope: str = ""
    ) -> tuple[Region, dict[int, Any]]:
        invars = getattr(jaxpr, "jaxpr", jaxpr).invars
        names = names or [f"{scope}arg{i}" for i in range(len(invars))]
        args = tuple(self.value(v.aval, n) for v, n in zip(invars, names, strict=True))
        ops: list[Op] = []
        inner, env = self.run(jaxpr, args, ops, prefix="")
        results = tuple(self.read(env, v) for v in inner.outvars)
        return Region(args, tuple(ops), results), {}

    def run(
        self, jaxpr: Any, args: Sequence[Operand], ops: list[Op], prefix: str
    ) -> tuple[Any, dict[Any, Operand]]:
        """Appends the ops of a jaxpr to `ops`; returns the open jaxpr and its variables' values."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        env: dict[Any, Operand] = {}
        for var, array in zip(inner.constvars, getattr(jaxpr, "consts", None) or (), strict=True):
            env[var] = self.constant(array, var.aval)
        env.update(zip(inner.invars, args, strict=True))
        self.equations(inner.eqns, env, ops, prefix)
        return inner, env

    def read(self, env: dict[Any, Operand], atom: Any) -> Operand:
        if is_literal(atom):
            kind = self.type(atom.aval)
            key = type(atom.val), np.asarray(atom.val).tobytes(), kind
            return self.literals.setdefault(key, Literal(atom.val, kind))
        return env[atom]

    def equations(
        self, eqns: Sequence[Any], env: dict[Any, Operand], ops: list[Op], prefix: str
    ) -> None:
        for eqn in eqns:
            name = eqn.primitive.name
            if name in INLINED:
                self.inline(eqn, env, ops, prefix)
            elif _keeps_type(eqn):
                env[eqn.outvars[0]] = self.read(env, eqn.invars[0])
            elif name == "device_put":
                self.puts(eqn, env, ops, prefix)
            elif name == "split":
                self.pieces(eqn, env, ops, prefix)
            elif name == "shard_map":
                read_manual(self, eqn, env, ops, prefix)
            elif name in READ:
                READ[name](self, eqn, env, ops, prefix)
            elif name == "while":
                self.loop(self.op(eqn, env, prefix), ops)
            elif not (self.bodies and self.bodies.read(self, eqn, env, ops, prefix)):
                ops.append(self.op(eqn, env, prefix))

    def loop(self, op: Op, ops: list[Op]) -> None:
        """Appends a `while` and records its trip-count bound."""
        found = write_out(self, op, ops) if is_batched(op) else (op, counted_while(op, ops))
        self.counted[id(found[0])] = found[1]
        ops.append(found[0])

    def inline(self, eqn: Any, env: dict[Any, Operand], ops: list[Op], prefix: str) -> None:
        jaxpr, atoms = _callee(eqn)
        args = [self.read(env, atom) for atom in atoms]
        args = laid(self, eqn, ops, args, "in_shardings", prefix)
        with self.origins.within(eqn):
            inner, local = self.run(jaxpr, args, ops, self.scope(prefix, eqn))
        made = [self.read(local, atom) for atom in inner.outvars]
        made = laid(self, eqn, ops, made, "out_shardings", prefix)
        env.update(zip(eqn.outvars, made, strict=True))
        if eqn.effects:
            write_back(atoms, env, inner, local)

    def puts(self, eqn: Any, env: dict[Any, Operand], ops: list[Op], prefix: str) -> None:
        """Appends one op per array of a device_put, for independent tilings."""
        op = self.op(eqn, env, prefix)
        for i, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
            params = {k: (v[i],) for k, v in op.params.items()}
            ops.append(
                dataclasses.replace(op, operands=(operand,), results=(result,), params=params)
            )

    def pieces(self, eqn: Any, env: dict[Any, Operand], ops: list[Op], prefix: str) -> None:
        """Appends a `split` as slices: each piece may be tiled along the split dim."""
        op = self.op(eqn, env, prefix)
        shape, axis = op.operands[0].type.shape, op.params["axis"]
        end = 0
        for result in op.results:
            start, end = end, end + result.type.shape[axis]
            params = {
                "start_indices": tuple(start if d == axis else 0 for d in range(len(shape))),
                "limit_indices": tuple(end if d == axis else n for d, n in enumerate(shape)),
                "strides": None,
            }
            ops.append(
                dataclasses.replace(
                    op, prim="slice", results=(result,), params=params, handle=lax.slice_p
                )
            )

    def op(self, eqn: Any, env: dict[Any, Operand], prefix: str) -> Op:
        name = eqn.primitive.name
        scope = self.scope(prefix, eqn)
        stem = value_stem(scope, name)
        backward = self.backward or is_backward(scope)
        regions: tuple[Region, ...] = ()
        params, invars, outvars = _params(eqn), eqn.invars, eqn.outvars
        if platforms := params.get("branches_platforms"):
            params = {**params, "runs": runs_of_branches(platforms, self.platform)}
        outer, self.backward = self.backward, backward
        if eqn.effects and written(eqn):
            new = carried(self, eqn, params, stem)
            regions, params, invars, outvars = new.regions, new.params, new.invars, new.outvars
        elif name in REGIONS:
            inner = [eqn.params[key] for key in REGIONS[name]]
            bodies = [j for p in inner for j in (p if isinstance(p, tuple) else (p,))]
            with self.origins.within(eqn):
                regions = tuple(self.region_of(j, scope=f"{stem}.")[0] for j in bodies)
        self.backward = outer
        if name == "optimization_barrier":  # each operand passes through in its own tiling
            args = tuple(self.value(v.aval, f"{stem}.arg{i}") for i, v in enumerate(eqn.invars))
            regions = (Region(args, (), args),)
        operands = tuple([self.read(env, v) for v in invars])
        results = tuple([self.value(v.aval, stem) for v in outvars])
        env.update(zip(outvars, results, strict=True))
        return Op(
            id=-1,
            prim=name,
            operands=operands,
            results=results,
            params=params,
            regions=regions,
            origin=self.origins(eqn),
            scope=clean(scope),
            backward=backward,
            handle=eqn.primitive,
            effect=bool(eqn.effects) and has_effect(eqn),
        )


def _keeps_type(eqn: Any) -> bool:
    """True for a conversion between weak and strong type only; values of the IR have no weakness.

    A step is then one program whether its state was made by `jnp.full` or restored as numpy.
    """
    if eqn.primitive.name != "convert_element_type":
        return False
    return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)


def _callee(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """Jaxpr called by an inlined equation, and the atoms passed to it.

    Of a linear solve, already differentiated, only the solver is called.
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "custom_linear_solve":
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        sides = first + lengths.solve + lengths.transpose_solve
        return params["jaxprs"].solve, eqn.invars[first : first + lengths.solve] + (
            eqn.invars[sides:]
        )
    if name == "call_hi_primitive":  # written in other primitives (searchsorted in jax 0.12)
        prim = params["_prim"]

        def expand(*flat: Any) -> Any:
            return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, flat)))

        return jax.make_jaxpr(expand)(*(_abstract(v.aval) for v in eqn.invars)), eqn.invars
    if name == "composite" and "jaxpr" in params:  # before jax 0.12
        return params["jaxpr"], eqn.invars
    return params[INLINED[name]], eqn.invars


def _abstract(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _params(eqn: Any) -> Mapping[str, Any]:
    """Parameters without those read as regions; `scan` and `while` keep plain counts."""
    name = eqn.primitive.name
    if name not in REGIONS and name != "random_bits":
        return eqn.params  # type: ignore[no-any-return]
    params = dict(eqn.params)
    for key in REGIONS.get(name, ()):
        params.pop(key, None)
    if name == "scan" and "ft_in" in params:
        consts, carry, _ = (len(group) for group in params.pop("ft_in").unpack())
        params.pop("ft_out", None)
        params |= {"num_consts": consts, "num_carry": carry}
    if name == "random_bits":
        params["threefry_partitionable"] = bool(eqn.ctx.threefry_partitionable)
    return params


def _join(prefix: str, scope: str) -> str:
    return f"{prefix}/{scope}" if prefix and scope else prefix or scope
