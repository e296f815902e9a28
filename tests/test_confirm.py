"""The option `confirm=`: plans chosen by a compiler's figures; most compilers here are fakes."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.hand_written import first_dim_spec, parameter_spec
from partir_search.aot.targets import Target, target_of
from partir_search.commands.flags import confirm as confirm_option
from partir_search.commands.parser import make_parser
from partir_search.plan.report.data import report_data
from partir_search.plan.report.progress import step_progress
from partir_search.plan.report.schema import REPORT_SCHEMA
from partir_search.plan.report.summary import summary
from partir_search.planning.confirm import confirm
from partir_search.planning.confirm.confirm import Figures

REQUEST = ps.Confirm(target="tpu_v5e:2x4")


# The option --------------------------------------------------------------------------------------

MESH = AbstractMesh((2, 4), ("data", "model"))


def step(state: Mapping[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(w: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.square(jnp.tanh(x @ w["a"]) @ w["b"]).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return {k: state[k] - 0.1 * grads[k] for k in state}, value


def arguments(n: int = 256) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    shapes = {"a": (n, 2 * n), "b": (2 * n, n)}
    state = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    return state, jax.ShapeDtypeStruct((4096, n), jnp.float32)


def partitioned(mesh: Any = MESH, **options: Any) -> ps.AutoPartitioned:
    given = {"machine": "tpu_v5e", "episodes": 60, "progress": False, "donate_argnums": 0}
    return ps.auto_partition(mesh, **{**given, **options})(step)


@pytest.fixture
def second_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that finds the second finalist a third faster."""

    def figures(plan_at: Any, places: Any, *_: Any) -> dict[int, Figures]:
        return {
            at: Figures(100, plan_at(at).cost.seconds / (1.5 if at == 1 else 1.0)) for at in places
        }

    monkeypatch.setattr(confirm, "compiled_figures", figures)
    monkeypatch.setattr(Target, "mesh", lambda self, shape: None)


def test_the_plan_is_the_compilers_choice(second_wins: None, tmp_path: pathlib.Path) -> None:
    devices = jax.make_mesh((2, 4), ("data", "model"), devices=jax.devices()[:8])
    plain, found = partitioned(devices), partitioned(devices, confirm="tpu_v5e:2x4")
    searched, plan = plain.plan(*arguments()), found.plan(*arguments())
    result = plan.confirmed
    assert searched.confirmed is None
    assert result is not None
    first, best, *others = result.finalists
    assert first.seconds == searched.cost.seconds
    assert best.chosen
    assert best.seconds == plan.cost.seconds != searched.cost.seconds
    names = {each.name for each in (best, *others)}
    assert names & set(plain.known_plans(*arguments()))
    assert plan.actions != searched.actions
    assert len(result.finalists) <= REQUEST.compiles
    assert all(abs(math.log(o.seconds / first.seconds)) < 0.1 for o in others)
    assert plan.fits
    assert plan.peak_bytes == 100
    assert plan.searches

    report = report_data(plan)
    jsonschema.validate(report, REPORT_SCHEMA)
    assert report["confirmed"] == json.loads(json.dumps(result.to_json()))
    assert "finalists by the compiler" in str(result)
    share = 1 - best.seconds / 1.5 / first.seconds
    assert f"{share:.1%} fewer" in dict(summary(plan))["why this plan"]

    plan.save(tmp_path / "plan.json")
    again = partitioned(devices, schedule=ps.load_plan(tmp_path / "plan.json"))
    assert again.plan(*arguments()).confirmed == result
    assert again.plan(*arguments()).actions == plan.actions

    state, x = arguments()
    values = {k: np.random.default_rng(0).normal(size=s.shape, scale=0.1) for k, s in state.items()}
    batch = np.random.default_rng(1).normal(size=x.shape)
    given = jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), (values, batch))
    want = jax.jit(step)(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-5, 1e-6), found(*given), want)


