"""The report of a plan: one cost everywhere, answers in words, tables at three widths."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from rich.console import Console

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.analysis.def_use import def_use
from partir_search.messages.number_groups import number_groups
from partir_search.messages.wording import amount, milliseconds
from partir_search.passes.remat import find_segments, rematerialize
from partir_search.plan.legend import legend
from partir_search.plan.peak_memory import is_backward, peak_memory
from partir_search.plan.report import progress, report_page
from partir_search.plan.report.argument_tables import argument_rows, moments_in_words, moments_of
from partir_search.plan.report.cells import Path, Source, shortened
from partir_search.plan.report.summary import headlines, summary
from partir_search.plan.step_seconds import collective_rows, kernel_rows, step_seconds
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.planning.recomputed_step import recomputed_figures
from tests.support import module_of

MESH = AbstractMesh((2, 4), ("data", "model"))
ENTRY = MODELS["transformer-tiny"].resized(layers=2)
OPTIONS: dict[str, Any] = {"machine": "tpu_v5e", "donate_argnums": 0, "episodes": 40}


def plan_of(batch: int = 256, mesh: Any = MESH, **kw: Any) -> ps.Plan:
    planned = ps.auto_partition(mesh, **{**OPTIONS, "progress": False, **kw})(ENTRY.step)
    return planned.plan(*ENTRY.abstract_args(batch))


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    return plan_of()


@pytest.fixture(scope="module")
def tight(plan: ps.Plan) -> ps.Plan:
    """A plan with recomputed segments."""
    found = plan_of(goals=[ps.Fit(0.6 * plan.cost.peak_bytes), ps.Fastest()])
    assert found.remat
    assert found.fits
    return found


def text_of(plan: ps.Plan, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    plan.report(console)
    return console.export_text()


# One plan, one cost ----------------------------------------------------------------------------


def test_strategies_cost_the_same_everywhere(plan: ps.Plan) -> None:
    """Beside a plan, in `known_strategies`, and in tables."""
    known = ps.known_strategies(ENTRY.step, MESH, *ENTRY.abstract_args(256), machine="tpu_v5e")
    alone = plan_of(donate_argnums=None)
    assert len(alone.alternatives) > 3
    for each in alone.alternatives:
        assert each.cost == known[each.name].cost, each.name
        assert each.recomputed == "none"
        for name in each.alike:
            assert known[name].cost.seconds == pytest.approx(each.cost.seconds, rel=1e-6)
            assert known[name].cost.peak_bytes == pytest.approx(each.cost.peak_bytes, rel=1e-6)
    table = str(known)
    best = plan.alternatives[0]
    assert milliseconds(alone.alternatives[0].cost.seconds) in table
    for shown in (text_of(plan, 120), report_page(plan, plan.timeline)):
        assert shown.count(milliseconds(plan.cost.seconds)) >= 2  # in words and beside strategies
        assert milliseconds(best.cost.seconds) in shown
    assert plan.cost.seconds <= best.cost.seconds * (1 + 1e-9)


def test_variants_and_comparisons_cost_as_plans_do(plan: ps.Plan) -> None:
    path, _, spec = next(a for a in plan.arguments() if any(a[2]))
    same = plan.what_if(path, spec)
    assert same.before.cost == plan.cost
    assert same.after.cost.seconds == pytest.approx(plan.cost.seconds, rel=1e-9)
    assert ps.compare(plan, plan).seconds == 0
    assert milliseconds(plan.cost.seconds) in str(same)


def test_strategies_are_treated_as_the_plan(tight: ps.Plan) -> None:
    """Recomputation as little as fits, on the whole program."""
    found = tight.alternatives
    assert {a.recomputed for a in found} & {"as the plan", "all"}
    for each in found:
        assert each.fits == (each.cost.peak_bytes <= tight.memory_limit)
    best = min(a.cost.seconds for a in found if a.fits)
    assert tight.cost.seconds <= 1.02 * best
    assert "computed again" in text_of(tight, 120)


def test_progress_ends_with_the_cost_of_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines on stderr without a terminal, at most one in ten seconds."""
    made = plan_of(progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[-1] == f"partir_search: plan of {made.module.name}: {made.cost}"
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    plan_of(progress=True)
    assert "best so far" in capsys.readouterr().err


# Changes ---------------------------------------------------------------------------------------


def change(plan: ps.Plan, what: str) -> Any:
    return next(c for c in plan.changes if what in c.what)


def test_twice_the_batch_is_simulated(plan: ps.Plan) -> None:
    found = change(plan, "twice the batch")
    saved = dataclasses.replace(plan.spec, on_change="apply")
    with pytest.warns(UserWarning, match="what still holds of it is applied"):
        twice = plan_of(512, schedule=saved)
    assert found.seconds == pytest.approx(twice.cost.seconds)
    assert found.relative == pytest.approx(twice.cost.seconds / 2 / plan.cost.seconds)


def test_other_meshes_are_known_strategies(plan: ps.Plan) -> None:
    found = change(plan, "another mesh")
    shape = ps.MeshShape.parse(found.how.replace(" ", ""))
    assert shape.devices == 8
    assert shape.sizes != (2, 4)
    other = ps.auto_partition(AbstractMesh(shape.sizes, shape.names), **OPTIONS)(ENTRY.step)
    known = other.known_plans(*ENTRY.abstract_args(256))
    assert known[found.plan].cost.seconds == pytest.approx(found.seconds)


def test_recomputation_is_a_change(tight: ps.Plan) -> None:
    less, more = (change(tight, f"{n} computed again") for n in ("no segment", "all segments"))
    assert less.seconds < tight.cost.seconds < more.seconds
    assert more.peak_bytes <= tight.cost.peak_bytes < less.peak_bytes
    assert more.fits
    assert not less.fits


def test_recomputation_is_estimated_from_the_plan_alone(plan: ps.Plan) -> None:
    """As the same decisions cost in the rewritten program."""
    segments = find_segments(plan.module)
    found = recomputed_figures(plan, segments)
    assert found
    module = rematerialize(plan.module, segments)
    planner = Planner(module, plan.mesh_shape.user, plan.machine)
    exact, dropped = planner.replay_compatible(renamed_for(module, plan.actions))
    assert not dropped
    assert exact.cost.seconds > 1.05 * plan.cost.seconds
    assert exact.cost.peak_bytes < 0.9 * plan.cost.peak_bytes
    assert found[0] == pytest.approx(exact.cost.seconds, rel=0.1)
    assert found[1] == pytest.approx(exact.cost.peak_bytes, rel=0.1)


def dense(dtype: Any) -> Any:
    def step(w: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w["a"]) @ w["b"]).astype("float32"))(w)
        return jax.tree.map(lambda p, g: p - g, w, grads), jnp.sum(x)

    def s(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    options = {"machine": "tpu_v5e", "schedule": [], "progress": False}
    args = {"a": s(2048, 4096), "b": s(4096, 2048)}, s(512, 2048)
    return ps.auto_partition(MESH, **options)(step), args


def test_narrow_floats_and_donation_are_changes() -> None:
    """The figures agree with plans of the changed programs."""
    step, args = dense(jnp.float32)
    plan = step.plan(*args)
    half, narrow_args = dense(jnp.bfloat16)
    narrow = half.plan(*narrow_args).cost
    found = change(plan, "bfloat16")
    assert found.seconds == pytest.approx(narrow.seconds, rel=0.1)
    assert found.peak_bytes == pytest.approx(narrow.peak_bytes, rel=0.1)
    donated = ps.auto_partition(
        MESH, machine="tpu_v5e", schedule=[], donate_argnums=0, progress=False
    )(step.plain)
    saved = change(plan, "donated")
    assert saved.peak_bytes == pytest.approx(donated.plan(*args).cost.peak_bytes)


# Words -----------------------------------------------------------------------------------------


def test_seconds_and_bytes_add_up(plan: ps.Plan, tight: ps.Plan) -> None:
    for each in (plan, tight):
        assert sum(step_seconds(each).limits.values()) == pytest.approx(each.cost.seconds)
        exposed = sum(r.exposed for r in collective_rows(each))
        assert exposed == pytest.approx(each.cost.collective_seconds)
        kernels = sum(r.seconds for r in kernel_rows(each))
        assert kernels == pytest.approx(each.cost.compute_seconds, rel=0.15)
        parts = peak_memory(each).parts
        assert sum(parts.values()) == pytest.approx(each.cost.peak_bytes, rel=0.02)
        assert parts["optimizer state"] == pytest.approx(2 * parts["parameters"], rel=0.05)
    assert peak_memory(plan).parts["activations"] > 0


def test_sums_over_microbatches_are_gradients() -> None:
    """Gradients summed by a loop over microbatches count as gradients, the losses do not."""

    def step(w: Any, x: Any) -> Any:
        def micro(total: Any, x: Any) -> tuple[Any, Any]:
            value, grads = jax.value_and_grad(lambda w: (x @ w @ w).sum())(w)
            return total + grads, value

        grads, values = jax.lax.scan(micro, jnp.zeros_like(w), x)
        return w - 0.1 * grads, values.sum()

    module = module_of(step, jnp.ones((4, 4)), jnp.ones((2, 3, 4)))
    makers = def_use(module).makers
    (scan,) = (op for op in module.ops if op.regions)
    assert [is_backward(x, makers) for x in scan.results] == [True, False]


def test_first_lines_answer(plan: ps.Plan, tight: ps.Plan) -> None:
    answers = dict(summary(plan))
    assert list(answers)[:4] == ["the plan", "why this plan", "what dominates", "what bounds it"]
    assert plan.alternatives[0].name in answers["why this plan"]
    assert re.search(r"\d%", answers["what dominates"])
    assert "of the peak matrix rate" in answers["what bounds it"]
    assert "if everything overlapped, set by " in answers["in theory"]
    assert plan.changes[0].what in answers["what would change it most"]
    assert "computed again" in dict(summary(tight))["why this plan"]
    first = text_of(plan, 200).splitlines()
    assert first[0].startswith("<lambda> on mesh<data:2, model:4>")
    assert first[1].startswith("the plan: ")


def test_why_replicated_names_axes_that_tile_nothing() -> None:
    step, args = dense(jnp.float32)
    path = step.plan(*args).arguments()[0][0]
    rows = [ps.ManualPartition({path: 0}, axis="data")]
    plan = ps.auto_partition(MESH, machine="tpu_v5e", schedule=rows)(step.plain).plan(*args)
    found = {plan.why_replicated(v) for _, v, spec in plan.arguments() if not any(spec)}
    assert found == {"data: nothing reached it; model: nothing is tiled"}


def test_seconds_of_long_steps() -> None:
    """Eight digits of milliseconds are hard to read; the decimals stay."""
    assert milliseconds(88.5356567) == "88.536 s"
    assert milliseconds(9.9) == "9900.000 ms"
    assert milliseconds(2e-5) == "0.020 ms"


def test_headlines() -> None:
    with pytest.warns(UserWarning, match="no axis of mesh"):
        uneven = plan_of(33, episodes=5)
    (line,) = (h for h in headlines(uneven) if "could not be tiled" in h)
    assert "33" in line
    assert "32 or 40 would divide" in line
    step, args = dense(jnp.float32)
    whole = step.plan(*args)
    assert headlines(whole) == ["Nothing is tiled: all 8 devices compute the same step."]
    assert {whole.why_replicated(v) for _, v, _ in whole.arguments()} == {"nothing is tiled"}
    small = ps.auto_partition(MESH, machine="tpu_v5e", schedule=[], goals=[ps.Fit(80e6)])
    line = headlines(small(step.plain).plan(*args))[0]
    assert line.startswith("The plan does not fit: ")
    assert "What would help" in line


# Tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120, 200])
def test_reports_keep_what_matters(plan: ps.Plan, width: int) -> None:
    """No line is cut, source lines keep file and number, rows keep the end of their paths."""
    text = text_of(plan, width)
    assert max(map(len, text.splitlines())) <= width
    for row in collective_rows(plan)[:15]:
        found = re.search(r"(\w+\.py:\d+)", row.source)
        assert found is None or found[1] in text
    live = text[text.index("live at the peak") :]
    for value in peak_memory(plan).live[:8]:
        assert re.search(rf" {re.escape(amount(value.bytes))} *$", live, re.MULTILINE), live
    for argument in argument_rows(plan):
        assert argument.label[-8:] in text
        assert argument.type in text.replace("\n", "")


def test_printed_results_fit_the_terminal(plan: ps.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ps.compare(plan, plan.what_if("batch", jax.P("model")).after)
    assert max(map(len, str(found).splitlines())) > 80
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(found).splitlines())) <= 80


