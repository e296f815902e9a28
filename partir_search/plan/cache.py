"""Cache of plans on disk, keyed by a hash of program, mesh and options."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.messages.files import make_folder
from partir_search.messages.version import VERSION
from partir_search.plan.plan import Plan
from partir_search.plan.serialization import fingerprint, load_plan
from partir_search.plan.spec import PlanSpec


class PlanCache:
    """Folder of saved plans.

    File names contain a hash of the program, the mesh, the options that affect planning, and the
    versions of this package and jax. Files may be deleted at any time.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Opens the cache in `folder`, creating the folder if missing.

        Raises:
          OSError: the folder cannot be created.
        """
        self.folder = make_folder(folder, "cache")

    def path(self, module: Module, mesh: MeshShape, options: Sequence[Any]) -> pathlib.Path:
        """Path of the cache file for a program, existing or not.

        Args:
          module: the traced program.
          mesh: the mesh of the plan.
          options: all further inputs of planning, compared by `repr`.
        """
        facts = [fingerprint(module), str(mesh), *map(repr, options)]
        facts += [repr(module.ties), repr(sorted(module.donated))]
        facts += [VERSION, jax.__version__]
        key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
        name = "".join(c if c.isalnum() or c in "_-" else "_" for c in module.name)
        return self.folder / f"{name}-{key}.json"

    def load(self, path: pathlib.Path) -> PlanSpec | None:
        """Reads a cached plan; None for a missing file, and for a damaged file after a warning."""
        if not path.exists():
            return None
        try:
            return load_plan(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{error}; planned again", stacklevel=2)
            return None

    def store(self, path: pathlib.Path, plan: Plan) -> None:
        """Writes a plan atomically, as several processes may write the same file.

        A failed write is a warning, not an error: the step can run without a cached plan.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                file.write(json.dumps(plan.to_json(), indent=1) + "\n")
            os.replace(file.name, path)
        except OSError as error:
            warnings.warn(
                f"cache: the plan cannot be stored at {path}: {error.strerror}; the next start will"
                " search again",
                stacklevel=2,
            )