def test_smaller_plans_are_compiled_if_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that takes four times the memory of the simulation."""
    asked: list[list[int]] = []

    def figures(plan_at: Any, places: Any, *_: Any) -> dict[int, Figures]:
        asked.append(list(places))
        costs = {at: plan_at(at).cost for at in places}
        return {at: Figures(int(4 * c.peak_bytes), c.seconds) for at, c in costs.items()}

    monkeypatch.setattr(confirm, "compiled_figures", figures)
    monkeypatch.setattr(Target, "mesh", lambda self, shape: None)
    roomy = partitioned(confirm="tpu_v5e:2x4").plan(*arguments(128)).confirmed
    assert roomy is not None
    limit = 3.9 * min(each.peak_bytes for each in roomy.finalists)
    goals = [ps.Fit(limit), ps.Fastest()]
    plan = partitioned(goals=goals, confirm="tpu_v5e:2x4").plan(*arguments(128))
    assert plan.confirmed is not None
    _, first, second = asked
    assert second[0] == len(first)
    assert len(plan.confirmed.finalists) == len(first) + len(second) <= REQUEST.compiles
    assert not any(each.fits for each in plan.confirmed.finalists[: len(first)])
    assert plan.confirmed.chosen.fits
    assert plan.fits
    assert plan.peak_bytes == 4 * plan.cost.peak_bytes <= limit
    assert f"of {limit / 1e6:.4g} MB by the compiler" in plan.confirmed.why


def test_a_schedule_is_compiled_alone(second_wins: None) -> None:
    tactics = [ps.ManualPartition({"x": 0}, "data")]
    plan = partitioned(schedule=tactics, confirm="tpu_v5e:2x4").plan(*arguments())
    assert plan.confirmed is not None
    assert [each.name for each in plan.confirmed.finalists] == ["the search's plan"]


def test_confirmed_plans_are_cached_by_the_option(
    second_wins: None, tmp_path: pathlib.Path
) -> None:
    one = partitioned(cache=tmp_path, confirm="tpu_v5e:2x4").plan(*arguments())
    request = ps.Confirm(target="tpu_v5e:2x4", processes=3, seconds=60)
    again = partitioned(cache=tmp_path, confirm=request).plan(*arguments())
    assert again.confirmed == one.confirmed
    assert not again.searches
    assert partitioned(cache=tmp_path).plan(*arguments()).confirmed is None


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ("tpu_v5:2x4", {}, "unknown target"),
        ("tpu_v5p:2x2x2", {}, "the plan is for 'tpu_v5e'"),
        (7, {}, "confirm is a machine and its topology"),
        (True, {"machine": "h100"}, "no compiler without hardware is known for 8 devices"),
        (True, {"machine": "tpu_v6e"}, "the clock of tpu_v6e is not known"),
        (ps.Confirm(compiles=0), {}, "compiles must be at least 1"),
        (ps.Confirm(seconds=0), {}, "seconds is a number above 0"),
    ],
)
def test_bad_options_end_before_any_work(given: Any, options: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        partitioned(confirm=given, **options)


@pytest.mark.compilers
@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("tpu_v5e:4x4", ValueError, "has 8 devices, tpu_v5e:4x4 has 16"),
        ("tpu_v5e:3x5", RuntimeError, "cannot compile for tpu_v5e:3x5"),
    ],
)
def test_topologies_are_checked_first(target: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        partitioned(confirm=target)


def test_the_commands_flags() -> None:
    parse = make_parser().parse_args
    words = ["plan", "train:step", "--args=train:args", "--mesh=data:8", "--machine=tpu_v5e"]
    for extra, wanted in (
        ([], None),
        (["--confirm=tpu_v5e:2x4"], ps.Confirm(target="tpu_v5e:2x4")),
        (["--confirm=own"], ps.Confirm()),
        (["--confirm=own", "--confirm-memory"], ps.Confirm(cycles=False)),
        (["--confirm-memory"], ps.Confirm(cycles=False)),
    ):
        args = parse([*words, *extra])
        assert confirm_option(args.confirm, args.confirm_memory) == wanted


def test_progress_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with step_progress(True, "confirm", 2) as done:
        done("best 3.000 ms")
        done("")
    with step_progress(False, "confirm", 2) as done:
        done("nothing")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "partir_search: confirm 1/2, 0 s: best 3.000 ms"
    assert second == "partir_search: confirm 2/2, 0 s"


def test_usual_topologies() -> None:
    assert str(target_of("tpu_v5e", 8)) == "tpu_v5e:2x4"
    assert str(target_of("tpu_v5p", 64)) == "tpu_v5p:4x4x4"
    assert target_of("tpu_v5e", 24) is None
    assert target_of("h100", 8) is None


def test_shardings_by_hand() -> None:
    """FSDP on the "embed" dim, tensor parallelism on heads, hidden units and vocabulary."""
    devices = jax.make_mesh((2, 4), ("data", "model"), devices=jax.devices()[:8])

    def specs(path: str, *shape: int) -> tuple[jax.P, jax.P]:
        both = parameter_spec(path, shape, 64, ("data", "model"), "", devices)
        return both, parameter_spec(path, shape, 64, ("data",), "model", devices)

    both = ("data", "model")
    assert specs("p/q", 64, 8, 16) == (jax.P(both, None, None), jax.P("data", "model", None))
    assert specs("p/out/kernel", 8, 8, 64) == (
        jax.P(None, None, both),
        jax.P("model", None, "data"),
    )
    assert specs("o/mu/emb", 1000, 64) == (jax.P(None, both), jax.P("model", "data"))
    assert specs("o/mu/o", 64, 64) == (jax.P(None, both), jax.P("model", "data"))
    assert specs("p/blocks/w1", 4, 64, 256)[1] == jax.P(None, "data", "model")
    assert specs("p/norm", 64) == (jax.P(), jax.P())
    assert first_dim_spec("p/up", (12, 64), both, devices) == jax.P(None, both)
    assert first_dim_spec("p/blocks/up", (8, 64, 256), both, devices) == jax.P(None, both)
    assert first_dim_spec("p/norm", (64,), both, devices) == jax.P()


# The compiler ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.compilers
@pytest.mark.parametrize("cycles", [False, True])
def test_xla_confirms(cycles: bool) -> None:
    request = ps.Confirm(cycles=cycles, compiles=2, processes=1)
    plan = partitioned(confirm=request).plan(*arguments(4096))
    assert plan.confirmed is not None
    assert plan.confirmed.target == "tpu_v5e:2x4"
    assert len(plan.confirmed.finalists) == (2 if cycles else 1)
    best = plan.confirmed.chosen
    assert best.compiled_peak_bytes == plan.verify("tpu_v5e:2x4").peak_bytes[1]
    if cycles:
        seconds = [each.judged_seconds for each in plan.confirmed.finalists]
        assert best.judged_seconds == min(s for s in seconds if s is not None)
        assert best.judged_seconds == pytest.approx(plan.cost.seconds, rel=0.3)


@pytest.mark.compilers
def test_programs_that_cannot_leave_the_process_keep_their_plan() -> None:
    def talking(state: Any, x: jax.Array) -> Any:
        jax.debug.callback(print, x.sum())
        return step(state, x)

    options = {"machine": "tpu_v5e", "episodes": 60, "progress": False}
    planned = ps.auto_partition(MESH, confirm=ps.Confirm(compiles=2), **options)(talking)
    plan = planned.plan(*arguments())
    assert plan.confirmed is not None
    assert all(each.note for each in plan.confirmed.finalists)
    assert "the search's plan stands" in plan.confirmed.why
