"""Plans as files: readable JSON, held against the function and mesh that they were made for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.remat import Range
from partir_search.propagation.actions import Action, action_from_json, tilings
from partir_search.propagation.padding import Pad

FORMAT = 2
SHOWN = 12  # differences that a message lists


@dataclasses.dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan read from a file, to be applied to the function and mesh that it was made for.

    Attributes:
      arguments: type of each argument, by path.
      on_change: what to do if the function changed: "raise", or "apply" what still holds.
    """

    function: str
    fingerprint: str
    mesh: MeshShape
    machine: str
    actions: tuple[Action, ...]
    remat: tuple[Range, ...] = ()
    microbatches: int = 1
    padding: tuple[Pad, ...] = ()
    attention: bool = False
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    on_change: Literal["raise", "apply"] = "raise"


def fingerprint(module: Module) -> str:
    """Hash of the program's arguments and ops: what a saved plan must agree with."""
    h = hashlib.sha256()
    for path, v in zip(module.arg_paths, module.body.args, strict=True):
        h.update(f"{path}:{v.type};".encode())
    for op in module.ops:
        types = ",".join(str(x.type) for x in (*op.operands, *op.results))
        h.update(f"{op.prim}({types});".encode())
    return h.hexdigest()[:16]


def load_plan(
    path: str | pathlib.Path, *, on_change: Literal["raise", "apply"] = "raise"
) -> SavedPlan:
    """Reads a plan that `Plan.save` wrote; pass it as `schedule=` to `auto_partition`.

    It is replayed on any mesh whose axes have the same names, if all dims divide.

    Args:
      on_change: what to do if the function or the shapes of its arguments are others than those
        that the plan was made for: raise a ValueError that says what differs, or apply what still
        holds and warn with the same text.
    """
    if on_change not in ("raise", "apply"):
        raise ValueError(f"on_change is 'raise' or 'apply', not {on_change!r}")
    try:
        return from_json(json.loads(pathlib.Path(path).read_text()), on_change)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a plan that can be read: {error}") from error


def from_json(data: Mapping[str, Any], on_change: Literal["raise", "apply"] = "raise") -> SavedPlan:
    """Inverse of `Plan.to_json`; KeyError, TypeError or ValueError for anything else."""
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, this version reads {FORMAT}")
    mesh: Mapping[str, int] = data["mesh"]
    return SavedPlan(
        data["function"],
        data["fingerprint"],
        MeshShape(tuple(mesh), tuple(mesh.values()))
        .split(data.get("parts", {}))
        .with_diagonals(data.get("diagonals", ()), bool(data.get("skewed_state"))),
        data["machine"],
        tuple(action_from_json(a) for a in data["actions"]),
        tuple((int(a), int(b)) for a, b in data.get("remat", ())),
        int(data.get("microbatches", 1)),
        tuple(Pad(str(p["value"]), int(p["dim"]), int(p["size"])) for p in data.get("padding", ())),
        bool(data.get("attention")),
        {path: str(a["type"]) for path, a in data["arguments"].items()},
        on_change,
    )


def check_mesh(saved: SavedPlan, mesh: MeshShape) -> None:
    """A ValueError if a plan's mesh has other axes than this one."""
    theirs, ours = saved.mesh.user.names, mesh.user.names
    if theirs != ours:
        raise ValueError(
            f"the saved plan is for mesh<{saved.mesh.user}> with axes {list(theirs)}, this is"
            f" mesh<{mesh.user}> with {list(ours)}; plan again with schedule=None, or name the axes"
            " alike"
        )


def changes(saved: SavedPlan, module: Module) -> str:
    """What differs between a program and the one that a plan was made for; "" if nothing does."""
    if saved.fingerprint == fingerprint(module):
        return ""
    now = arguments_of(module)
    lines = [f"{p}: {t} is new" for p, t in now.items() if p not in saved.arguments]
    lines += [f"{p}: {t} is gone" for p, t in saved.arguments.items() if p not in now]
    lines += [
        f"{p}: {saved.arguments[p]} became {t}"
        for p, t in now.items()
        if saved.arguments.get(p, t) != t
    ]
    names = module.value_names()
    gone = [n for a in tilings(saved.actions) for n in a.values if n not in names]
    if gone:
        lines.append(f"it names {gone[:3]}, which this program does not have")
    if not lines:
        lines.append("its arguments are the same, its ops are not")
    shown = lines[:SHOWN] + [f"and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)
    return (
        f"the saved plan is for {saved.function!r} with fingerprint {saved.fingerprint}, this is"
        f" {module.name!r} with {fingerprint(module)}: " + "; ".join(shown)
    )


def arguments_of(module: Module) -> dict[str, str]:
    """Type of each argument, by path."""
    return {p: str(v.type) for p, v in zip(module.arg_paths, module.body.args, strict=True)}
