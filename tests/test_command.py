"""The command `partir-search`: subcommands, flags, JSON and exit statuses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jsonschema
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search import cli
from partir_search.aot.targets import Target
from partir_search.commands import flags
from partir_search.commands.named_objects import UsageError
from partir_search.plan.report.schema import REPORT_SCHEMA

ENTRY = MODELS["transformer-tiny"].resized(layers=1)
SCHEMA = pathlib.Path(__file__).parent.parent / "docs" / "report.schema.json"


def example_args() -> tuple[Any, ...]:
    """Arguments named by `--args`."""
    return tuple(ENTRY.abstract_args(8))


def example_step(state: Any, batch: Any) -> Any:
    return ENTRY.step(state, batch)


TACTICS = [ps.ManualPartition({"batch": 0}, axis="batch")]
NAMES = ["tests.test_command:example_step", "--args=tests.test_command:example_args"]
WHERE = ["--mesh=batch:2,model:4", "--machine=tpu_v5e"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Outputs of a search and of a known strategy."""
    made = tmp_path_factory.mktemp("plans")
    searched = ["--episodes=30", "--donate", "0", f"--out={made / 'searched'}"]
    assert cli.main(["plan", *NAMES, *WHERE, *searched]) == 0
    known = ["--schedule=bp+z3", "--donate=0", f"--out={made / 'known'}"]
    assert cli.main(["plan", *NAMES, *WHERE, *known]) == 0
    return made


def test_outputs(folder: pathlib.Path) -> None:
    files = {p.name for p in (folder / "searched").iterdir()}
    wanted = {"plan.json", "plan.ir", "report.html", "report.json", "search.json", "search.svg"}
    assert wanted <= files
    saved = json.loads((folder / "searched" / "plan.json").read_text())
    assert saved["function"] == "example_step"
    loaded = ps.load_plan(folder / "searched" / "plan.json")
    assert loaded.fingerprint == saved["fingerprint"]
    assert " elementwise" in (folder / "searched" / "plan.ir").read_text()


def test_reports_as_json(folder: pathlib.Path) -> None:
    """They are valid by the schema, which the docs publish; both forms of a cost agree."""
    assert json.loads(SCHEMA.read_text()) == REPORT_SCHEMA
    jsonschema.Draft202012Validator.check_schema(REPORT_SCHEMA)
    for name in ("searched", "known"):
        report = json.loads((folder / name / "report.json").read_text())
        jsonschema.validate(report, REPORT_SCHEMA)
        saved = json.loads((folder / name / "plan.json").read_text())
        assert report["cost"]["seconds"] == saved["seconds"]
        assert report["cost"]["peak_bytes"] == saved["peak_bytes"]
        assert sum(report["limits"].values()) == pytest.approx(saved["seconds"])
        assert report["arguments"][-1]["spec"] == [["batch"]] or name == "searched"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, "cost": {}}, REPORT_SCHEMA)


