"""Launchers of `examples/launch/`, with stand-ins for the clusters' own commands."""

from __future__ import annotations

import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
import yaml

from tests.launching import ROOT, cluster

LAUNCH = ROOT / "examples" / "launch"
PYPROJECT = ROOT / "pyproject.toml"
MESH = "--mesh=data:2,model:4"
WORDS = [MESH, "--machine=tpu_v5e", "--steps=3"]
COMMANDS = {
    "slurm.sbatch": {},
    "tpu_pod.sh": {"TPU": "slice", "ZONE": "zone"},
    "xpk.sh": {"CLUSTER": "cluster", "IMAGE": "image"},
}


def launched(name: str, env: dict[str, str], *words: str) -> Any:
    command = ["bash", str(LAUNCH / name), *words]
    environment = {**env, **COMMANDS[name]}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """Job and container of the JobSet."""
    (replicated,) = yaml.safe_load((LAUNCH / "gke_jobset.yaml").read_text())["spec"][
        "replicatedJobs"
    ]
    job = replicated["template"]["spec"]
    return job, job["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_process_gets_the_command(name: str, tmp_path: pathlib.Path) -> None:
    """The words arrive whole, in the folder of the clone, once per process."""
    env = cluster(tmp_path)
    (tmp_path / "record").mkdir()
    done = launched(name, {**env, "RECORD": str(tmp_path / "record")}, MESH, "--machine=a b.json")
    assert done.returncode == 0, done.stderr
    kept = sorted((tmp_path / "record").iterdir())
    assert [k.name for k in kept] == ["0", "1"]
    for record in kept:
        where, *words = record.read_text().splitlines()
        assert pathlib.Path(where).resolve() == ROOT
        assert words == ["examples/launch/train.py", "--cluster", MESH, "--machine=a b.json"]


@pytest.mark.parametrize("name", ["tpu_pod.sh", "xpk.sh"])
def test_a_missing_name_is_said(name: str, tmp_path: pathlib.Path) -> None:
    env = {k: v for k, v in cluster(tmp_path).items() if k not in COMMANDS[name]}
    command = ["bash", str(LAUNCH / name), MESH]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "name of the" in done.stderr


def test_slurm_without_words_has_an_axis_over_nodes(tmp_path: pathlib.Path) -> None:
    env = {**cluster(tmp_path), "RECORD": str(tmp_path)}
    assert launched("slurm.sbatch", env).returncode == 0
    assert (tmp_path / "1").read_text().splitlines()[-1] == "--mesh=data:2,model:8"


def test_jobset_has_as_many_chips_as_its_mesh() -> None:
    job, train = container()
    chips = train["resources"]["limits"]["google.com/tpu"]
    topology = job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    mesh = [int(n) for n in re.findall(r":(\d+)", train["command"][-1])]
    assert job["parallelism"] == job["completions"]
    assert math.prod(mesh) == math.prod(map(int, topology.split("x")))
    assert math.prod(mesh) == chips * job["parallelism"]


def losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"^step \d+: loss (\S+)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process with 8 devices."""
    env = cluster(tmp_path_factory.mktemp("alone"))
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    command = [sys.executable, str(LAUNCH / "train.py"), *WORDS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return losses(done.stdout)


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize("name", [*COMMANDS, "gke_jobset.yaml"])
def test_two_processes_train(
    name: str, tmp_path: pathlib.Path, of_one_process: list[float]
) -> None:
    """The losses are those of one process, and one process speaks."""
    env = cluster(tmp_path)
    if name in COMMANDS:
        done = launched(name, env, *WORDS)
    else:
        command = [*container()[1]["command"][:-1], *WORDS]
        done = subprocess.run(
            ["srun", *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = losses(done.stdout)
    assert len(found) == 3
    assert found[2] < found[0]
    np.testing.assert_allclose(found, of_one_process, rtol=1e-5)


# Publishing ------------------------------------------------------------------------------------


def steps() -> dict[str, str]:
    """Commands of the publishing workflow's first job, by name."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())
    return {s["name"]: s["run"] for s in workflow["jobs"]["build"]["steps"] if "run" in s}


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("{}", 1), ("v{}.1", 1)])
def test_a_tag_that_is_not_the_version_stops_a_release(tag: str, code: int) -> None:
    import partir_search

    env = {"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": tag.format(partir_search.__version__)}
    command = ["bash", "-c", steps()["the tag is the version"]]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout


def test_a_release_has_the_address_of_its_repository(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text())
    env = {"PATH": "/usr/bin:/bin", "GITHUB_SERVER_URL": "https://git", "GITHUB_REPOSITORY": "a/b"}
    command = ["bash", "-c", steps()["the repository's address"]]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=60)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Homepage"] == "https://git/a/b"
    assert all(url.startswith("https://git/a/b") for url in urls.values())


@pytest.mark.long
def test_ignored_lines_are_the_mistakes_of_a_type_checker(tmp_path: pathlib.Path) -> None:
    """Each line of `tests/typed/rejected.py` that is marked gives an error of the marked kind."""
    text = (ROOT / "tests/typed/rejected.py").read_text()
    marked = dict(re.findall(r"^    (.+?)  # type: ignore\[([\w-]+)\]", text, re.MULTILINE))
    bare = tmp_path / "rejected.py"
    bare.write_text(re.sub(r"  # type: ignore\[[\w-]+\]", "", text))
    command = [sys.executable, "-m", "mypy", f"--config-file={PYPROJECT}", str(bare)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    lines = bare.read_text().splitlines()
    found = {
        lines[int(n) - 1].strip().partition("  # ")[0]: kind
        for n, kind in re.findall(r"rejected\.py:(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE)
    }
    assert found == marked
    assert len(found) == 8


@pytest.mark.long
def test_pyright_finds_the_same_mistakes(tmp_path: pathlib.Path) -> None:
    """With pyright installed (`pip install pyright`, which needs node), and no others."""
    checker = shutil.which("pyright")
    if checker is None:
        pytest.skip("no pyright here")
    text = (ROOT / "tests/typed/rejected.py").read_text()
    (tmp_path / "rejected.py").write_text(re.sub(r"  # type: ignore\[[\w-]+\]", "", text))
    (tmp_path / "accepted.py").write_text((ROOT / "tests/typed/accepted.py").read_text())
    options = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    command = [checker, f"--pythonpath={sys.executable}", "--outputjson", f"--project={tmp_path}"]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300).stdout)
    found = said["generalDiagnostics"]
    assert {pathlib.Path(each["file"]).name for each in found} == {"rejected.py"}
    lines = [n for n, line in enumerate(text.splitlines()) if "# type: ignore[" in line]
    assert sorted(each["range"]["start"]["line"] for each in found) == lines
