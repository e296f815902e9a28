"""Results in notebooks: HTML, progress, pictures of tiles; and the notebooks of `examples/`."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from partir_search.messages.console import new_table
from partir_search.plan.profiles.comparison import ScopeSeconds, TraceComparison
from partir_search.plan.report import progress_cell

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = {p.stem: p for p in sorted((ROOT / "examples").glob("*.ipynb"))}
MESH = AbstractMesh((2, 4), ("data", "model"))
SCHEDULE = [
    ps.ManualPartition({"batch": 0}, axis="data"),
    ps.ManualPartition({"state/w": 1}, axis="model"),
]


def step(state: Any, batch: Any) -> Any:
    return {name: w - jnp.sum(batch) for name, w in state.items()}


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    state = {"<b>": jnp.ones((3,)), "w": jnp.ones((8, 16))}
    planned = ps.auto_partition(MESH, machine="tpu_v5e", schedule=SCHEDULE)(step)
    return planned.plan(state, jnp.ones((4, 6)))


# HTML ------------------------------------------------------------------------------------------


def test_plans_and_tables_are_html(plan: ps.Plan) -> None:
    """Small, escaped, without scripts, and without colors of a background."""
    shown = (
        plan,
        ps.compare(plan, plan.what_if("batch", P()).after),
        ps.known_strategies(step, MESH, {"w": jnp.ones((8, 16))}, jnp.ones((4, 6)), machine="cpu"),
        ps.report.arguments_table(plan),
        ps.report.kernels_table(plan),
        TraceComparison((ScopeSeconds("update", 1e-3, 2e-3),), 1, "profile"),
    )
    for result in shown:
        text = result._repr_html_()
        assert re.search(r"<table\b", text)
        assert len(text) < 30_000
        assert not re.search(r"<script|<b>:|https?:|background:#|background:white", text)
        bare = re.sub(r"<(br|p|td|th)\b[^>]*>|<style>.*?</style>", "", text, flags=re.DOTALL)
        for tag in ("table", "details", "div", "tr"):
            assert bare.count(f"<{tag}") == bare.count(f"</{tag}>")
    assert "state/&lt;b&gt;" in plan._repr_html_()
    assert "P(&#x27;data&#x27;,)" in plan._repr_html_()


def test_tables_give_notebooks_html_and_text() -> None:
    table = new_table("name", title="a & b")
    table.add_row("x < y")
    found = table._repr_mimebundle_()
    assert "<caption>a &amp; b</caption>" in found["text/html"]
    assert "x &lt; y" in found["text/html"]
    assert "x < y" in found["text/plain"]


def test_results_print_as_their_text(plan: ps.Plan) -> None:
    found = ps.compare(plan, plan)
    assert repr(found) == str(found)
    assert "figures of a step" in repr(found)


# Progress --------------------------------------------------------------------------------------


class Cell:
    """Stand-in for IPython's display of one output."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, html: str, display_id: bool) -> Cell:
        assert display_id
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.mark.parametrize("kernel", [True, False])
def test_progress_is_a_bar_in_the_cell(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a kernel; an IPython shell in a terminal has none."""
    cell = Cell()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(kernel=None) if kernel else types.SimpleNamespace()
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.HTML, display.display = str, cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress_cell, "SECONDS", 0.0)
    planned = ps.auto_partition(MESH, machine="tpu_v5e", episodes=8)(step)
    planned.plan({"w": jnp.ones((8, 16))}, jnp.ones((4, 6)))
    if not kernel:
        assert not cell.shown
        return
    assert "0/8" in cell.shown[0]
    assert any("best so far" in text for text in cell.shown)
    assert re.search(r"<progress value=8 max=8></progress> 8/8, .* found \S+ ms", cell.shown[-1])


# Tiles -----------------------------------------------------------------------------------------


def test_tiles_are_those_of_the_shardings(mesh: jax.sharding.Mesh) -> None:
    """Slices by device, for dims tiled on one axis, on two, and on none."""
    schedule = [
        ps.ManualPartition({"batch": 0, "state/w": 1}, axis="model"),
        ps.ManualPartition({"batch": 0, "state/v": 0}, axis="batch"),
    ]
    planned = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)
    state = {"w": jnp.ones((8, 16)), "v": jnp.ones((6, 4)), "s": jnp.ones(())}
    plan = planned.plan(state, jnp.ones((16, 6)))
    arrays = jax.tree.leaves(plan.planned_arrays)
    shardings = jax.tree.leaves(plan.in_shardings)
    assert len(arrays) == 4
    assert any(max(map(len, filter(None, a.spec)), default=0) > 1 for a in arrays)
    for array, sharding in zip(arrays, shardings, strict=True):
        assert array.local_shape == sharding.shard_shape(array.shape)
        held = sharding.devices_indices_map(array.shape)
        for position, device in enumerate(mesh.devices.flat):
            empty = np.zeros(array.shape)
            assert empty[held[device]].shape == empty[array.tiles[position]].shape
            empty[held[device]] = 1
            assert empty[array.tiles[position]].all()
    assert repr(arrays[-1]) == "f32[16,6] P(('batch', 'model'),)"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # treescope's own, of numpy
def test_treescope_shows_the_tiles(plan: ps.Plan) -> None:
    treescope = pytest.importorskip("treescope")
    text = treescope.render_to_text(plan)
    assert "f32[8,16] P(None, 'model')" in text
    assert "f32[4,6] P('data',)" in text
    page = treescope.render_to_html(plan, compressed=False)
    assert "[8, 4] on a device" in page
    figure = treescope.render_array_sharding(plan.planned_arrays[0][0]["w"])
    assert "3,7" in str(figure.treescope_part)  # the devices of the last tile


# The notebooks ---------------------------------------------------------------------------------


def cells(name: str) -> list[str]:
    """Code cells of a notebook."""
    found = json.loads(NOTEBOOKS[name].read_text())["cells"]
    return ["".join(c["source"]) for c in found if c["cell_type"] == "code"]


def test_there_are_three_and_the_pages_name_them() -> None:
    assert len(NOTEBOOKS) == 3
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert all(f"{name}.ipynb" in page.read_text() for name in NOTEBOOKS), page


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    notebook = json.loads(NOTEBOOKS[name].read_text())
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell["metadata"]
        assert max(map(len, cell["source"])) <= 121
    pytest.importorskip("nbformat").validate(notebook)
    first = cells(name)[0]
    assert "XLA_FLAGS" in first
    assert "import jax" not in first
    assert '%pip install -q "partir_search[examples]"' in first


@pytest.mark.devices
def test_the_first_notebook_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, after its first cell, with a short search."""
    monkeypatch.chdir(tmp_path)
    plain = ps.auto_partition
    monkeypatch.setattr(ps, "auto_partition", lambda *a, **kw: plain(*a, episodes=10, **kw))
    names: dict[str, Any] = {}
    for code in cells("ten_minutes")[1:]:
        exec(compile(code, "ten_minutes.ipynb", "exec"), names)
    assert names["losses"][-1] < names["losses"][0]
    assert (tmp_path / "report.html").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_in_a_kernel(name: str, tmp_path: pathlib.Path) -> None:
    """Every cell, with HTML outputs and no line on stderr."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS")}
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**env, "PYTHONPATH": str(ROOT)})
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    assert sum("text/html" in o.get("data", {}) for o in outputs) >= 3
    assert not [o.text for o in outputs if o.get("name") == "stderr"]
    assert any("<progress" in o.get("data", {}).get("text/html", "") for o in outputs)
