"""Explanations of a plan: causes of tilings, replicated values, conflicts, changed shardings."""

from __future__ import annotations

from jax.sharding import NamedSharding, PartitionSpec

from partir_search.constraints.fixed_layouts import layout_actions
from partir_search.constraints.shardings import layout_from_spec
from partir_search.ir.argument_paths import matches, nearest
from partir_search.ir.core import Op, Value
from partir_search.ir.printing.names import printed_as
from partir_search.ir.rule import REPLICATED
from partir_search.messages.validators import text
from partir_search.messages.wording import shown
from partir_search.plan.planned import Planned
from partir_search.plan.variation import varied
from partir_search.propagation.actions import Action, tilings
from partir_search.propagation.conflicts import Conflict, find_conflicts


def explain(planned: Planned, path: str) -> str:
    """Names the action, and the op it propagated through, for each axis of arguments at `path`."""
    text("explain: path", path, "an argument's path such as 'state/params/w'")
    module = planned.graph.module
    named = zip(module.arg_paths, module.body.args, strict=True)
    found = [(p, v) for p, v in named if matches(path, p)]
    if not found:
        name = path.removeprefix("%").replace("/", ".")
        value = module.value_names().get(name)
        found = printed_as(module, name) if value is None else [(path, value)]
        if not found:
            raise ValueError(
                f"no argument or value {path!r}; near it are: {nearest(path, module.arg_paths)}"
            )
    return "\n".join(line for p, v in found for line in _explain(planned, p, v))


def _explain(planned: Planned, path: str, value: Value) -> list[str]:
    graph, state = planned.graph, planned.state
    cls = graph.class_of[value.id]
    steps = tilings(planned.actions)  # causes hold indices into this list
    lines = [f"{path}: {value.type}"]
    for axis, name in enumerate(state.mesh.names):
        dim = state.tiles[axis][cls]
        cause = (state.causes or {}).get((axis, cls))
        if cause is None:
            size = state.mesh.sizes[axis]
            bad = [n for n in value.type.shape if n % size]
            why = f"; dims of size {bad} do not divide by {size}" if bad else ""
            closed = [d for d in range(len(value.type.shape)) if state.is_closed(cls, d, (axis,))]
            why += f"; a fixed sharding keeps dims {closed} replicated" if closed else ""
            lines.append(f"  {name}: replicated (nothing reached it{why})")
            continue
        what = f"dim {dim}" if dim >= 0 else "replicated"
        by = f"by {steps[cause.step]}"
        if cause.node is not None:
            op = graph.module.ops[graph.nodes[cause.node].op]
            by = f"by propagation of {steps[cause.step]} through {_where(op)}"
        lines.append(f"  {name}: {what}, {by}")
    return lines


def why_replicated(planned: Planned, value: Value) -> str:
    """Why no axis tiles a value."""
    state, axes_of = planned.state, dict[str, list[str]]()
    cls = planned.graph.class_of[value.id]
    for axis, name in enumerate(state.mesh.names):
        if state.tiles[axis][cls] == REPLICATED:
            why = "replicated by an action"
        elif all(n % state.mesh.sizes[axis] for n in value.type.shape):
            why = f"no dim divides by {state.mesh.sizes[axis]}"
        elif all(dim < 0 for dim in state.tiles[axis]):
            why = "nothing is tiled"
        else:
            why = "nothing reached it"
        axes_of.setdefault(why, []).append(name)
    if len(axes_of) == 1:
        return next(iter(axes_of))
    return "; ".join(f"{', '.join(axes)}: {why}" for why, axes in axes_of.items())


def conflicts(planned: Planned) -> list[str]:
    """Conflicts as text: the op, the mesh axis, and each operand with its requested factor."""
    return [_conflict(planned, c) for c in find_conflicts(planned.state)]


def _conflict(planned: Planned, conflict: Conflict) -> str:
    graph = planned.graph
    op = graph.module.ops[graph.nodes[conflict.node].op]
    asks = ", ".join(
        f"%{graph.module.values[graph.members[cls][0]].name} wants factor {f}"
        for f, cls in conflict.candidates
    )
    return f"{_where(op)} on axis {planned.state.mesh.names[conflict.axis]!r}: {asks}"


def with_sharding(
    planned: Planned, path: str, spec: PartitionSpec | NamedSharding
) -> tuple[Planned, tuple[Action, ...]]:
    """Applies the sharding `spec` to the arguments at `path`, among the plan's compatible actions.

    Args:
      planned: the plan to vary.
      path: an argument's path, or a glob on paths.
      spec: the new sharding.

    Returns:
      The varied plan and the dropped actions, which contradict `spec`.
    """
    graph, mesh = planned.graph, planned.sketch.partition.mesh
    text("what_if: path", path, "an argument's path such as 'state/params/w'")
    if not isinstance(spec, PartitionSpec | NamedSharding):
        entry = f"; write jax.P({spec!r})" if isinstance(spec, str) else ""
        entry = f"; write jax.P{spec!r}" if isinstance(spec, tuple) else entry
        raise TypeError(
            f"what_if: spec is a PartitionSpec or NamedSharding for {path!r}, not {shown(spec)}"
            f"{entry}"
        )
    spec = spec.spec if isinstance(spec, NamedSharding) else spec
    named = zip(graph.module.arg_paths, graph.module.body.args, strict=True)
    found = [(p, v) for p, v in named if matches(path, p)]
    if not found:
        near = nearest(path, graph.module.arg_paths)
        raise ValueError(f"no argument {path!r}; near it are: {near}")
    layouts = [layout_from_spec(p, v, spec, mesh) for p, v in found]
    return varied(planned, layout_actions(layouts, mesh))


def _where(op: Op) -> str:
    return f"{op.prim} ({op.source})" if op.source else op.prim
