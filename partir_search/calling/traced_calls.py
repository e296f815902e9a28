"""Calls of a partitioned function under a jax transformation.

Under `jax.jit` and in the control flow of `jax.lax`, the partitioned program runs. Under
differentiation or batching, of the call itself or of a jaxpr around the call, the plain function
runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from partir_search.arguments.axes import auto_axes
from partir_search.calling.executables import Entry
from partir_search.calling.forms import Form
from partir_search.ir.core import Op
from partir_search.planning.trace import ClosesOverTraced


class TracedCalls:
    """Calls of one partitioned function with traced arguments."""

    def __init__(self, name: str) -> None:
        """Calls of the function `name`, with at most one warning."""
        self._name, self._warned = name, False

    def plain(self, leaves: Sequence[Any]) -> bool:
        """True if a call with traced leaves must run the plain function; warns once."""
        reason = _why_plain(leaves)
        if reason:
            self._warn(reason)
        return bool(reason)

    def call(self, form: Form, leaves: Sequence[Any], mesh: Mesh) -> Any:
        """Result of a call with traced leaves, by the partitioned program."""
        try:
            entry = form.executables.entry(form.call, form.args, form.kwargs)
        except ClosesOverTraced:
            return self.closing(form)
        typed, run, plain = _typed(leaves, entry, mesh), _program(entry, mesh), _plain_of(form)

        def program(*leaves: Any) -> list[Any]:
            return typed(run(*leaves))

        if not _effects(entry.traced.module.ops):  # jax differentiates and batches none
            program = self._differentiable(program, plain, typed)
        return form.finish(jax.tree.unflatten(entry.traced.out_tree, program(*leaves)))

    def closing(self, form: Form) -> Any:
        """Plain result of a call of a function with a closed-over traced value."""
        self._warn("a transformation and closes over a traced value (pass it as an argument)")
        return form.direct()

    def _differentiable(
        self,
        program: Callable[..., list[Any]],
        plain: Callable[..., list[Any]],
        typed: Callable[[Sequence[Any]], list[Any]],
    ) -> Callable[..., list[Any]]:
        """The program, with derivatives and batching rules of the plain function."""

        @jax.custom_batching.custom_vmap  # type: ignore[untyped-decorator]
        def batched(*leaves: Any) -> list[Any]:
            return program(*leaves)

        @batched.def_vmap  # type: ignore[untyped-decorator]
        def _(size: int, axes: Sequence[bool], *leaves: Any) -> tuple[list[Any], list[bool]]:
            self._warn("jax.vmap")
            return _vmapped(plain, size, axes, leaves)

        @jax.custom_jvp
        def run(*leaves: Any) -> list[Any]:
            out: list[Any] = batched(*leaves)
            return out

        @run.defjvp
        def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
            self._warn("jax.grad, jvp or vjp")
            return jax.jvp(lambda *leaves: typed(plain(*leaves)), primals, tangents)

        return run

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"{self._name} is not partitioned where it is called under {reason}: the plain function"
            " runs there. Partition the function around it instead:"
            f" auto_partition(mesh)(the function that calls {self._name} so)",
            stacklevel=4,
        )


def _why_plain(leaves: Sequence[Any]) -> str:
    """Name of the transformation that requires the plain function; "" if none does."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and AxisType.Manual in mesh.axis_types:
        return "jax.shard_map"
    kinds = {type(x).__name__ for x in leaves if isinstance(x, jax.core.Tracer)}
    for kind, name in _TRANSFORMATIONS.items():
        if kind in kinds:
            return name
    other = kinds - {"DynamicJaxprTracer"}
    return f"a transformation ({', '.join(sorted(other))})" if other else ""


_TRANSFORMATIONS = {
    "JVPTracer": "jax.grad, jvp or vjp",
    "LinearizeTracer": "jax.grad, linearize or vjp",
    "BatchTracer": "jax.vmap",
    "ShardMapTracer": "jax.shard_map",
}


