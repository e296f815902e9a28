"""The subcommand theory: its table, its JSON and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

import partir_search as ps
from partir_search import cli
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.theory import fsdp, links, memory, pipelines
from partir_search.theory.model_sizes import MODEL_SIZES
from partir_search.theory.rows import Row
from partir_search.theory.setting import Setting
from partir_search.theory.table import theory_rows

LLAMA = ["theory", "--model=llama3-405b", "--machine=h100", "--devices=16384"]


def _values(rows: list[Row]) -> dict[str, float]:
    return {f"{row.topic}: {row.name}": row.value for row in rows}


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(LLAMA) == 0
    printed = capsys.readouterr().out
    assert "llama3-405b on 16,384 h100, 16,777,216 tokens a step" in printed
    for line in ("405.9 G parameters", "15,231 tokens", "8,812 devices", "48.4%", "p/(p + k)"):
        assert line in printed


def test_json_has_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*LLAMA, "--stages=8", "--chunks=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setting"]["stages"] == 8
    assert found["setting"]["microbatches"] == 8
    model, machine = MODEL_SIZES["llama3-405b"], ps.MACHINES["h100"]
    rows = [Row(**row) for row in found["rows"]]
    assert rows == theory_rows(Setting(model, machine, 16384, stages=8, chunks=2))


def test_rows_are_the_formulas() -> None:
    model, machine = MODEL_SIZES["llama3-405b"], ps.MACHINES["h100"]
    values = _values(theory_rows(Setting(model, machine, 16384)))
    between = links.link_between(machine)
    assert between
    rate = machine.matmul_flops_per_s("bfloat16")
    of = "links between nodes: tokens to hide it, forward"
    assert values[of] == fsdp.tokens_needed(between, rate)
    topic = "FSDP between nodes, tensor parallel by 8"
    n = model.layer_parameters / 8
    excess = sum(
        fsdp.excess_seconds(n, 8192, 2048, between, rate, of)
        for of in (fsdp.FORWARD, fsdp.BACKWARD)
    )
    assert values[f"{topic}: not hidden at least"] == pytest.approx(126 * excess)
    topic = "pipelines of 16 stages, 16 microbatches"
    assert values[f"{topic}: idle, 4 chunks"] == pytest.approx(0.190, abs=1e-3)
    # Padded to 128 layers. Sums of gradients hide sends of the backward pass.
    seconds = values[f"{topic}: seconds of a step, 4 chunks"]
    tokens = 16 * 8192
    flops = 6 * tokens * (8 * model.layer_parameters + 8 * 8192 * model.width)
    head = 6 * tokens * model.vocab * model.width / 16
    sums = 16 * 8 * model.layer_parameters / 8 * 8 / machine.attained_hbm_bytes_per_s
    alone = (flops / (8 * rate) + sums) * (1 + 15 / 64) + head / (8 * rate)
    sends = (4 * 16 - 1) * links.permute_seconds(2 * 8192 * model.width / 8, between)
    assert seconds == pytest.approx(alone + sends)
    schedule = PipelineSchedule(16, 16, 4)
    kept = memory.activation_bytes(model, 8192) / 8 * 8 * schedule.in_flight() / 4
    assert values["memory of a device: activations of a pipeline, 4 chunks"] == kept
    assert values[f"{topic}: serial factor"] == pipelines.serial_factor(16, 16)


def test_settings_without_pipelines_or_a_network() -> None:
    """One stage; fewer sequences than pipelines; no link between nodes; a torus."""
    model = MODEL_SIZES["llama3-8b"]

    def topics(machine: str, **given: Any) -> set[str]:
        return {row.topic for row in theory_rows(Setting(model, ps.MACHINES[machine], **given))}

    assert not any("pipelines" in t for t in topics("h100", devices=64, stages=1))
    few = {"devices": 64, "stages": 8, "tensor": 1, "tokens": 8192}
    assert not any("pipelines" in t for t in topics("h100", **few))
    assert "links between nodes" not in topics("v100", devices=64, stages=2)
    assert "links inside a slice" in topics("tpu_v5e", devices=64, stages=2)
    # Microbatches that no multiple of the stages gives chunks: the plain schedule alone.
    rows = theory_rows(Setting(model, ps.MACHINES["h100"], 64, tokens=6 * 8192, tensor=8, stages=4))
    names = {row.name for row in rows}
    assert "seconds of a step, 1 chunk" in names
    assert "seconds of a step, 2 chunks" not in names


def test_sizes_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes instead of a name; 12 devices are 4 of tensor parallelism and a pipeline of one."""
    sizes = "layers:4,width:64,heads:4,ffn:256,vocab:100"
    assert cli.main(["theory", f"--model={sizes}", "--machine=tpu_v5e", "--devices=12"]) == 0
    assert "pipelines of" not in capsys.readouterr().out


def test_units() -> None:
    for value, unit, text in (
        (2.5e-3, "s", "2.5 ms"),
        (-1.0, "s", "-1 s"),
        (3e9, "bytes", "3 GB"),
        (5e10, "bytes/s", "50 GB/s"),
        (0.25, "share", "25.0%"),
        (4.0853e19, "flops", "40.85 E flops"),
        (13846.2, "tokens", "13,846 tokens"),
        (1.9375, "passes", "1.94 passes"),
    ):
        assert Row("", "", value, unit).text == text


MISTAKES = [
    (["--devices=0"], "--devices is at least 1, not 0"),
    (["--devices=64", "--tensor=3"], "64 devices do not divide into groups of tensor=3 times"),
    (["--devices=64", "--tensor=0"], "tensor is at least 1, not 0"),
    (["--devices=64", "--tokens=0"], "tokens is at least 1, not 0"),
    (["--devices=64", "--model=llama"], "unknown model 'llama'"),
    (["--devices=64", "--machine=h1000"], "unknown machine 'h1000'"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "--model=llama3-8b", "--machine=h100", *given]) == 2
    assert message in capsys.readouterr().err
