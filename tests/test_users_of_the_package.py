"""Models know nothing of the package; experiments use its public names, as users do."""

from __future__ import annotations

from tests.test_layers import ROOT, imports

# They measure the engine, not the package, or fit it.
INSIDERS = (
    *("calibrate.py", "compiled_pipelines.py", "judge.py"),
    *("search_ablation.py", "search_quality.py", "small_programs.py"),
    *("confirm.py", "hand_written.py", "matrix_optimizers.py", "truth.py"),  # by the judge
    *(
        "cost_tables.py",
        "exact_steps_judged.py",
        "pipelines.py",
        "fold_error.py",
        "random_states.py",
    ),
    *("exact_switch.py", "parallel_iterations.py"),
    *("measured_truth.py", "profile.py"),  # by segments
    "kernels.py",  # of HLO texts
    *("checks.py", "compiled.py"),  # of the corpus
)


def test_models_and_experiments_stand_outside() -> None:
    for path in (ROOT / "models").rglob("*.py"):
        assert not any(n.startswith("partir_search") for n in imports(path)), path
    for path in (ROOT / "experiments").rglob("*.py"):
        for name in imports(path) if path.name not in INSIDERS else ():
            assert not name.startswith("partir_search.") or name.count(".") == 1, (path, name)
