"""The choice among finalists by a compiler's figures, and compilations in parallel, by fakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

import partir_search as ps
from partir_search.aot.compile_all import Outcome, compile_all
from partir_search.aot.process import CompiledProgram, NotCompiled
from partir_search.mcts.goals import scorer
from partir_search.planning.confirm.confirm import Figures, confirmation, figures_of
from partir_search.planning.front.visited import unlike

LIMIT = 1000.0
REQUEST = ps.Confirm(target="tpu_v5e:2x4")
MEMORY = ps.Confirm(target="tpu_v5e:2x4", cycles=False)


def cost(seconds: float, peak: float = 500.0) -> ps.Cost:
    return ps.Cost(seconds, seconds, 0.0, peak, 0.0, 0.0, {}, {})


def chosen(found: dict[int, Figures], request: ps.Confirm = REQUEST) -> tuple[str, ps.Confirmation]:
    finalists = [("searched", cost(1.0)), ("second", cost(1.02)), ("third", cost(1.05))]
    goals = scorer((ps.Fit(LIMIT), ps.Fastest()))
    result, at = confirmation(finalists, found, goals, LIMIT, request)
    assert result.chosen.name == finalists[at][0]
    return result.chosen.name, result


# The choice --------------------------------------------------------------------------------------


def test_the_compiler_decides() -> None:
    name, found = chosen({0: Figures(500, 2.0), 1: Figures(500, 1.5), 2: Figures(600, 1.6)})
    assert name == "second"
    assert "25.0% fewer seconds than the search's plan" in found.why
    assert [each.judged_seconds for each in found.finalists] == [2.0, 1.5, 1.6]
    name, found = chosen({0: Figures(500, 1.4), 1: Figures(500, 1.5), 2: Figures(600, 1.6)})
    assert name == "searched"
    assert found.why == "the search's plan is the best of 3 by the compiler's figures"


def test_a_finalist_over_the_limit_is_excluded() -> None:
    """Fast ones as well: by the compiler, whatever the simulator says."""
    name, found = chosen({0: Figures(1200, 1.0), 1: Figures(1100, None), 2: Figures(900, 3.0)})
    assert name == "third"
    assert [each.fits for each in found.finalists] == [False, False, True]
    assert "takes 1.2 kB of 1 kB by the compiler" in found.why


def test_if_all_are_over_the_limit_the_least_excess_wins() -> None:
    name, found = chosen({0: Figures(1400), 1: Figures(1300), 2: Figures(1500)})
    assert name == "second"
    assert found.why.endswith("; none is within 1 kB")


def test_failures_leave_notes_and_the_plan() -> None:
    late = Figures(500, None, "ended after 9 s without a result")
    name, found = chosen({0: late, 1: Figures(note="exit status 1"), 2: late})
    assert name == "searched"
    assert found.why == "no finalist has figures by the compiler: the search's plan stands"
    assert [each.note for each in found.finalists] == [late.note, "exit status 1", late.note]
    name, found = chosen({0: late, 1: Figures(500, 9.0), 2: Figures(500, 8.0)})
    assert name == "third"
    assert late.note in found.why


def test_memory_alone_takes_the_first_that_fits() -> None:
    name, found = chosen({0: Figures(1100), 1: Figures(900)}, MEMORY)
    assert name == "second"
    assert len(found.finalists) == 2  # the third was not compiled
    assert "takes 1.1 kB of 1 kB by the compiler" in found.why


def test_texts_are_judged_with_their_doubts() -> None:
    text = """
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %fusion = f32[8] fusion(%x), kind=kLoop, calls=%f, backend_config={"estimated_cycles":"1500"}
}
"""
    mesh, machine = ps.MeshShape(("data",), (8,)), ps.MACHINES["tpu_v5e"]

    def found(text: str, cycles: bool = True) -> Figures:
        program = CompiledProgram(text, 70, 30, 0.0, True)
        return figures_of(Outcome(70, program), mesh, machine, cycles)

    assert found(text) == Figures(70, pytest.approx(1e-6))
    assert found(text, cycles=False) == Figures(70, None)
    loop = "  %w = f32[8] while(%x), condition=%c, body=%body\n  ROOT"
    looped = text.replace("ENTRY %main", "%body").replace("ROOT", "") + text.replace("  ROOT", loop)
    assert found(looped).note == "1 loops of unknown trip count, judged as one run"
    assert found(looped).seconds == pytest.approx(2e-6)
    assert "cannot be judged" in found("no program").note
    assert figures_of(Outcome(note="no"), mesh, machine, True) == Figures(note="no")


def test_hardly_different_plans_are_not_compiled() -> None:
    base = ps.Cost(1.0, 0.8, 0.2, 500.0, 0.0, 0.0, {}, {"all_gather": 100.0})
    others = [
        dataclasses.replace(base, seconds=1.004, compute_seconds=0.804, peak_bytes=503.0),
        dataclasses.replace(base, compute_seconds=0.7, collective_seconds=0.3),
        dataclasses.replace(base, peak_bytes=510.0),
        dataclasses.replace(base, bytes_by_kind={"all_gather": 80.0, "all_to_all": 10.0}),
    ]
    assert list(unlike([base, *others], lambda cost: cost)) == [base, *others[1:]]


# Compilations ------------------------------------------------------------------------------------


class Fake:
    """A compilation that is ready after some looks."""

    alive = 0
    most = 0

    def __init__(self, looks: int, peak: int | None, failure: str = "") -> None:
        self.looks, self.peak, self.failure = looks, peak, failure
        Fake.alive += 1
        Fake.most = max(Fake.most, Fake.alive)

    @property
    def seconds(self) -> float:
        return 0.0 if self.looks < 99 else 10.0

    @property
    def ready(self) -> bool:
        self.looks -= self.looks < 99
        return self.looks <= 0

    def peak_bytes(self) -> int | None:
        return self.peak

    def result(self) -> CompiledProgram:
        if self.failure:
            raise NotCompiled(self.failure)
        assert self.peak is not None
        return CompiledProgram("text", self.peak, 0, 0.0, True)

    def close(self) -> None:
        Fake.alive -= 1


def run(
    *starts: Callable[[], Fake], enough: Callable[[Outcome], bool] = lambda outcome: False
) -> dict[int, Outcome]:
    Fake.most = 0
    found = dict(compile_all(starts, seconds=5.0, limit=LIMIT, processes=2, enough=enough))
    assert Fake.alive == 0
    assert Fake.most <= 2
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from partir_search.aot import compile_all as compilations

    monkeypatch.setattr(compilations, "SECONDS_BETWEEN_LOOKS", 0.0)


def test_compilations_end_by_their_limits() -> None:
    def refused() -> Fake:
        raise NotCompiled("the program cannot be exported: callbacks")

    found = run(
        lambda: Fake(5, 700),
        lambda: Fake(5, 1100),
        refused,
        lambda: Fake(99, 700),
        lambda: Fake(1, None, "exit status 1: unknown flag"),
    )
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert Fake.most == 2
    assert found[0].program is not None
    assert (found[1].peak_bytes, found[1].program) == (1100, None)
    assert "over the limit of 1 kB" in found[1].note
    assert "callbacks" in found[2].note
    assert found[3].note == "ended after 5 s without a result"
    assert found[4].note == "exit status 1: unknown flag"


def test_enough_is_enough() -> None:
    """Later ones are neither started nor waited for; earlier ones are."""
    started: list[int] = []

    def starter(at: int, looks: int, peak: int) -> Callable[[], Fake]:
        def start() -> Fake:
            started.append(at)
            return Fake(looks, peak)

        return start

    starts = [starter(0, 9, 1200), starter(1, 1, 900), starter(2, 1, 800)]
    found = run(*starts, enough=lambda o: o.peak_bytes is not None and o.peak_bytes <= LIMIT)
    assert sorted(found) == [0, 1]
    assert started == [0, 1]
