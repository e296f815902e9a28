"""Several processes on loopback: the same plan or an error, and the single process's losses."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
WORKER = HERE / "multiprocess_worker.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run(processes: int, worker: pathlib.Path = WORKER, *more: str) -> list[dict[str, Any]]:
    env = {**os.environ, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    flags = [f for f in os.environ["XLA_FLAGS"].split() if "device_count" not in f]
    flags.append(f"--xla_force_host_platform_device_count={8 // processes}")
    env["XLA_FLAGS"] = " ".join(flags)
    env["PYTHONPATH"] = str(HERE.parent)
    port = str(free_port())
    workers = [
        subprocess.Popen(
            [sys.executable, str(worker), port, str(processes), str(i), *more],
            env=env,
            cwd=HERE.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    results = []
    for process in workers:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        results.append(json.loads(out.splitlines()[-1]))
    return results


@pytest.mark.devices
def test_two_processes() -> None:
    (single,), pair = run(1), run(2)
    assert pair[0]["plan"] == pair[1]["plan"] == single["plan"]
    for result in pair:
        np.testing.assert_allclose(result["losses"], single["losses"], rtol=1e-5)
        np.testing.assert_allclose(result["norm"], single["norm"], rtol=1e-5)


@pytest.mark.devices
def test_one_process_plans_for_four() -> None:
    """They would all find other plans (other seeds); the first one's is taken by all."""
    found = run(4, HERE / "agreement_worker.py", "first")
    assert not [f["error"] for f in found if "error" in f]
    assert [f["searched"] for f in found] == [True, False, False, False]
    assert all(f["plan"]["actions"] == found[0]["plan"]["actions"] for f in found)
    assert len({f["loss"] for f in found}) == 1


@pytest.mark.devices
@pytest.mark.parametrize(
    ("case", "messages"),
    [
        (
            "differ",
            ["PlansDiffer: processes 0 and 1 have different plans of 'step'"] * 2,
        ),
        ("fails", ["ValueError: 'no_such' matches", "RuntimeError: planning failed on process 0"]),
    ],
)
def test_an_error_instead_of_a_hang(case: str, messages: list[str]) -> None:
    for found, message in zip(run(2, HERE / "agreement_worker.py", case), messages, strict=True):
        assert found["error"].startswith(message)
