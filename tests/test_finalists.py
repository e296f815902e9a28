"""Choice of a finalist by scores on the folded and the unfolded program."""

from __future__ import annotations

import pytest

from partir_search.mcts.game import Score
from partir_search.planning.finalists import choose_finalist


@pytest.mark.parametrize(
    ("folded", "whole", "chosen", "costed"),
    [
        ((1.0, 1.05, 1.06), (1.0, 1.05, 0.5), 0, [0, 1]),  # the fold is trusted
        ((1.0, 1.05, 1.06), (1.3, 1.05, 1.2), 1, [0, 1, 2]),
        ((1.0, 1.2, 1.3), (1.6, 1.2, 1.4), 1, [0, 1]),  # the known strategy wins; 1.3 is far behind
        ((1.0, 1.2, 1.01), (1.02, 1.2, 1.0), 0, [0]),  # the known strategy is far behind
    ],
)
def test_the_best_whole_score_wins(
    folded: tuple[float, ...], whole: tuple[float, ...], chosen: int, costed: list[int]
) -> None:
    asked: list[int] = []

    def unfold(answer: int) -> tuple[Score, str]:
        asked.append(answer)
        return Score(0.0, whole[answer]), f"plan {answer}"

    answers = range(len(folded))
    found = choose_finalist(answers, lambda x: Score(0.0, folded[x]), unfold)
    assert found == (chosen, f"plan {chosen}")
    assert asked == costed


def test_an_answer_over_the_limits_loses_to_a_slow_one() -> None:
    scores = [Score(0.2, 1.0), Score(0.0, 5.0)]
    found = choose_finalist(
        range(2), lambda x: Score(0.0, scores[x].objective), lambda x: (scores[x], x)
    )
    assert found == (1, 1)
