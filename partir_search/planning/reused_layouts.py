"""Shardings of a function's arguments, copied from the plan of another function."""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.constraints.fixed_layouts import FixedLayout
from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Layout
from partir_search.plan.plan import Plan


def reused_layouts(module: Module, plan: Plan) -> list[FixedLayout]:
    """Fixed layouts for the arguments of `module` with the path and type of an argument of `plan`.

    The first component of a path (the parameter name) is ignored, and a path may be a suffix of the
    plan's path: `params/w` matches `state/params/w`. Types must be equal, with one exception: an
    argument with the same full path (a batch) only needs the same rank and dims divisible by the
    plan's tiles.

    Raises:
      ValueError: no argument matches.
    """
    enters = dict(plan.partition.modes.argument_layouts)
    references = [
        (p, v, enters.get(i, plan.partition.layout(v)))
        for i, (p, v, _) in enumerate(plan.arguments())
    ]
    found: dict[str, Layout] = {}
    for path, value in zip(module.arg_paths, module.body.args, strict=True):
        layouts = set(_alike(path, value, references, plan))
        if len(layouts) == 1:
            found[value.name] = layouts.pop()
    if not found:
        raise ValueError(
            f"{module.name!r} has no argument with the path and type of one in the plan of"
            f" {plan.module.name!r} (shardings_like): {', '.join(module.arg_paths[:5])} ... against"
            f" {', '.join(plan.module.arg_paths[:5])} ..."
        )
    axes = range(len(plan.mesh_shape.device_names))
    return [
        FixedLayout(name, layout, tuple(a for a in axes if not any(a in d for d in layout)))
        for name, layout in found.items()
        if layout
    ]


def _alike(
    path: str, value: Value, references: list[tuple[str, Value, Layout]], plan: Plan
) -> Iterator[Layout]:
    suffix = path.partition("/")[2]
    for reference, known, layout in references:
        same = reference == path
        end = reference.endswith(f"/{path}") or (suffix and reference.endswith(f"/{suffix}"))
        if (same or end) and str(known.type) == str(value.type):
            yield layout
        elif same and 0 not in value.type.shape and len(known.type.shape) == len(value.type.shape):
            sizes = [plan.mesh_shape.size(axes) for axes in layout]
            if not any(n % s for n, s in zip(value.type.shape, sizes, strict=True)):
                yield layout
