"""Shardings of a function's arguments that are taken from the plan of another function."""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.constraints.fixed_layouts import Wish
from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Layout
from partir_search.plan.plan import Plan


def following_wishes(module: Module, plan: Plan) -> list[Wish]:
    """Wishes that give the arguments of `module` the layouts that `plan` has at their paths.

    The name of the parameter may differ, and a path may be the end of the other one: `params/w`
    follows `state/params/w`. Types must be equal; of an argument whose whole path is the same
    (a batch), the number of dims, if the tiled dims divide.

    Raises:
      ValueError: no argument goes by a path of the plan's.
    """
    enters = dict(plan.partition.modes.enters)
    theirs = [
        (p, v, enters.get(i, plan.partition.layout(v)))
        for i, (p, v, _) in enumerate(plan.arguments())
    ]
    found: dict[str, Layout] = {}
    for path, value in zip(module.arg_paths, module.body.args, strict=True):
        layouts = set(_alike(path, value, theirs, plan))
        if len(layouts) == 1:
            found[value.name] = layouts.pop()
    if not found:
        raise ValueError(
            f"{module.name!r} is to follow the plan of {plan.module.name!r}, but no argument of it"
            f" has a path and type of that one's: {', '.join(module.arg_paths[:5])} ... against"
            f" {', '.join(plan.module.arg_paths[:5])} ..."
        )
    axes = range(len(plan.mesh_shape.device_names))
    return [
        Wish(name, layout, tuple(a for a in axes if not any(a in d for d in layout)))
        for name, layout in found.items()
        if layout
    ]


def _alike(
    path: str, value: Value, theirs: list[tuple[str, Value, Layout]], plan: Plan
) -> Iterator[Layout]:
    rest = path.partition("/")[2]
    for other, known, layout in theirs:
        same = other == path
        end = other.endswith(f"/{path}") or (rest and other.endswith(f"/{rest}"))
        if (same or end) and str(known.type) == str(value.type):
            yield layout
        elif same and 0 not in value.type.shape and len(known.type.shape) == len(value.type.shape):
            sizes = [plan.mesh_shape.size(axes) for axes in layout]
            if not any(n % s for n, s in zip(value.type.shape, sizes, strict=True)):
                yield layout
