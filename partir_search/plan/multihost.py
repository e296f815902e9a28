"""Agreement of several processes on one plan.

Either every process plans by itself (the search is deterministic), or process 0 plans and all
further processes replay its plan. Both ways, plans are compared before compilation: processes with
different programs would wait for each other forever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from partir_search.plan.plan import Plan
from partir_search.plan.spec import PlanSpec


class PlansDiffer(RuntimeError):
    """Processes have different plans; the message names the differences."""


def spans_processes(mesh: Any) -> bool:
    """True if the mesh has devices of several processes; False for an AbstractMesh."""
    return isinstance(mesh, Mesh) and len({d.process_index for d in mesh.devices.flat}) > 1


def check_agreement(plan: Plan, mesh: Any) -> None:
    """Compares the plans of all processes; every process must call this function.

    A mesh within one process needs no comparison.

    Raises:
      PlansDiffer: on every process, if any process has a plan unlike process 0's.
    """
    if not spans_processes(mesh):
        return
    texts = exchange(json.dumps(_essence(plan), sort_keys=True))
    if len(set(texts)) == 1:
        return
    first = json.loads(texts[0])
    for i, text in enumerate(texts[1:], 1):
        if text != texts[0]:
            other = json.loads(text)
            keys = [k for k in {**first, **other} if first.get(k) != other.get(k)]
            pairs = [f"{k}: {_short(first.get(k))} and {_short(other.get(k))}" for k in keys[:4]]
            raise PlansDiffer(
                f"processes 0 and {i} have different plans of {plan.module.name!r}:"
                f" {'; '.join(pairs)}; run the same code with the same arguments, machine, seed"
                " and versions on all processes, or let one plan for all: plan_on='first'"
            )


def _essence(plan: Plan) -> dict[str, Any]:
    """Properties of a plan that must agree between processes.

    Simulated figures are left out: processors differ in the last bit of a sum.
    """
    data = plan.to_json()
    for figures in ("seconds", "peak_bytes", "confirmed", "record_of"):
        data.pop(figures, None)
    arguments = {f"argument {p}": a["type"] for p, a in data.pop("arguments").items()}
    return {**arguments, **data}


def _short(x: Any) -> str:
    text = "nothing" if x is None else json.dumps(x)
    return text if len(text) < 120 else text[:117] + "..."


def plan_first(make: Callable[[], Plan]) -> Plan | PlanSpec:
    """Calls `make` on process 0 and sends the plan, as a PlanSpec to replay, to all others.

    Raises:
      RuntimeError: planning failed on process 0; the message has the original error.
    """
    text, failed, plan = "", None, None
    if jax.process_index() == 0:
        try:
            plan = make()
            text = json.dumps(plan.to_json())
        except Exception as error:  # sent on: all further processes wait for a message
            failed = error
            text = json.dumps({"failed": f"{type(error).__name__}: {error}"})
    received = exchange(text)[0]
    if failed:
        raise failed
    if plan is not None:
        return plan
    data = json.loads(received)
    if "failed" in data:
        raise RuntimeError(f"planning failed on process 0: {data['failed']}")
    return PlanSpec.from_json(data)


def exchange(text: str) -> list[str]:
    """Texts of all processes, by process index. All processes must call this function."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.array([len(encoded)])))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(encoded)] = encoded
    gathered = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), -1)
    return [bytes(row[:n]).decode() for row, n in zip(gathered, lengths, strict=True)]
