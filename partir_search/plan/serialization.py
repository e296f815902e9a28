"""Plan files: JSON, checked against the function and mesh of the call."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import jax

from partir_search.ir.argument_paths import as_path
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.messages.files import read_text
from partir_search.messages.validators import choice
from partir_search.messages.wording import did_you_mean, shown
from partir_search.plan.spec import PlanSpec
from partir_search.propagation.actions import tilings

FORMAT = 2
MAX_DIFFERENCES = 12  # listed by a message


def fingerprint(module: Module) -> str:
    """Hash of the program's arguments and ops, for comparison with a saved plan."""
    h = hashlib.sha256()
    for path, v in zip(module.arg_paths, module.body.args, strict=True):
        h.update(f"{path}:{v.type};".encode())
    for op in module.ops:
        types = ",".join(str(x.type) for x in (*op.operands, *op.results))
        h.update(f"{op.prim}({types});".encode())
    return h.hexdigest()[:16]


def load_plan(
    path: str | os.PathLike[str], *, on_change: Literal["raise", "apply"] = "raise"
) -> PlanSpec:
    """Reads a plan written by `Plan.save`, for use as `schedule=` of `auto_partition`.

    The plan can be replayed on any mesh with the same axis names, if all dims divide. A plan from a
    different version of jax is read with a warning.

    Args:
      path: the file.
      on_change: behavior if the function or the argument shapes have changed: "raise" a ValueError
        that lists the differences, or "apply" the actions that still hold and warn with the same
        text.

    Raises:
      OSError: the file does not exist or cannot be read.
      ValueError: the file holds no plan, or a plan in an unsupported format.
    """
    choice("on_change", on_change, ("raise", "apply"))
    text = read_text(path, "plan")
    try:
        data = json.loads(text)
        _check_kind(data)
        plan = PlanSpec.from_json(data, on_change)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not a plan that can be read: it is no JSON, or was cut off ({error}); write"
            " plans with plan.save(path)"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not a plan that can be read: {what}") from error
    _warn_version(path, data)
    return plan


def _check_kind(data: Any) -> None:
    """Checks the format of a plan file.

    Raises:
      ValueError: the JSON is no plan, or has an unsupported format.
    """
    if not isinstance(data, dict):
        raise ValueError(f"it holds {shown(data)}; write plans with plan.save(path)")
    if "hbm_bytes" in data:
        raise ValueError("it holds a machine: pass its path as machine=")
    if "format" not in data:
        has = ", ".join(list(data)[:5]) or "nothing"
        raise ValueError(f"it has no 'format' (it has {has}); write plans with plan.save(path)")
    if data["format"] != FORMAT:
        raise ValueError(
            f"format {data['format']!r}, this version of partir_search reads {FORMAT}; plan again"
            " and save that, or install the version that wrote it"
            f" ({_versions(data).get('partir_search', 'not said')})"
        )


def _versions(data: Mapping[str, Any]) -> Mapping[str, Any]:
    given = data.get("versions")
    return given if isinstance(given, Mapping) else {}


def _warn_version(path: Any, data: Mapping[str, Any]) -> None:
    made = _versions(data).get("jax")
    if made and made != jax.__version__:
        warnings.warn(
            f"{path} was made with jax {made}, this is {jax.__version__}: its decisions are applied"
            " as they are, its figures are of that version; save the plan again once it is checked",
            stacklevel=3,
        )


def check_mesh(saved: PlanSpec, mesh: MeshShape) -> None:
    """Checks the axis names of the mesh against a saved plan.

    Raises:
      ValueError: the axis names differ.
    """
    saved_axes, axes = saved.mesh.user.names, mesh.user.names
    if saved_axes != axes:
        near = [did_you_mean(axis, saved_axes) for axis in axes if axis not in saved_axes]
        raise ValueError(
            f"the saved plan is for mesh<{saved.mesh.user}> with axes {list(saved_axes)}, this is"
            f" mesh<{mesh.user}> with {list(axes)}; plan again with schedule=None, or name the axes"
            f" alike{next(filter(None, near), '')}"
        )


def changes(saved: PlanSpec, module: Module) -> str:
    """Differences between `module` and the program of a saved plan, as text; "" if equal."""
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
        paths = [as_path(n, now) for n in gone[:3]]
        lines.append(f"it names {paths}, which this program does not have")
    if not lines:
        lines.append("its arguments are the same, its ops are not")
    shown = lines[:MAX_DIFFERENCES] + [f"and {len(lines) - MAX_DIFFERENCES} more"] * (
        len(lines) > MAX_DIFFERENCES
    )
    return (
        f"the saved plan is for {saved.function!r} with fingerprint {saved.fingerprint}, this is"
        f" {module.name!r} with {fingerprint(module)}: " + "; ".join(shown)
    )


def arguments_of(module: Module) -> dict[str, str]:
    """Type of each argument, by path."""
    return {p: str(v.type) for p, v in zip(module.arg_paths, module.body.args, strict=True)}
