"""Searches stopped by ctrl-C: the note, and the plan of the best strategy so far."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search import cli
from partir_search.mcts import search as engine
from partir_search.planning import planner
from tests.reported.mistakes import MESH, STATE, decorated, rows, step

COMMAND = [
    *("plan", "tests.reported.mistakes:step", "--args=tests.reported.mistakes:example_args"),
    *("--mesh=batch:2,model:4", "--machine=cpu", "--episodes=50"),
]


def stop(record: Any) -> None:
    """Callback that raises as Python does for the signal, unless a shell ignores that."""
    if record.episodes >= 4:
        raise KeyboardInterrupt


def stopped(arguments: Any, **options: Any) -> Any:
    """A step whose planning was stopped, and the notes of the error."""
    made = decorated(progress=stop, episodes=50, **options)
    with pytest.raises(KeyboardInterrupt) as caught:
        made.plan(*arguments)
    return made, caught.value.__notes__


def test_plan_of_the_best_strategy_runs() -> None:
    made, (progress, remedy) = stopped((STATE, rows()))
    assert re.search(r"stopped after 4 of 50 strategies; the best so far has the obj", progress)
    assert "step.best_so_far(...), with the same arguments" in remedy
    plan = made.best_so_far(STATE, rows())
    assert plan is made.best_so_far(STATE, rows())
    mesh = jax.make_mesh((2, 4), ("batch", "model"))
    results = ps.auto_partition(mesh, machine="cpu", schedule=plan)(step)(STATE, rows())
    jax.tree.map(
        lambda got, wanted: np.testing.assert_allclose(got, wanted, rtol=1e-5),
        results,
        step(STATE, rows()),
    )


def two_kinds(state: Any, many: Any, few: Any) -> Any:
    """A step of two networks, for each of which a different strategy is best."""

    def loss(p: Any) -> Any:
        narrow = jnp.tanh(many @ p["narrow"]) @ p["back"]
        wide = jnp.tanh(few @ p["wide"]) @ p["out"]
        return jnp.mean(narrow**2) + jnp.mean(wide**2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - g, state, grads), value


def test_search_beyond_the_known_strategies_is_kept() -> None:
    """The plan is the one found, not the best known strategy, which a single episode finds."""
    shapes = {"narrow": (64, 128), "back": (128, 64), "wide": (2048, 4096), "out": (4096, 512)}
    arguments = [
        {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()},
        jax.ShapeDtypeStruct((65536, 64), np.float32),
        jax.ShapeDtypeStruct((3, 2048), np.float32),
    ]
    best: list[float] = []

    def stop_when_better(record: Any) -> None:
        if record.limit > 60:  # the known strategies are scored
            best.append(record.best.score.objective)
            if best[-1] < 0.95 * best[0]:
                raise KeyboardInterrupt

    def planned(**options: Any) -> Any:
        return ps.auto_partition(MESH, machine="tpu_v5e", **options)(two_kinds)

    made = planned(episodes=60, progress=stop_when_better)
    with pytest.raises(KeyboardInterrupt):
        made.plan(*arguments)
    plan = made.best_so_far(*arguments)
    assert plan.cost.seconds == pytest.approx(best[-1])
    known = planned(episodes=1, progress=False).plan(*arguments)
    assert plan.cost.seconds < 0.95 * known.cost.seconds


def test_stopped_after_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a later part of the planning, the answers of whole searches are kept, too."""
    whole = decorated(episodes=20, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(planner, "visited_states", raiser())
        with pytest.raises(KeyboardInterrupt):
            whole.plan(STATE, rows())
    assert whole.best_so_far(STATE, rows()).cost == whole.plan(STATE, rows()).cost
    with pytest.raises(ValueError, match="no search for these arguments was stopped"):
        whole.best_so_far(STATE, rows())


def test_stopped_before_a_search() -> None:
    def read(state: Any, batch: Any) -> Any:
        raise KeyboardInterrupt

    reading = ps.auto_partition(MESH, machine="cpu")(read)
    with pytest.raises(KeyboardInterrupt) as caught:
        reading.plan(STATE, rows())
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(ValueError, match=re.escape("use read.plan(...)")):
        reading.best_so_far(STATE, rows())


def test_file_of_the_best_plan(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, notes = stopped((STATE, rows()), dump_dir=tmp_path)
    file = tmp_path / "best_so_far.json"
    assert notes[-1] == f"the plan is in {file}"
    assert f"the best plan so far goes to {file}" in capsys.readouterr().err
    assert ps.load_plan(file).actions == made.best_so_far(STATE, rows()).actions


def test_search_of_other_shapes() -> None:
    """A further shape is planned from the first plan; the completed plan keeps its layouts."""
    calls: list[Any] = []

    def stop_later(record: Any) -> None:
        calls.append(record)
        if first and record.episodes >= 2:
            raise KeyboardInterrupt

    first: list[ps.Plan] = []
    made = decorated(progress=stop_later, episodes=40)
    first.append(made.plan(STATE, rows()))
    with pytest.raises(KeyboardInterrupt):
        made.plan(STATE, rows(64))
    best = made.best_so_far(STATE, rows(64))
    assert best.partition_specs[0] == first[0].partition_specs[0]
    assert best.arguments()[-1][1].type.shape[0] == 64


def raiser() -> Callable[..., Any]:
    """A function that raises KeyboardInterrupt."""

    def raise_stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    return raise_stop


def test_command_writes_the_best_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is 130, as of any command that ctrl-C ends."""
    real, calls = engine.anneal, list[int]()

    def anneal_second(*args: Any, **kwargs: Any) -> bool:
        calls.append(1)
        return raiser()() if len(calls) == 1 else real(*args, **kwargs)

    monkeypatch.setattr(engine, "anneal", anneal_second)
    assert cli.main([*COMMAND, f"--out={tmp_path}", "--json"]) == 130
    told = capsys.readouterr()
    assert "stopped; the plan of the best strategy so far follows" in told.err
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert json.loads(told.out)["cost"]["seconds"] == saved["seconds"]
    monkeypatch.setattr("partir_search.api.AutoPartitioned.plan", raiser())
    assert cli.main([*COMMAND, f"--out={tmp_path}"]) == 130
    assert capsys.readouterr().err == "partir-search: stopped\n"


@pytest.mark.long
def test_command_whose_reader_has_closed() -> None:
    """`partir-search schema | head -1` ends without a message."""
    code = "import sys; from partir_search.cli import main; sys.exit(main(['schema']))"
    script = f'set -o pipefail; {sys.executable} -c "{code}" | (exec 0<&-; sleep 1)'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (141, "")
