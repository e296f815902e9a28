"""Several processes on loopback: the same plan or an error, and the single process's losses."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support import FASTER

HERE = pathlib.Path(__file__).parent
WORKER = HERE / "multiprocess_worker.py"
AGREEMENT = HERE / "agreement_worker.py"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(
    processes: int,
    command: Callable[[str, int], list[str]],
    *,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
) -> list[Any]:
    """Processes that share 8 devices; `command` is given the coordinator's port and an index."""
    env = {**os.environ, "NPROC": "16", "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    flags = [f for f in os.environ["XLA_FLAGS"].split() if "device_count" not in f]
    flags.append(f"--xla_force_host_platform_device_count={8 // processes}")
    env["XLA_FLAGS"] = " ".join(flags) + FASTER
    env["PYTHONPATH"] = str(HERE.parent)
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, *command(port, i)],
            env=env,
            cwd=HERE.parent,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )
        for i in range(processes)
    ]


def ended_well(process: Any, stderr: str) -> bool:
    """Whether a process ended without an error of its program.

    The coordinator's gRPC server may abort in its destructor where another process' last request
    is still queued (jaxlib, at exit, after the program has ended): results are printed by then.
    """
    at_exit = process.returncode == -signal.SIGABRT and "RuntimeService::Shutdown" in stderr
    return process.returncode == 0 or at_exit


def run(processes: int, worker: pathlib.Path = WORKER, *more: str) -> list[dict[str, Any]]:
    results = []
    for process in start(processes, lambda p, i: [str(worker), p, str(processes), str(i), *more]):
        out, err = process.communicate(timeout=240)
        assert ended_well(process, err), err[-3000:]
        # Gloo prints, too: before the worker or after it, also on one line.
        results.append(json.JSONDecoder().raw_decode(out, out.index("{"))[0])
    return results


@pytest.mark.devices
def test_two_processes() -> None:
    (single,), both = run(1), run(2)
    assert both[0]["plan"] == both[1]["plan"] == single["plan"]
    for result in both:
        np.testing.assert_allclose(result["losses"], single["losses"], rtol=1e-5)
        np.testing.assert_allclose(result["norm"], single["norm"], rtol=1e-5)


@pytest.mark.devices
def test_one_process_plans_for_four() -> None:
    """They would all find other plans (other seeds); the first one's is taken by all."""
    found = [each["first"] for each in run(4, AGREEMENT, "first")]
    assert not [f["error"] for f in found if "error" in f]
    assert [f["searched"] for f in found] == [True, False, False, False]
    assert all(f["plan"]["actions"] == found[0]["plan"]["actions"] for f in found)
    assert len({f["loss"] for f in found}) == 1


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    """Outcomes by case of two processes that go through the cases one after the other."""
    return run(2, AGREEMENT, "local", "differ", "fails")


@pytest.mark.devices
def test_meshes_of_one_process_need_no_agreement(pair: list[dict[str, Any]]) -> None:
    one, two = (each["local"] for each in pair)
    assert one["plan"]["actions"] != two["plan"]["actions"]
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-5)


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
def test_an_error_instead_of_a_hang(
    case: str, messages: list[str], pair: list[dict[str, Any]]
) -> None:
    for found, message in zip(pair, messages, strict=True):
        assert found[case]["error"].startswith(message)


def example(processes: int, folder: pathlib.Path, *more: str) -> Callable[[str, int], list[str]]:
    """The transformer example in so many processes."""
    sizes = "--layers=1 --d_model=32 --heads=4 --d_ff=64 --seq=16 --batch=8 --schedule=bp+mp"

    def command(port: str, index: int) -> list[str]:
        where = f"--coordinator=127.0.0.1:{port} --num_processes={processes} --process_id={index}"
        words = ["-m", "experiments.transformer", *sizes.split(), *where.split(), *more]
        return [*words, f"--checkpoint={folder}", "--save_every=2"]

    return command


@pytest.mark.devices
def test_the_example_goes_on_after_a_restart(tmp_path: pathlib.Path) -> None:
    """Two processes, two steps; then a fresh start of both that goes on to the fourth: the losses
    are those of one device that never stopped (the example compares, and exits with 1 otherwise).
    """
    for steps, said in ((2, "losses"), (4, "going on after step 1")):
        workers = start(2, example(2, tmp_path, f"--steps={steps}", "--plan_once"))
        first, second = (w.communicate(timeout=240) for w in workers)
        for worker, (_, err) in zip(workers, (first, second), strict=True):
            assert ended_well(worker, err), err[-3000:]
        assert said in first[0]
        assert "losses agree within" in first[0]
        assert "losses" not in second[0]  # one process speaks
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "4"]


@pytest.mark.devices
def test_a_process_that_dies_ends_the_others(tmp_path: pathlib.Path) -> None:
    """With a message, not a hang."""
    command = example(2, tmp_path / "kept", "--steps=2000", "--heartbeat_timeout=5")
    with open(tmp_path / "said", "w") as said:  # a pipe would fill while nobody reads
        one, two = start(2, command, stdout=subprocess.DEVNULL, stderr=said)
        deadline = time.monotonic() + 240
        try:
            # Both are training. Any step will do: the manager keeps the last two.
            while not any(p.name.isdigit() for p in tmp_path.glob("kept/*")):
                assert one.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.5)
            two.kill()
            assert one.wait(timeout=120) != 0
        finally:
            for worker in (one, two):
                worker.kill()
                worker.wait()
    text = (tmp_path / "said").read_text()
    ends = "closed by peer|Connection reset|[Hh]eartbeat|task.* died|unhealthy"
    assert re.search(ends, text), text[-3000:]