def test_moments_share_the_row_of_their_parameter(plan: ps.Plan) -> None:
    arguments = plan.arguments()
    found = moments_of(plan, arguments)
    for parameter, own in found.items():
        path = arguments[parameter][0].removeprefix("state/params/")
        assert len(own) == 2
        assert all(arguments[i][0].endswith(path) for i in own)
    assert len(argument_rows(plan)) < 15
    other = ps.report.arguments_table
    assert "mu, nu" in str(list(other(plan).columns)) + str(other(plan).caption)


def test_moments_in_words() -> None:
    from partir_search.plan.report.argument_tables import Moment

    mu, nu = Moment("mu", "f32[8]", "P('x',)"), Moment("nu", "f32[8]", "P()")
    assert moments_in_words("f32[8]", "P('x',)", [mu, nu]) == "mu alike; nu P()"
    assert moments_in_words("bf16[8]", "P('x',)", [mu]) == "mu f32 alike"


def test_number_groups_say_which_layers_differ() -> None:
    names = [(f"layer_{i}/w", i == 3) for i in range(6)]
    labels = [label for label, _, _ in number_groups(names)]
    assert labels == ["layer_{0..2,4,5}/w", "layer_3/w"]
    pairs = [(f"l{i}/w{j}", 0) for i, j in ((0, 1), (1, 2))]
    assert number_groups(pairs)[0][0] == "l#/w# (# of 0.1, 1.2)"
    assert number_groups([("w1", 0), ("w2", 1)])[1][0] == "w2"
    assert number_groups([(f"w{i}", 0) for i in range(3)])[0] == ("w{0..2}", [0, 1, 2], 0)


def test_cells_are_shortened_in_the_middle() -> None:
    assert shortened("state/params/w", 40) == "state/params/w"
    assert shortened("state/params/layer_0/w", 10) == "s…ayer_0/w"
    assert Path("state/params/layer_0/w").fitted(12).endswith("er_0/w")
    source = Source("/elsewhere/a/b/c/d/model.py:88 (Block.__call__)")
    assert source.fitted(60) == "…/c/d/model.py:88 (Block.__call__)"
    assert source.fitted(20) == "…/c/d/model.py:88"
    assert source.fitted(14) == "…/model.py:88"
    assert source.fitted(11) == "model.py:88"


def test_legend_names_the_codes() -> None:
    found = legend(["BP(data+model)+Z3(data)", "BP(x)+MP(y, head)+SP"])
    words = [part.split(" ")[0] for part in found.split("; ")]
    assert words == ["BP", "MP", "head", "SP", "Z3"]
