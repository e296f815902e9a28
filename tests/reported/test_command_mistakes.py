"""Mistakes on the command line, and device kinds that name no machine."""

from __future__ import annotations

import pytest

from partir_search import cli
from partir_search.simulator.target.machine import machine_of_kind
from tests.reported.mistakes import (
    says,
)


@pytest.mark.parametrize(
    ("kind", "name", "gb"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100_40gb", 40),
        ("NVIDIA A100-SXM4-80GB", "a100", 80),
        ("NVIDIA A100 80GB PCIe", "a100", 80),
        ("Tesla V100-SXM2-16GB", "v100_16gb", 16),
        ("Tesla V100-SXM2-32GB", "v100", 32),
        ("NVIDIA H100 80GB HBM3", "h100", 80),
        ("NVIDIA H100 64GB", "h100_64gb", 64),
        ("NVIDIA H200", "h200", 141),
        ("NVIDIA B200", "b200", 180),
        ("NVIDIA GB200", "gb200", 186),
        ("NVIDIA L4", "l4", 24),
        ("NVIDIA L40S", "l40s", 48),
        ("AMD Instinct MI300X", "mi300x", 192),
    ],
)
def test_memory_in_a_device_kind(kind: str, name: str, gb: int) -> None:
    machine = machine_of_kind(kind)
    assert (machine.name, machine.hbm_bytes) == (name, gb * 10**9)


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("NVIDIA GB300", "gb200"),
        ("NVIDIA GH200 480GB", ""),
        ("NVIDIA L40", "l4"),
        ("TPU v8p", "tpu_v5p"),
        ("AMD Instinct MI355X", "mi300x"),
    ],
)
def test_unknown_device_kinds(kind: str, near: str) -> None:
    with says(f"no figures for device kind {kind!r}; the nearest are of {near}"):
        machine_of_kind(kind)


OWN = "tests.reported.mistakes"
WORDS = [f"--args={OWN}:example_args", "--mesh=batch:2,model:4", "--machine=cpu"]
COMMANDS: list[tuple[list[str], str]] = [
    ([f"{OWN}:setp", *WORDS], "did you mean 'step'?"),
    (["tests/reported/mistakes.py:step", *WORDS], f"did you mean {OWN}:step?"),
    ([":step", *WORDS], "'' names no module; write it as package.module:function"),
    ([f"{OWN}:STATE", *WORDS], "must both be functions"),
    ([f"{OWN}:keyed", *WORDS], "failed: KeyError: 'no such key' ("),
    ([f"{OWN}:step", f"--args={OWN}:failing", *WORDS[1:]], "failed: KeyError: 'boom' ("),
    ([f"{OWN}:step", *WORDS, "--mesh=2x4"], "(write it as batch:2,model:4): '2x4' is no axis"),
    ([f"{OWN}:step", *WORDS, "--mesh=batch:0"], "mesh axis 'batch' has size 0"),
    ([f"{OWN}:step", *WORDS, "--machine=TPU v5e"], "did you mean 'tpu_v5e'?"),
    ([f"{OWN}:step", *WORDS, "--out="], "--out is an empty path"),
    ([f"{OWN}:step", *WORDS, f"--out={__file__}"], "--out: cannot make the folder"),
    ([f"{OWN}:step", *WORDS, f"--cache={__file__}"], "--cache: cannot make the folder"),
    ([f"{OWN}:step", *WORDS, "--verify=tpu_v5"], "unknown target 'tpu_v5'"),
    ([f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1, not 0"),
    (["--donate", "0", f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1"),
    (["--donate", "0", "1", f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1"),
    ([f"{OWN}:step", *WORDS, "--donate=7"], "donate_argnums=(7,)"),
]


@pytest.mark.parametrize("words,message", COMMANDS, ids=map(str, range(len(COMMANDS))))
def test_commands(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each ends with 2 and one line, before a search."""
    monkeypatch.setattr(
        "partir_search.planning.planner.search_noted", lambda *_: pytest.fail("searched")
    )
    assert cli.main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("partir-search: ")
    assert said.count("\n") == 1
    assert message in said


def test_command_positions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.joined_positions(["--donate", "0", "2", "m:f"]) == ["--donate=0,2", "m:f"]
    assert cli.joined_positions(["--donate=0", "m:f"]) == ["--donate=0", "m:f"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", "--donate", f"{OWN}:step", *WORDS])
    assert caught.value.code == 2
    assert "is no position of an argument; write 0 or 0,1" in capsys.readouterr().err
