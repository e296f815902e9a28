"""Executables whose calls jax checks itself: nothing is donated, and no leaf is read in Python.

jax compares tree structure, types and placement of all leaves with those of the last call in C++.
Where they differ, it traces the function again, or refuses the placement; both end in a checked
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from partir_search.arguments.axes import AnyMesh
from partir_search.ir.core import Module
from partir_search.lowering.shard_map import without_context
from partir_search.planning.trace import Traced

UNLIKE: Any = object()  # result of a call that differs from the executable's


class Unlike(TypeError):
    """Arguments of another structure, of other types, or in other places than the traced call's."""


def direct_jit(
    run: Callable[..., Any],
    traced: Traced,
    given: Sequence[NamedSharding],
    results: Any,
    mesh: AnyMesh,
) -> Any:
    """`run` under `jax.jit` with the shardings of arguments and results; None if a call has duties.

    Duties are donation, arguments changed in place, effects (a refused call would repeat them),
    keyword arguments (for which `jax.jit` takes no shardings), and meshes of several processes.

    Args:
      run: the partitioned function, on the trees of the traced call.
      traced: the traced call.
      given: sharding of each flat argument.
      results: pytree of the shardings of the results.
      mesh: mesh of the call.
    """
    args, kwargs = jax.tree.unflatten(traced.in_tree, given)
    alone = isinstance(mesh, Mesh) and not mesh.is_multi_process
    if not alone or kwargs or any(traced.donated) or any(s.mesh != mesh for s in given):
        return None
    if traced.module.ties or _has_effects(traced.module):
        return None
    seen: list[Any] = []

    def guarded(*args: Any) -> Any:
        types = jax.tree.structure(args), [jax.typeof(x) for x in jax.tree.leaves(args)]
        if seen and seen[0] != types:
            raise Unlike  # jax would compile once more, for arrays in other places too
        seen[:] = [types]
        return run(*args)

    guarded.__name__, guarded.__qualname__ = run.__name__, run.__qualname__
    guarded.__signature__ = getattr(run, "__signature__", None)  # type: ignore[attr-defined]
    return jax.jit(without_context(guarded), in_shardings=args, out_shardings=results)


def direct_result(direct: Any, args: Sequence[Any]) -> Any:
    """Result of a call; UNLIKE if a checked call must decide, or report an error."""
    try:
        out = direct(*args)
    except (TypeError, ValueError, RuntimeError):
        return UNLIKE
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(out))
    return UNLIKE if traced else out


def _has_effects(module: Module) -> bool:
    return any(op.effect for op in module.ops)