def _program(entry: Entry, mesh: Mesh) -> Callable[..., list[Any]]:
    """The partitioned program as a function of flat leaves with any placement."""
    # Of Auto axes: a trace's types may name another mesh, or none.
    auto = auto_axes(mesh)
    assert isinstance(auto, Mesh)
    mapped, enter = entry.on(auto)

    def program(*leaves: Any) -> list[Any]:
        with jax.sharding.use_abstract_mesh(auto.abstract_mesh):
            lifted = jax.tree.leaves(entry.lifted)
            return entry.weakened(mapped(*jax.device_put([*leaves, *lifted], enter)))

    return program


def _plain_of(form: Form) -> Callable[..., list[Any]]:
    """The plain function as a function of flat leaves."""
    call, plain, kwargs = form.call, form.plain, dict(form.kwargs)
    tree = jax.tree.structure((call.args, call.kwargs))
    places = call.places
    bound = [None if i in places else x for i, x in enumerate(form.args)]
    kwargs = {k: v for k, v in kwargs.items() if k not in call.kwargs}

    def flat(*leaves: Any) -> list[Any]:
        args, named = jax.tree.unflatten(tree, leaves)
        arguments = list(bound)
        for i, x in zip(places, args, strict=True):
            arguments[i] = x
        out: list[Any] = jax.tree.leaves(plain(*arguments, **kwargs, **named))
        return out

    return flat


def _vmapped(
    plain: Callable[..., list[Any]], size: int, axes: Sequence[bool], leaves: Sequence[Any]
) -> tuple[list[Any], list[bool]]:
    """Results of the plain function over a batch; and per result, True if batched."""
    in_axes = [0 if a else None for a in axes]
    found: list[bool] = []

    def probe(*leaves: Any) -> list[Any]:
        out = plain(*leaves)
        found[:] = [type(x).__name__ == "BatchTracer" for x in out]
        return out

    jax.eval_shape(jax.vmap(probe, in_axes=in_axes, axis_size=size), *leaves)
    out_axes = [0 if f else None for f in found]
    out = jax.vmap(plain, in_axes=in_axes, out_axes=out_axes, axis_size=size)(*leaves)
    return out, found


def _typed(leaves: Sequence[Any], entry: Entry, mesh: Mesh) -> Callable[[Sequence[Any]], list[Any]]:
    """Function that gives results the shardings expected by the calling code.

    With Explicit axes a type contains a sharding. A state result has the sharding of its argument
    (as `lax.scan` requires); any further result has the plan's sharding.
    """
    types = [jax.typeof(x).sharding for x in leaves]
    context = jax.sharding.get_abstract_mesh()
    meshes = [m for m in (context, *(t.mesh for t in types)) if _explicit(m)]
    if not meshes:
        return list
    around = mesh if meshes[0] == mesh.abstract_mesh else meshes[0]
    planned = [s.spec for s in entry.plan.flat_out_shardings()]
    known = set(around.axis_names)
    specs = [s if set(_names(s)) <= known else PartitionSpec() for s in planned]
    kept = set[int]()
    for i, o in entry.traced.module.ties:
        if _explicit(types[i].mesh):
            specs[o] = types[i].spec
        elif not types[i].mesh.empty:
            kept.add(o)
    shardings = [NamedSharding(around, s) for s in specs]
    move: Any = jax.device_put if isinstance(around, Mesh) else jax.sharding.reshard

    def typed(out: Sequence[Any]) -> list[Any]:
        moves = enumerate(zip(out, shardings, strict=True))
        return [x if o in kept else move(x, s) for o, (x, s) in moves]

    return typed


def _effects(ops: Sequence[Op]) -> bool:
    return any(op.effect or any(_effects(r.ops) for r in op.regions) for op in ops)


def _explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


def _names(spec: PartitionSpec) -> list[str]:
    groups = (entry if isinstance(entry, tuple) else (entry,) for entry in spec)
    return [name for group in groups for name in group if name]