def test_json_is_alone_on_stdout(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(folder / "known" / "plan.json")
    assert cli.main(["replay", *NAMES, file, "--donate=0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((folder / "known" / "report.json").read_text())
    assert cli.main(["explain", *NAMES, file, "batch", "--json"]) == 0
    assert "dim 0" in "".join(json.loads(capsys.readouterr().out)["lines"])
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT_SCHEMA


def test_saved_plans(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / name / "plan.json") for name in ("searched", "known")]
    assert cli.main(["compare", *NAMES, *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"before", "after", "arguments", "collectives"}
    assert cli.main(["compare", *NAMES, *files]) == 0
    assert "figures of a step on a device" in capsys.readouterr().out
    assert cli.main(["explain", *NAMES, files[1], "batch"]) == 0
    assert "batch: dim 0" in capsys.readouterr().out
    assert cli.main(["explain", *NAMES, files[1], "btach"]) == 2
    assert cli.main(["replay", *NAMES, str(folder / "none.json")]) == 2
    assert "there is no plan at" in capsys.readouterr().err


class Found:
    """Stands for a verification."""

    target, changes, unexplained = "tpu_v5e:2x4", (), ("a gather",)
    peak_bytes, compile_seconds, confirmed = (1.0, 2.0), 1.0, False


def test_verify_fails_on_differences(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on a bad target before the plan is replayed."""
    file = str(folder / "known" / "plan.json")
    monkeypatch.setattr(Target, "mesh", lambda self, shape: None)
    monkeypatch.setattr(ps.Plan, "verify", lambda self, target: Found())
    assert cli.main(["verify", *NAMES, file, "tpu_v5e:2x4", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unexplained"] == ["a gather"]
    monkeypatch.setattr(Found, "confirmed", True)
    assert cli.main(["verify", *NAMES, file, "tpu_v5e:2x4", "--json"]) == 0
    assert cli.main(["verify", *NAMES, file, "tpu_v5"]) == 2
    assert "unknown target 'tpu_v5'" in capsys.readouterr().err


def test_a_plan_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--schedule=none", "--goals=fit=1.5MB,fastest", "--remat=never"]
    assert cli.main(["plan", *NAMES, *WHERE, *words]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "The plan does not fit: " in said
    assert "of 1.5 MB. What would help: " in said


@pytest.mark.parametrize("command", ["strategies", "experts"])
def test_strategies(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, *NAMES, *WHERE]) == 0
    said = capsys.readouterr().out
    assert "known strategies, simulated on" in said
    assert "BP batch parallel" in " ".join(said.split())
    assert cli.main([command, *NAMES, *WHERE, "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert first["fits"]


def test_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    step = ps.auto_partition(ps_mesh(), machine="tpu_v5e")(ENTRY.step)
    known = ps.known_strategies(step, ps_mesh(), *example_args(), machine="tpu_v5e")
    full = next(name for name in known if name.startswith("BP(model)+Z3"))
    assert flags.schedule_of(full, known) is known[full]
    named = flags.schedule_of("z3+BP", known)
    fastest = min(
        plan.cost.seconds for name, plan in known.items() if name.count("+Z3") and "MP" not in name
    )
    assert named.cost.seconds == pytest.approx(fastest)
    assert cli.main(["plan", *NAMES, *WHERE, "--schedule=tests.test_command:TACTICS"]) == 0
    assert "P('batch',)" in capsys.readouterr().out
    assert cli.main(["plan", *NAMES, *WHERE, "--schedule=zz"]) == 2
    assert "no strategy 'zz'; write a full name such as" in capsys.readouterr().err


def ps_mesh() -> Any:
    from jax.sharding import AbstractMesh

    return AbstractMesh((2, 4), ("batch", "model"))


def test_flags() -> None:
    fit, fastest, sent = flags.goals("fit=12.5GB,fastest,sent=hosts")
    assert (fit, fastest) == (ps.Fit(12.5e9), ps.Fastest())
    assert sent == ps.FewestBytes("hosts")
    assert flags.goals("fit=1GiB") == [ps.Fit(2.0**30)]
    assert flags.counts("1,2,4") == (1, 2, 4)
    assert [flags.three_ways(x) for x in ("auto", "always", "never")] == ["auto", True, False]
    assert cli.joined_positions(["--donate", "0", "2", "m:f"]) == ["--donate=0,2", "m:f"]
    assert cli.joined_positions(["--donate=0", "m:f"]) == ["--donate=0", "m:f"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--goals=quickest"], "'quickest' is no goal: write fit=16GB"),
        (["--goals=fit=16XB"], "has none of the units"),
        (["--microbatches=two"], "'two' is no number of microbatches; write 4 or 1,2,4"),
        (["--remat=yes"], "'yes' is none of auto, always, never"),
        (["--donate"], "expected one argument"),
    ],
)
def test_bad_flags(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", *NAMES, *WHERE, *words])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_colon", NAMES[1], *WHERE], "write it as package.module:function"),
        (["no.such:step", NAMES[1], *WHERE], "'no.such' cannot be imported from"),
        (["tests.test_command:nothing", NAMES[1], *WHERE], "has no 'nothing'; it has "),
        ([NAMES[0], "--args=tests.test_command:NAMES", *WHERE], "must both be functions"),
        ([NAMES[0], NAMES[1], "--mesh=2x4", WHERE[1]], "write it as batch:2,model:4"),
        ([NAMES[0], NAMES[1], WHERE[0], "--machine=abacus"], "abacus"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises((UsageError, ValueError)):
        cli.main(["plan", *words, "--debug"])


def test_version_help_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as caught:
            cli.main(list(words))
        assert caught.value.code == 0
        return capsys.readouterr().out

    assert said("--version") == "partir-search 0.2.0\n"
    text = said("--help")
    assert "partir-search compare train:step a.json b.json" in text
    assert "3 if the plan does not fit" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "--schedule=bp+z3" in said("plan", "--help")
    assert "replay compare explain verify theory schema" in said("--print-completion", "bash")
