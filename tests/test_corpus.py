"""Generated train steps equal the plain steps, and checks of traits find the traits behind rows."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

import partir_search as ps
from experiments.corpus import compiled
from experiments.corpus.checks import Example, check, errors_of, simulated_traits
from experiments.corpus.programs import SMALL, generate
from partir_search.simulator.simulator import CostModel

FIELDS = {field.name: field for field in simulated_traits()}


@pytest.mark.parametrize("seed", [9, *(pytest.param(s, marks=pytest.mark.long) for s in range(9))])
def test_generated_steps_equal_the_plain_steps(seed: int, mesh: jax.sharding.Mesh) -> None:
    program = generate(seed, SMALL)
    state = program.init(jax.random.key(seed))
    tokens = np.random.default_rng(seed).integers(0, program.vocabulary, program.tokens, np.int32)
    plain = jax.jit(program.step)(state, tokens)
    known = ps.auto_partition(mesh, machine="tpu_v5e", progress=False)(program.step).known_plans(
        *program.abstract_args()
    )
    plan = known["BP(batch)+MP(model)+Z3"]
    step = ps.auto_partition(mesh, schedule=plan, progress=False)(program.step)
    (after, loss), (plain_after, plain_loss) = step(state, tokens), plain
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
    # Moments are linear in the gradients; parameters may change by signs, as under lion.
    for ours, theirs in zip(*map(jax.tree.leaves, (after["opt"], plain_after["opt"])), strict=True):
        most = float(np.max(np.abs(theirs), initial=1e-12))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3 * most)
    assert plan.cost.collective_seconds > 0


def test_seeds_give_programs_of_their_own() -> None:
    assert generate(3).name == generate(3).name
    assert len({generate(seed).name for seed in range(30)}) == 30


def test_checks_find_the_traits_behind_the_figures() -> None:
    """Figures by other traits: the check names these, and the true value of another pays."""
    examples = []
    for seed in (4, 13):  # one of each half, with weight casts at the peak
        for plan in compiled.plans_of(seed, "tpu_v5e:2x4", "data:2,model:4", 1).values():
            example = Example.of(plan, {"seed": seed, "judged_s": 1.0, "compiled_peak": 1.0})
            traits = dataclasses.replace(plan.machine.traits, fuses_weight_casts=False)
            machine = dataclasses.replace(plan.machine, traits=traits)
            truth = CostModel(plan.module, example.rules, machine).evaluate(plan.program)
            figures = {"seconds": truth.seconds, "peak": truth.peak_bytes}
            examples.append(dataclasses.replace(example, **figures))
    traits = examples[0].plan.machine.traits
    now = errors_of(examples, traits)
    wrong = check(examples, traits, FIELDS["fuses_weight_casts"], now)
    assert wrong.best[1].held_out.total == pytest.approx(0.0, abs=1e-9)
    assert wrong.verdict == "False is better on both halves"
    assert check(examples, traits, FIELDS["keeps_dots_wide"], now).verdict == "pays"
    tuples = check(examples, traits, FIELDS["joins_tuple_reductions"], now)
    assert tuples.verdict == "no difference on the held-out half"


def test_rows_survive_their_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    assert compiled.read_rows(file) == []
    rows = [{"seed": 1, "kernels": [["fusion", "f32[8]", "jit(step)/add", 3000, 32]]}]
    compiled.write_rows(file, rows)
    assert compiled.read_rows(file) == rows


def test_kernels_of_a_compiled_text() -> None:
    text = """HloModule jit_step

ENTRY %main.1 (p0: f32[1024,512]) -> f32[1024,512] {
  %p0 = f32[1024,512]{1,0:T(8,128)} parameter(0)
  %small.1 = f32[8]{0} fusion(%p0), calls=%a, backend_config={"estimated_cycles":"10"}
  ROOT %fusion.2 = f32[1024,512]{1,0:T(8,128)} fusion(%p0), kind=kLoop, calls=%b, \
metadata={op_name="jit(step)/add"}, backend_config={"estimated_cycles":"4000"}
}
"""
    (kernel,) = compiled.kernels_of(text)
    assert kernel == ("fusion", "f32[1024,512]", "jit(step)/add", 4000, 1024 * 512 * 4)
