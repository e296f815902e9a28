"""Memory of a device at the peak of a step: arguments by role, live values by origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.source_names import scope_path
from partir_search.messages.number_groups import number_groups
from partir_search.plan.facts import PlanFacts
from partir_search.rules.registry import edges_of
from partir_search.strategies.argument_roles import find_roles

PARAMETERS, MOMENTS, DATA = "parameters", "optimizer state", "data"
STATE, CONSTANTS = "other arguments", "closed-over arrays"
ACTIVATIONS, GRADIENTS, BACKWARD = "activations", "gradients", "values of the backward pass"
GATHERED = "gathered copies and temporaries"


@dataclasses.dataclass(frozen=True, slots=True)
class LiveRow:
    """Values live at the peak, different in numbers only (layers).

    Attributes:
      label: name with the numbers of all values.
      count: number of values.
      type: global shape and dtype.
      part: origin, "activations" for instance.
      bytes: bytes of all values on one device.
      source: file and line of the user's code.
    """

    label: str
    count: int
    type: str
    part: str
    bytes: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeakMemory:
    """Memory at the peak.

    Attributes:
      parts: bytes on one device by role or origin; the peak in total.
      live: values besides the arguments, largest first.
    """

    parts: Mapping[str, float]
    live: tuple[LiveRow, ...]


def argument_parts(plan: PlanFacts) -> dict[int, str]:
    """Role of each argument, by value id."""
    roles, names = find_roles(plan.module), dict[int, str]()
    for part, ids in ((PARAMETERS, roles.parameters), (MOMENTS, roles.optimizer)):
        names.update(dict.fromkeys(ids, part))
    names.update(dict.fromkeys(roles.data, DATA))
    return {v.id: names.get(v.id, STATE) for v in plan.module.body.args}


def made_inside(op: Op, result: Operand) -> Iterator[Operand]:
    """Yields the values inside an op's regions that become a result of the op.

    Results of branches, and of a loop's body for a stacked result or the final value of a carry.
    """
    if not op.regions:
        return
    edges = edges_of(op)
    for region, at, to, _ in edges.outputs:
        if op.results[to] is result:
            yield op.regions[region].results[at]
    ends = {(region, at) for region, at, to in edges.finals if op.results[to] is result}
    for region, at, to, argument in edges.carries:
        if (to, argument) in ends:
            yield op.regions[region].results[at]


def is_backward(value: Operand, makers: Sequence[Op | None]) -> bool:
    """True for results of the backward pass, and for sums of such results over a loop.

    Args:
      makers: op that makes each value, by value id.
    """
    maker = makers[value.id] if isinstance(value, Value) else None
    if maker is None or maker.backward:
        return maker is not None
    inside = (makers[x.id] for x in made_inside(maker, value) if isinstance(x, Value))
    return any(
        op.backward or any((m := makers[x.id]) is not None and m.backward for _, x in op.inputs())
        for op in inside
        if op is not None
    )


def peak_memory(plan: PlanFacts) -> PeakMemory:
    """Splits the peak of a plan."""
    parts = dict.fromkeys((PARAMETERS, MOMENTS, DATA, STATE), 0.0)
    part_of = argument_parts(plan)
    for value, slot in zip(plan.module.body.args, plan.program.body.args, strict=True):
        parts[part_of[value.id]] += slot.nbytes
    rest = plan.cost.argument_bytes - sum(parts.values())
    parts[CONSTANTS] = max(rest, 0.0)

    module, makers = plan.module, def_use(plan.module).makers
    by_name = module.value_names()
    shapes = {v.type.shape for v in module.body.args if part_of[v.id] == PARAMETERS}
    live = plan.timeline.live

    def origin(value: Value | None) -> str:
        if value is None or not is_backward(value, makers):
            return ACTIVATIONS
        return GRADIENTS if value.type.shape in shapes else BACKWARD

    def place(name: str, source: str) -> str:
        """Source line, or the scope of a value made by a library alone."""
        value = by_name.get(name)
        maker = makers[value.id] if value else None
        return source or ("/".join(scope_path(maker.scope)) if maker else "")

    keys = [(v.type, origin(by_name.get(v.name)), place(v.name, v.source)) for v in live]
    rows = []
    for label, at, (kind, part, source) in number_groups(
        (v.name, key) for v, key in zip(live, keys, strict=True)
    ):
        total = sum(live[i].bytes for i in at)
        rows.append(LiveRow(label, len(at), kind, part, total, source))
        parts[part] = parts.get(part, 0.0) + total
    rest = plan.cost.peak_bytes - sum(parts.values())
    parts[GATHERED] = max(rest, 0.0)
    rows.sort(key=lambda r: -r.bytes)
    return PeakMemory({k: b for k, b in parts.items() if b > 0}, tuple(rows))
