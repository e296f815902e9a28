"""Tables of a plan's arguments: tilings with moments, replicated arguments with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jax.sharding import PartitionSpec

from partir_search.ir.core import Value
from partir_search.messages.console import new_table
from partir_search.messages.number_groups import number_groups
from partir_search.plan.facts import PlanFacts
from partir_search.plan.peak_memory import MOMENTS, PARAMETERS, argument_parts
from partir_search.plan.report.cells import MIN_PATH, Path, padding_in_words

if TYPE_CHECKING:
    from rich.table import Table

Argument = tuple[str, Value, PartitionSpec]  # path, value, tiling


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """Optimizer state of a parameter: name (`mu`), type and tiling."""

    name: str
    type: str
    tiling: str


@dataclasses.dataclass(frozen=True, slots=True)
class ArgumentRow:
    """Arguments different in numbers only.

    Attributes:
      label: path with the numbers of all arguments.
      positions: positions among the plan's arguments.
      type: global shape and dtype.
      tiling: PartitionSpec.
      local_shape: shape on one device.
      moments: optimizer state of the same shape, in words; "" without any.
    """

    label: str
    positions: tuple[int, ...]
    type: str
    tiling: str
    local_shape: str
    moments: str


def argument_rows(plan: PlanFacts) -> list[ArgumentRow]:
    """Rows of a plan's arguments, each parameter with optimizer state."""
    arguments = plan.arguments()
    moments = moments_of(plan, arguments)
    taken = {at for each in moments.values() for at in each}
    keys = []
    for at, ((path, value, spec), slot) in enumerate(
        zip(arguments, plan.program.body.args, strict=True)
    ):
        if at not in taken:
            own = tuple(_moment(path, arguments[i]) for i in moments.get(at, ()))
            words = moments_in_words(str(value.type), str(spec), own)
            keys.append(
                (at, (str(value.type), str(spec), f"[{','.join(map(str, slot.shape))}]", words))
            )
    groups = number_groups((arguments[at][0], key) for at, key in keys)
    return [
        ArgumentRow(label, tuple(keys[i][0] for i in members), *key)
        for label, members, key in groups
    ]


def moments_of(plan: PlanFacts, arguments: Sequence[Argument]) -> dict[int, list[int]]:
    """Positions of each parameter's optimizer state, by position of the parameter.

    State belongs to the parameter of the same shape with the longest common end of the path.
    """
    parts = argument_parts(plan)
    by_end: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for at, (path, value, _) in enumerate(arguments):
        if parts[value.id] == PARAMETERS:
            keys = path.split("/")
            for n in range(1, len(keys) + 1):
                by_end.setdefault((value.type.shape, "/".join(keys[-n:])), []).append(at)
    found: dict[int, list[int]] = {}
    for at, (path, value, _) in enumerate(arguments):
        if parts[value.id] == MOMENTS:
            keys = path.split("/")
            for n in range(len(keys), 0, -1):
                owners = by_end.get((value.type.shape, "/".join(keys[-n:])), [])
                if len(owners) == 1:
                    found.setdefault(owners[0], []).append(at)
                    break
    return found


def _moment(parameter: str, argument: Argument) -> Moment:
    """Optimizer state, named by the path's last key before the parameter's."""
    path, value, spec = argument
    own, keys = parameter.split("/"), path.split("/")
    while own and keys and own[-1] == keys[-1]:
        own, keys = own[:-1], keys[:-1]
    named = [key for key in keys if not key.isdigit()]
    return Moment(named[-1] if named else path, str(value.type), str(spec))


def moments_in_words(kind: str, tiling: str, moments: Sequence[Moment]) -> str:
    """Text of a parameter's optimizer state: "mu, nu alike", or tilings if different."""
    groups: dict[str, list[str]] = {}
    for moment in moments:
        dtype = "" if moment.type == kind else f"{moment.type.partition('[')[0]} "
        how = "alike" if moment.tiling == tiling else moment.tiling
        groups.setdefault(dtype + how, []).append(moment.name)
    return "; ".join(f"{', '.join(names)} {how}" for how, names in groups.items())


def arguments_table(plan: PlanFacts) -> Table:
    """Arguments with their tilings; arguments different in numbers only (layers) share a row."""
    rows = argument_rows(plan)
    moments = {row.moments for row in rows if row.moments}
    padded = padding_in_words(plan.padding)
    notes = [f"padded inside of the program: {padded}"] if padded else []
    listed = len(moments) > 1 or any(not words.endswith(" alike") for words in moments)
    if moments and not listed:
        notes.append(f"{moments.pop().removesuffix(' alike')} are tiled as their parameters")
    table = new_table(
        title=f"arguments on mesh<{plan.mesh_shape}>",
        title_justify="left",
        caption="; ".join(notes) or None,
        caption_justify="left",
    )
    table.add_column("argument", min_width=MIN_PATH)
    for column in ("type", "tiling", "local shape") + ("moments",) * listed:
        table.add_column(column, overflow="fold")
    for row in rows:
        n = len(row.positions)
        label = f"{row.label} (x{n})" if n > 1 else row.label
        cells = (row.type, row.tiling, row.local_shape) + (row.moments,) * listed
        table.add_row(Path(label), *cells)
    return table


def not_tiled_table(plan: PlanFacts) -> Table:
    """Replicated arguments (scalars excepted), with the reason.

    Optimizer state of listed parameters is left out.
    """
    table = new_table(title="replicated arguments", title_justify="left")
    table.add_column("argument", min_width=MIN_PATH)
    for column in ("type", "why"):
        table.add_column(column, overflow="fold")
    arguments = plan.arguments()
    whole = {at for at, (_, v, spec) in enumerate(arguments) if v.type.shape and not any(spec)}
    for parameter, own in moments_of(plan, arguments).items():
        if parameter in whole:
            whole.difference_update(own)

    def key(value: Value) -> tuple[str, str]:
        return str(value.type), plan.why_replicated(value)

    rows = [(arguments[at][0], key(arguments[at][1])) for at in sorted(whole)]
    for label, at, (kind, why) in number_groups(rows):
        table.add_row(Path(f"{label} (x{len(at)})" if len(at) > 1 else label), kind, why)
    return table
