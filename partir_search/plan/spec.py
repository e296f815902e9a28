"""Plans without the program: decisions, saved as JSON, compared and replayed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from partir_search.ir.mesh import MeshShape
from partir_search.plan.confirmation import Confirmation
from partir_search.plan.json_entries import typed_entry
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.rewrites import Rewrites, Rewritten
from partir_search.plan.search_space import SearchSpace
from partir_search.propagation.actions import Action, action_from_json


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanSpec(Rewritten):
    """Decisions of a plan, with a description of the program and mesh.

    Attributes:
      function: name of the function.
      fingerprint: hash of the traced program's arguments and ops.
      mesh: the user's mesh, with the sub-axes and diagonals named by actions.
      machine: name of the machine.
      actions: decisions in order.
      rewrites: rewrites of the program before the actions.
      arguments: type of each argument, by path.
      specs: spec of each argument as text, by path, recorded in a file with these actions; else
        empty.
      bound: lower bound of all plans' seconds, found by the search; None without one.
      space: the space of the search, which a front varies; None if a schedule decided everything.
      confirmed: choice of the plan by a compiler; None without one.
      on_change: behavior for a changed function: "raise", or "apply" the decisions that still hold.
    """

    function: str
    fingerprint: str
    mesh: MeshShape
    machine: str
    actions: tuple[Action, ...]
    rewrites: Rewrites = dataclasses.field(default_factory=Rewrites)
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    specs: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    bound: PlanBound | None = dataclasses.field(default=None, compare=False)
    space: SearchSpace | None = dataclasses.field(default=None, compare=False)
    confirmed: Confirmation | None = dataclasses.field(default=None, compare=False)
    on_change: Literal["raise", "apply"] = dataclasses.field(default="raise", compare=False)

    def to_json(self) -> dict[str, Any]:
        """All fields but `on_change`, as JSON values."""
        return {k: v for entry in _ENTRIES for k, v in entry.write(self).items()}

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], on_change: Literal["raise", "apply"] = "raise"
    ) -> PlanSpec:
        """Inverse of `to_json`.

        Raises:
          KeyError, TypeError or ValueError: `data` was not written by `to_json`.
        """
        fields = {entry.field: entry.read(data) for entry in _ENTRIES}
        return cls(**fields, on_change=on_change)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """JSON form of a PlanSpec field: several keys, or none for a default value."""

    field: str
    write: Callable[[PlanSpec], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Any]


def _text(name: str) -> _Entry:
    return _Entry(name, lambda spec: {name: getattr(spec, name)}, lambda data: str(data[name]))


def _write_bound(spec: PlanSpec) -> dict[str, Any]:
    return {"bound": spec.bound.to_json()} if spec.bound else {}


def _read_bound(data: Mapping[str, Any]) -> PlanBound | None:
    if "bound" not in data:
        return None
    return PlanBound.from_json(typed_entry(data, "bound", dict, "seconds of the bound and found"))


def _write_space(spec: PlanSpec) -> dict[str, Any]:
    return {"searched": spec.space.to_json()} if spec.space else {}


def _read_space(data: Mapping[str, Any]) -> SearchSpace | None:
    if "searched" not in data:
        return None
    return SearchSpace.from_json(typed_entry(data, "searched", dict, "axes and actions before"))


def _write_confirmed(spec: PlanSpec) -> dict[str, Any]:
    return {"confirmed": spec.confirmed.to_json()} if spec.confirmed else {}


def _read_confirmed(data: Mapping[str, Any]) -> Confirmation | None:
    if "confirmed" not in data:
        return None
    return Confirmation.from_json(typed_entry(data, "confirmed", dict, "finalists and a target"))


def _write_mesh(spec: PlanSpec) -> dict[str, Any]:
    mesh = spec.mesh
    found = {
        "sub_axes": mesh.sub_axes(),
        "diagonals": list(mesh.diagonal_names),
        "skewed_state": mesh.skewed_state,
    }
    return {"mesh": dict(mesh.user.as_dict()), **{k: v for k, v in found.items() if v}}


def _read_mesh(data: Mapping[str, Any]) -> MeshShape:
    sizes: Mapping[str, int] = typed_entry(data, "mesh", dict, "axes and their sizes")
    if not sizes:
        raise ValueError("its mesh has no axes")
    sub_axes: Mapping[str, Any] = {}
    for key in ("parts", "sub_axes"):  # the former key, and the current one
        if key in data:
            sub_axes = typed_entry(data, key, dict, "axes and the sizes of their sub-axes")
    split = MeshShape(tuple(sizes), tuple(sizes.values())).split(sub_axes)
    return split.with_diagonals(data.get("diagonals", ()), bool(data.get("skewed_state")))


def _write_arguments(spec: PlanSpec) -> dict[str, Any]:
    found = {path: {"type": kind} for path, kind in spec.arguments.items()}
    for path, text in spec.specs.items():
        found[path]["spec"] = text
    return {"arguments": found}


def record_key(data: Mapping[str, Any]) -> str:
    """Hash of a plan's actions as JSON, saved beside the recorded PartitionSpecs."""
    return hashlib.sha256(json.dumps(data["actions"], sort_keys=True).encode()).hexdigest()[:16]


def _read_specs(data: Mapping[str, Any]) -> dict[str, str]:
    """Recorded PartitionSpecs by path; empty if the actions were edited afterwards."""
    return _read_arguments(data, "spec") if data.get("record_of") == record_key(data) else {}


def _read_arguments(data: Mapping[str, Any], key: str) -> dict[str, str]:
    """An entry of each argument, by path; none where the file has none but the type."""
    found: Mapping[str, Any] = typed_entry(data, "arguments", dict, "arguments by path")
    rows = {path: typed_entry(found, path, dict, "a type and a spec") for path in found}
    return {path: str(row[key]) for path, row in rows.items() if key == "type" or key in row}


_ENTRIES = (
    _text("function"),
    _text("fingerprint"),
    _Entry("mesh", _write_mesh, _read_mesh),
    _text("machine"),
    _Entry("rewrites", lambda spec: spec.rewrites.to_json(), Rewrites.from_json),
    _Entry(
        "actions",
        lambda spec: {"actions": [a.to_json() for a in spec.actions]},
        lambda data: tuple(
            map(action_from_json, typed_entry(data, "actions", list, "a list of actions"))
        ),
    ),
    _Entry("bound", _write_bound, _read_bound),
    _Entry("space", _write_space, _read_space),
    _Entry("confirmed", _write_confirmed, _read_confirmed),
    _Entry("arguments", _write_arguments, lambda data: _read_arguments(data, "type")),
    _Entry("specs", lambda spec: {}, _read_specs),
)
