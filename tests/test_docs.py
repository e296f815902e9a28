"""Every block of the documentation runs; what it says of errors is what they say."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import warnings
from typing import Any

import jax
import pytest

import partir_search

pytestmark = pytest.mark.devices

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
README = ROOT / "README.md"
ALONE = ("index", "story", "README")  # pages that begin with nothing
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: pathlib.Path) -> list[tuple[str, str, str]]:
    """(language, rest of the line, text) of each fenced block."""
    return BLOCK.findall(page.read_text())


def run(code: str, names: dict[str, Any], page: pathlib.Path) -> None:
    exec(compile(code, str(page), "exec"), names)


def failure(code: str, names: dict[str, Any], page: pathlib.Path) -> str:
    """What a block raises, in words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(code, names, page)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def compare(said: str, found: str) -> None:
    """Holds what a page says against what came, `...` standing for anything."""
    found, at = " ".join(found.split()), 0
    for part in " ".join(said.split()).split("..."):
        at = found.find(part.strip(), at)
        assert at >= 0, (part, found)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks of `index.md` define, without those that only show something."""
    names: dict[str, Any] = {}
    page = ROOT / "docs" / "index.md"
    for language, _, code in blocks(page):
        if language == "python" and not re.search(r"report\(|check\(", code):
            run(code, names, page)
    return names


@pytest.mark.parametrize(
    "page", [p for p in (README, *PAGES) if "```python" in p.read_text()], ids=lambda p: p.stem
)
def test_blocks_run(
    page: pathlib.Path,
    begun: dict[str, Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {} if page.stem in ALONE else dict(begun)
    if "state" in names:  # which a page donates
        names["state"] = jax.tree.map(lambda x: x.copy(), names["state"])
    found = blocks(page)
    after = [*found[1:], ("", "", "")]
    for (language, rest, code), (_, kind, said) in zip(found, after, strict=True):
        if language != "python":
            continue
        needed = re.search(r"needs (\w+)", rest)
        if needed and importlib.util.find_spec(needed[1]) is None:
            continue
        if "raises" in rest:
            assert said.strip(), code
            compare(said, failure(code, names, page))
            continue
        run(code, names, page)
        printed = capsys.readouterr().out
        if "prints" in kind:
            compare(said, printed)


def test_errors_are_many() -> None:
    assert len(re.findall(r"^```python raises$", (ROOT / "docs/errors.md").read_text(), re.M)) >= 20


def test_readme_points_at_what_is_there() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (ROOT / link).exists(), link


def test_site_builds(tmp_path: pathlib.Path) -> None:
    """With every page in the navigation, every link and reference resolved (`strict`)."""
    code, said = _build(ROOT, tmp_path / "site")
    assert code == 0, said
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(str(p.relative_to(ROOT / "docs")) in navigation for p in PAGES)
    page = (tmp_path / "site" / "api" / "index.html").read_text()
    assert "donate_argnums" in page
    assert "what_if" in page
    found = "".join(p.read_text() for p in (tmp_path / "site").rglob("index.html"))
    described = set(re.findall(r'id="partir_search\.(\w+)"', found))
    assert not set(partir_search.__all__) - described, "public names that no page describes"
    assert "<span style" in (tmp_path / "site" / "rules" / "index.html").read_text()  # coloured

    headings = {p: _headings(p.read_text()) for p in PAGES}
    assert sum(headings.values()) > 250
    for source, count in headings.items():
        name = source.relative_to(ROOT / "docs").with_suffix("")
        at = tmp_path / "site" / ("" if name.name == "index" else name) / "index.html"
        assert len(re.findall(r"<h[1-6]\b[^>]* id=", at.read_text())) >= count, source


def _headings(markdown: str) -> int:
    """Number of headings outside of fenced blocks."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return len(re.findall(r"^#{1,6} ", prose, re.MULTILINE))


def test_a_broken_link_fails_the_site(tmp_path: pathlib.Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\nSee [another](missing.md).\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: pages\ntheme: {name: mkdocs}\n")
    code, said = _build(tmp_path, tmp_path / "site")
    assert code != 0
    assert "missing.md" in said


def test_a_broken_anchor_fails_the_site(tmp_path: pathlib.Path) -> None:
    """With the settings of the project's site."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n[There](#missing), [here](#a-page).\n")
    settings = re.search(
        r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert settings
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: pages\ntheme: {{name: mkdocs}}\n{settings[0]}"
    )
    code, said = _build(tmp_path, tmp_path / "site")
    assert code != 0
    assert "#missing" in said
    assert "#a-page" not in said


def _build(folder: pathlib.Path, site: pathlib.Path) -> tuple[int, str]:
    """Exit code and last words of `mkdocs build --strict`."""
    builder = shutil.which("mkdocs", path=str(pathlib.Path(sys.executable).parent))
    assert builder, "mkdocs is of the test extra"
    command = [builder, "build", "--strict", f"--site-dir={site}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout[-2000:] + done.stderr[-3000:]


def test_judged_plans_are_those_of_the_page() -> None:
    """Every row of seconds in docs/evidence/simulator.md follows from the rows that are kept."""
    rows = [json.loads(line) for line in (ROOT / "docs/truth.jsonl").read_text().splitlines()]
    page = (ROOT / "docs/evidence/simulator.md").read_text()
    names = {"llama": "LLaMA", "t5": "T5", "moe": "mixture of experts", "unet": "U-Net"}
    names["graph-net"] = "graph network"
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        assert row["confirmed"]
        chip = row["target"].removeprefix("tpu_").partition(":")[0]
        key = chip, names.get(row["model"], row["model"])
        ratios.setdefault(key, []).append(row["predicted_s"] / row["judged_s"])
    assert len(ratios) == 12
    for (chip, name), held in ratios.items():
        (line,) = re.findall(rf"^\| {chip} \| {name} \| {len(held)} \| .*$", page, re.MULTILINE)
        assert f"| {min(held):.2f}..{max(held):.2f} |" in line
