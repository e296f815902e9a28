"""Two processes on loopback: the same plan, and the step equals the single-process one."""

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

WORKER = pathlib.Path(__file__).parent / "multiprocess_worker.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run(processes: int) -> list[dict[str, Any]]:
    env = {**os.environ, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    flags = [f for f in os.environ["XLA_FLAGS"].split() if "device_count" not in f]
    flags.append(f"--xla_force_host_platform_device_count={8 // processes}")
    env["XLA_FLAGS"] = " ".join(flags)
    env["PYTHONPATH"] = str(WORKER.parent.parent)
    port = str(free_port())
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), port, str(processes), str(i)],
            env=env,
            cwd=WORKER.parent.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    results = []
    for worker in workers:
        out, err = worker.communicate(timeout=240)
        assert worker.returncode == 0, err[-3000:]
        results.append(json.loads(out.splitlines()[-1]))
    return results


@pytest.mark.devices
def test_two_processes() -> None:
    (single,), pair = run(1), run(2)
    assert pair[0]["plan"] == pair[1]["plan"] == single["plan"]
    for result in pair:
        np.testing.assert_allclose(result["losses"], single["losses"], rtol=1e-5)
        np.testing.assert_allclose(result["norm"], single["norm"], rtol=1e-5)
