"""Checks of traits: errors of predictions with each trait as it is, without it, and otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

import partir_search as ps
from partir_search.ir.rule import OpRule
from partir_search.lowering.traits import LoweringTraits
from partir_search.rules.registry import RuleTable
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.known_traits import UNKNOWN
from partir_search.simulator.target.traits import AsyncAllGather, XlaTraits

SAME = 5e-4  # difference of mean errors below which a trait makes no difference


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Example:
    """A compiled plan of a generated program.

    Attributes:
      rules: per op id.
      seconds / peak: by the judge, and by the compiler.
      held_out: traits are not fitted on this plan.
    """

    plan: ps.Plan
    rules: Sequence[OpRule]
    seconds: float
    peak: float
    held_out: bool

    @classmethod
    def of(cls, plan: ps.Plan, row: Mapping[str, Any]) -> Example:
        """An example of a row; programs of odd seeds are held out."""
        rules = list(map(RuleTable(), plan.module.ops))
        return cls(plan, rules, row["judged_s"], row["compiled_peak"], row["seed"] % 2 == 1)

    def errors(self, traits: XlaTraits) -> tuple[float, float]:
        """Logarithms of predicted over compiled seconds and peak bytes."""
        machine = dataclasses.replace(self.plan.machine, traits=traits)
        cost = CostModel(self.plan.module, self.rules, machine).evaluate(self.plan.program)
        return math.log(cost.seconds / self.seconds), math.log(cost.peak_bytes / self.peak)


@dataclasses.dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute errors, as logarithms, of seconds and of peak bytes."""

    seconds: float
    peak: float

    @property
    def total(self) -> float:
        """Sum of both."""
        return self.seconds + self.peak


@dataclasses.dataclass(frozen=True, slots=True)
class Halves:
    """Errors on the fitted half of the corpus and on the held-out half."""

    fitted: Errors
    held_out: Errors


def errors_of(examples: Iterable[Example], traits: XlaTraits) -> Halves:
    """Errors of both halves under some traits."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for example in examples:
        found[example.held_out].append(example.errors(traits))
    means = {held: np.mean(np.abs(pairs), axis=0).tolist() for held, pairs in found.items()}
    return Halves(Errors(*means[False]), Errors(*means[True]))


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A trait on both halves of the corpus.

    Attributes:
      now: errors with the present value.
      errors_without: errors with the value of an unknown target; None if that is the value.
      best: the alternative with the least error on the fitted half, and its errors.
    """

    name: str
    value: Any
    now: Halves
    errors_without: Halves | None
    best: tuple[Any, Halves]

    @property
    def verdict(self) -> str:
        """What the held-out half says of the value."""
        other, errors = self.best
        better = errors.fitted.total < self.now.fitted.total - SAME
        if better and errors.held_out.total < self.now.held_out.total - SAME:
            return f"{other} is better on both halves"
        worse = self.errors_without or errors
        gain = worse.held_out.total - self.now.held_out.total
        if abs(gain) < SAME:
            return "no difference on the held-out half"
        if gain < 0 and worse.fitted.total > self.now.fitted.total + SAME:
            return "the halves disagree"
        return "pays" if gain > 0 else "does not pay on the held-out half"


def alternatives(field: dataclasses.Field[Any], value: Any) -> Iterator[Any]:
    """Further values of a trait: the opposite flag, other choices, half and double numbers."""
    unit = field.metadata["unit"]
    if unit == "flag":
        yield not value
    elif isinstance(value, str):
        yield from (choice for choice in get_args(AsyncAllGather) if choice != value)
    elif isinstance(value, Mapping):
        for factor in (0.5, 2.0) if value else ():
            yield {kind: factor * rate for kind, rate in value.items()}
    elif isinstance(value, int):
        yield from sorted({max(1, value // 2), 2 * value} - {value})
    else:
        yield from (x for x in (value / 2, min(1.0, 2 * value)) if x != value)


def simulated_traits() -> list[dataclasses.Field[Any]]:
    """Traits that the simulator alone reads: others change the program."""
    lowered = {field.name for field in dataclasses.fields(LoweringTraits)}
    return [field for field in dataclasses.fields(XlaTraits) if field.name not in lowered]


def check(
    examples: Sequence[Example], traits: XlaTraits, field: dataclasses.Field[Any], now: Halves
) -> Check:
    """Errors of all examples with other values of one trait.

    Args:
      now: errors under `traits`.
    """
    value, without = getattr(traits, field.name), getattr(UNKNOWN, field.name)
    others = [*alternatives(field, value)]
    if without != value and without not in others:
        others.append(without)
    tried = []
    for other in others:
        changed = dataclasses.replace(traits, **{field.name: other})
        tried.append((other, errors_of(examples, changed)))
    errors_without = next((errors for other, errors in tried if other == without), None)
    best = min(tried, key=lambda each: each[1].fitted.total)
    return Check(field.name, value, now, errors_without, best)
