"""Trainers of `examples/integrations/`: few lines differ, and the losses are the same."""

from __future__ import annotations

import difflib
import importlib
import pathlib
import runpy
import sys
import types
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import yaml

import partir_search as ps

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "integrations"
MAXTEXT = FOLDER / "maxtext_config"
MOST_LINES = 9  # removed and added ones together
TINY = (
    *("base_emb_dim=64", "base_mlp_dim=128", "vocab_size=128", "max_target_length=16"),
    *("base_num_query_heads=4", "head_dim=16", "base_num_decoder_layers=1"),
)


@pytest.fixture(scope="module")
def maxtext() -> Iterator[types.SimpleNamespace]:
    """The modules `train` and `rules`, whose folder is first on the path while they are used."""
    sys.path.insert(0, str(MAXTEXT))
    yield types.SimpleNamespace(**{n: importlib.import_module(n) for n in ("train", "rules")})
    sys.path.remove(str(MAXTEXT))
    for name in ("train", "rules"):
        del sys.modules[name]


@pytest.mark.parametrize("name", [p.name for p in sorted(FOLDER.iterdir()) if p.is_dir()])
def test_few_lines_differ(name: str) -> None:
    before, after = (
        sorted((FOLDER / name).glob("before.*")),
        sorted((FOLDER / name).glob("after.*")),
    )
    texts = [file.read_text().splitlines() for file in (*before, *after)]
    lines = [x for x in difflib.ndiff(*texts) if x.startswith(("- ", "+ ")) and x[2:].strip()]
    assert 0 < len(lines) <= MOST_LINES, lines


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of few episodes."""
    plain = ps.auto_partition
    monkeypatch.setattr(ps, "auto_partition", lambda *a, **kw: plain(*a, episodes=5, **kw))


@pytest.mark.devices
@pytest.mark.usefixtures("short")
def test_optax_loop(tmp_path: pathlib.Path) -> None:
    """Losses of both loops; the checkpoints hold the same parameters."""
    import orbax.checkpoint as ocp

    losses, params = [], []
    for which in ("before", "after"):
        main = runpy.run_path(str(FOLDER / "optax_loop" / f"{which}.py"))["main"]
        losses.append(main(str(tmp_path / which)))
        with ocp.StandardCheckpointer() as saver:
            params.append(saver.restore(tmp_path / which / "last"))
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[1][-1] < losses[1][0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4), *params)


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_nnx_trainer() -> None:
    found = [
        runpy.run_path(str(FOLDER / "nnx_trainer" / f"{which}.py"))["main"]()
        for which in ("before", "after")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.devices
@pytest.mark.long
def test_maxtext_config_trains_alike(maxtext: Any) -> None:
    losses = [maxtext.train.main(str(MAXTEXT / f"{n}.yml"), *TINY) for n in ("before", "after")]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def rules_in(name: str) -> list[Any]:
    rules: list[Any] = yaml.safe_load((MAXTEXT / f"{name}.yml").read_text())["logical_axis_rules"]
    return rules


@pytest.fixture(scope="module")
def planner(maxtext: Any) -> Any:
    config = maxtext.train.Config(str(MAXTEXT / "after.yml"), *TINY)
    return maxtext.rules.Planner(config, "tpu_v5e")


def test_rules_of_a_plan_are_in_maxtext_form(planner: Any) -> None:
    """Pairs of a name and a list of mesh axes; read by flax, they are the plan's tilings.

    Source of the form: `logical_axis_rules` of src/maxtext/configs/base.yml in the repository
    AI-Hypercomputer/maxtext at 000b810.
    """
    wanted = {name: tuple(axes) for name, axes in rules_in("after")}
    plan = planner.plan(wanted)
    found = planner.maxtext_rules(plan)
    assert {name: tuple(axes) for name, axes in found} == wanted
    assert yaml.safe_load(yaml.safe_dump(found)) == found
    for name, axes in found:
        assert isinstance(name, str)
        assert isinstance(axes, list)
        assert set(axes) <= set(planner.config.mesh_axes)
    by_flax = nn.logical_to_mesh(planner.names, found)
    pairs = zip(jax.tree.leaves(by_flax), jax.tree.leaves(plan.partition_specs[0][0]), strict=True)
    mesh, compared = planner.mesh, 0
    for one, other in pairs:
        same = [jax.NamedSharding(mesh, spec) for spec in (one, other)]
        assert same[0].is_equivalent_to(same[1], max(len(one), len(other)))
        compared += any(one)
    assert compared > 10


@pytest.mark.long
def test_improved_rules_are_faster(planner: Any, maxtext: Any) -> None:
    """Two moves find data parallelism, which a tiny model wants."""
    rules = {"activation_batch": ("data",), "mlp": ("tensor",)}
    begin = planner.plan(rules)
    plan = maxtext.rules.improved(planner, rules)
    assert plan.cost.seconds < begin.cost.seconds
    assert planner.maxtext_rules(plan)
