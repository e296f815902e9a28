"""Choice among the best answers of a search on the folded program, by the unfolded program.

Folded costs are a few percent off, and more if unequal layers were folded. The best answer always
competes with the second, the best known strategy; further answers compete while folded costs are
off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from partir_search.mcts.game import Score

MAX_FOLD_DIFFERENCE = 0.1  # of folded and unfolded score, below which folded ranks are trusted
FOLD_ERROR = 1.08  # most that folded seconds are too high beside those of the first answer

Answer = TypeVar("Answer")
Found = TypeVar("Found")


def choose_finalist(
    answers: Sequence[Answer],
    folded: Callable[[Answer], Score],
    unfold: Callable[[Answer], tuple[Score, Found]],
    *,
    always: int = 2,
    trust_ranks: bool = True,
) -> tuple[Answer, Found]:
    """The answer of the best unfolded score, with the result of `unfold`.

    Args:
      answers: the best by folded score, the best known strategy, and further answers.
      always: answers that are compared even if the fold's ranks are trusted, the first ones.
      folded: score of an answer on the folded program.
      unfold: score of an answer on the unfolded program, and a result to return. Called for few
        answers: none whose folded score is beyond a better answer's by more than `FOLD_ERROR`, and
        by more than the first answer's folded score is beyond the unfolded one.
      trust_ranks: end after these if the first's scores agree, and the first is within the limits.
    """
    found: list[tuple[Score, Answer, Found]] = []
    too_high = 1.0  # of the first answer's folded objective, as a factor
    for number, answer in enumerate(answers):
        if number >= always and trust_ranks and _close(found[0][0], folded(answers[0])):
            break
        if found and _far(min(s for s, _, _ in found), folded(answer), too_high):
            continue
        score, result = unfold(answer)
        if not found:
            too_high = (
                max(folded(answer).objective / score.objective, 1.0) if score.objective else 1.0
            )
        found.append((score, answer, result))
    _, answer, result = min(found, key=lambda each: each[0].rank())
    return answer, result


def _close(whole: Score, folded: Score) -> bool:
    fits = whole.excess == 0.0 or folded.excess > 0.0
    return fits and abs(whole.scalar() - folded.scalar()) <= MAX_FOLD_DIFFERENCE


def _far(best: Score, folded: Score, too_high: float) -> bool:
    """True if a folded score is of an answer behind `best`, for any error of the fold.

    Args:
      too_high: folded over unfolded objective of another answer.
    """
    return dataclasses.replace(best, objective=best.objective * FOLD_ERROR * too_high) < folded
