"""Plans as files: readable JSON, held against the function and mesh that they were made for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.remat import Range
from partir_search.propagation.actions import Action, action_from_json, tilings
from partir_search.propagation.padding import Pad

FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan read from a file, to be applied to the function and mesh that it was made for."""

    function: str
    fingerprint: str
    mesh: MeshShape
    machine: str
    actions: tuple[Action, ...]
    remat: tuple[Range, ...] = ()
    microbatches: int = 1
    padding: tuple[Pad, ...] = ()
    attention: bool = False


def fingerprint(module: Module) -> str:
    """Hash of the program's arguments and ops: what a saved plan must agree with."""
    h = hashlib.sha256()
    for path, v in zip(module.arg_paths, module.body.args, strict=True):
        h.update(f"{path}:{v.type};".encode())
    for op in module.ops:
        types = ",".join(str(x.type) for x in (*op.operands, *op.results))
        h.update(f"{op.prim}({types});".encode())
    return h.hexdigest()[:16]


def load_plan(path: str | pathlib.Path) -> SavedPlan:
    """Reads a plan that `Plan.save` wrote; pass it as `schedule=` to `auto_partition`."""
    try:
        data = json.loads(pathlib.Path(path).read_text())
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
            tuple(
                Pad(str(p["value"]), int(p["dim"]), int(p["size"])) for p in data.get("padding", ())
            ),
            bool(data.get("attention")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a plan that can be read: {error}") from error


def check_saved(saved: SavedPlan, module: Module, mesh: MeshShape) -> None:
    """A ValueError that says what differs if a plan is for another function or mesh."""
    if saved.mesh != mesh:
        raise ValueError(
            f"the saved plan is for mesh<{saved.mesh}>, this is mesh<{mesh}>; plan again with"
            " schedule=None, or use the mesh that it was made for"
        )
    if saved.fingerprint != fingerprint(module):
        names = module.value_names()
        gone = [n for a in tilings(saved.actions) for n in a.values if n not in names]
        detail = f"; it names {gone[:3]}, which this program does not have" if gone else ""
        raise ValueError(
            f"the saved plan is for {saved.function!r} with fingerprint {saved.fingerprint}, this"
            f" is {module.name!r} with {fingerprint(module)}: the function or the shapes of its"
            f" arguments changed{detail}; plan again with schedule=None"
        )
