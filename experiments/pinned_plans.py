"""Plans of rows: the actions that a row was compiled with, replayed on the program as it is now."""

from __future__ import annotations

import collections
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import partir_search as ps


class PinnedPlans:
    """Plans of one program by their actions.

    Args:
      case: with `partitioned(mesh, machine, schedule)`, as `experiments.truth.Case`.
      mesh: of the plans.
      machine: its name.
    """

    def __init__(self, case: Any, mesh: Any, machine: str) -> None:
        self._case, self._mesh, self._machine = case, mesh, machine
        step, args = case.partitioned(mesh, machine, [])
        self._saved: dict[str, Any] = step.plan(*args).to_json()

    def plan(self, actions: Sequence[Any]) -> ps.Plan:
        """The plan of `actions` as JSON.

        Raises:
          ValueError: the program has no longer a value that the actions name, or no longer takes
            all of them.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "plan.json")
            file.write_text(json.dumps(self._saved | {"actions": list(actions)}))
            saved = ps.load_plan(file)
        step, args = self._case.partitioned(self._mesh, self._machine, saved)
        plan: ps.Plan = step.plan(*args)
        if plan.to_json()["actions"] != list(actions):
            raise ValueError("the program no longer takes all actions of the row")
        return plan


def skipped(reasons: Mapping[tuple[str, str, str], str]) -> list[str]:
    """A line for each target, program and reason: how many rows were not predicted again.

    Args:
      reasons: by target, program and plan of the row.
    """
    found: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    for (target, model, plan), reason in reasons.items():
        found[target, model, reason].append(plan)
    return [
        f"{model} on {target}: {len(plans)} rows not predicted again ({', '.join(plans)}): {reason}"
        for (target, model, reason), plans in found.items()
    ]
