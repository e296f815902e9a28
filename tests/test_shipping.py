"""The wheel and the source archive: what is in them, and that the wheel works elsewhere."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile

import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

USED = """
import jax, jax.numpy as jnp, partir_search as ps
from jax.sharding import AbstractMesh

def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

mesh = AbstractMesh((2, 4), ("batch", "model"))
shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (4096, 64))]
schedule = [ps.ManualPartition({"x": 0}, axis="batch")]
plan = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step).plan(*shapes)
plan.save_report("report.html")
print(ps.__file__, plan.collective_counts["all_reduce"])
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """Wheel and source archive, built of a copy with the setuptools that is installed."""
    out, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "partir_search",
        copy / "partir_search",
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
    )
    command = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={out}", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_what_is_shipped(archives: tuple[pathlib.Path, pathlib.Path]) -> None:
    """All modules and the type marker, and nothing of tests, models and experiments."""
    wheel, source = archives
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(p.relative_to(ROOT)) for p in (ROOT / "partir_search").rglob("*.py")}
    assert ours | {"partir_search/py.typed"} <= names
    (about,) = (n for n in names if n.endswith("/METADATA"))
    metadata = zipfile.ZipFile(wheel).read(about).decode()
    for line in ("Project-URL: Changelog", "Author: ", "Keywords: jax", "Classifier: Typing"):
        assert f"\n{line}" in metadata
    assert {"tpu", "cuda", "examples"} <= set(re.findall(r"\nProvides-Extra: (\w+)", metadata))
    folders = {n.split("/")[0] for n in names}
    assert {f for f in folders if "dist-info" not in f} == {"partir_search"}
    with tarfile.open(source) as archive:
        members = archive.getnames()
    assert any(m.endswith("/partir_search/api.py") for m in members)
    assert any(m.endswith("/README.md") for m in members)


def test_the_wheel_works_in_a_clean_environment(
    archives: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """Installed in an environment of its own, run from another folder. What it depends on is taken
    from this one: the registry is not asked.
    """
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}"]
    install = [*pip, "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(archives[0])], check=True, timeout=120)
    here = [p for p in sys.path if p.endswith("site-packages")]
    found = subprocess.run(
        [str(python), "-c", "import site; print(site.getsitepackages()[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = pathlib.Path(found.stdout.strip())
    (packages / "others.pth").write_text("\n".join(here) + "\n")
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [str(python), "-c", USED],
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    where, count = done.stdout.split()[-2:]
    assert where.startswith(str(packages))
    assert count == "1"
    assert (tmp_path / "work" / "report.html").exists()
    script = [str(python.parent / "partir-search"), "plan", "--help"]
    said = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "--machine" in said


def test_version_and_changes() -> None:
    assert "version" in PROJECT["dynamic"]
    first = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first
    assert first.group(1) == partir_search.__version__


def test_import_leaves_slow_libraries_for_when_they_are_used() -> None:
    code = "import sys, partir_search; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "jax" in found
    assert not {"scipy", "rich", "flax", "optax", "absl"} & found


def test_machine_keeps_its_old_name_for_a_version() -> None:
    from partir_search.machine import __getattr__ as old

    with pytest.warns(DeprecationWarning, match=r"simulator\.target\.machine\.find_machine"):
        assert old("find_machine")("tpu_v5e") is partir_search.MACHINES["tpu_v5e"]


def test_renamed_names_warn() -> None:
    for old, new in (("experts", "known_strategies"), ("Experts", "KnownStrategies")):
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(partir_search, old) is getattr(partir_search, new)
    with pytest.warns(DeprecationWarning, match="FrontEndParts is now SplitArguments"):
        assert partir_search.FrontEndParts is partir_search.SplitArguments
    with pytest.warns(DeprecationWarning, match="leave=.* is now exclude="):
        tactic = partir_search.AutomaticPartition(leave=("state/**",))
    assert tactic == partir_search.AutomaticPartition(exclude=("state/**",))


def test_renamed_members_of_plans_warn() -> None:
    mesh, x = AbstractMesh((2,), ("batch",)), np.zeros((4, 4), np.float32)
    plan = partir_search.auto_partition(mesh, machine="cpu", episodes=2)(lambda x: x + 1).plan(x)
    value = plan.arguments()[0][1]
    with pytest.warns(DeprecationWarning, match="why_whole is now why_replicated"):
        assert plan.why_whole(value) == plan.why_replicated(value)
    with pytest.warns(DeprecationWarning, match="experts is now known"):
        assert plan.searches[0].experts == plan.searches[0].known
    with pytest.warns(DeprecationWarning, match="experts_table is now strategies_table"):
        partir_search.report.experts_table(plan)
    with pytest.warns(DeprecationWarning, match="follow= is now shardings_like="):
        partir_search.auto_partition(mesh, machine="cpu", follow=plan)
