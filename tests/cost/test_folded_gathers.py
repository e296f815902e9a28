"""Gathers of folded layers hide as long as those of the same layers written out."""

from __future__ import annotations

import random

import pytest

from partir_search.passes.fold.run_order import RunOrder
from partir_search.simulator.time.early_gathers import EarlyGathers, clipped_sum

Gather = tuple[float, int | None]  # seconds, and the op that makes the source


def sums(seconds: list[float]) -> list[float]:
    found = [0.0]
    for each in seconds:
        found.append(found[-1] + each)
    return found


def exposed(
    order: RunOrder, compute: list[float], gathers: list[list[Gather]], runs: list[int]
) -> list[float]:
    """Exposed seconds of the gathers of each op, in all runs."""
    early, begun = EarlyGathers(sums(compute), order), []
    for at, each in enumerate(gathers):
        for seconds, made in each:
            begun.append((at, early.begin(at, at, seconds, made, runs[at])))
    early.end()
    found = [0.0] * len(compute)
    for at, gather in begun:
        found[at] += gather.exposed * runs[at]
    return found


def compared(
    op_of: list[int], compute: list[float], gathers: list[list[Gather]]
) -> tuple[list[float], list[float]]:
    """Exposed seconds by op of a quotient: of the quotient, and of the program written out.

    Args:
      op_of: by op of the program, the op of the quotient.
    """
    count = [op_of.count(q) for q in range(len(compute))]
    order = RunOrder.of(op_of, [False] * len(compute))
    folded = exposed(order, compute, gathers, count)
    written: list[list[Gather]] = []
    latest: dict[int | None, int | None] = {None: None}
    starts = list[int]()
    for stretch in order.stretches:
        starts += [len(starts)] * (stretch.end - stretch.begin) * stretch.layers
    for at, (q, start) in enumerate(zip(op_of, starts, strict=True)):
        # A first layer reads what is made just before the layers.
        written.append(
            [(s, latest.get(made, start - 1 if start else None)) for s, made in gathers[q]]
        )
        latest[q] = at
    plain = RunOrder.of(range(len(op_of)), [False] * len(op_of))
    each = exposed(plain, [compute[q] for q in op_of], written, [1] * len(op_of))
    whole = [0.0] * len(compute)
    for q, seconds in zip(op_of, each, strict=True):
        whole[q] += seconds
    return folded, whole


@pytest.mark.parametrize("seed", range(40))
def test_folded_layers_hide_what_written_out_layers_hide(seed: int) -> None:
    """Op by op, with gathers of arguments and of values made in the same layer or the one before;
    some ops run before the layers as well.
    """
    rng = random.Random(seed)
    op_of, ops = list[int](), 0
    groups = [(rng.randint(1, 3), 1), (rng.randint(1, 4), rng.randint(2, 6)), (2, 1)]
    groups += [(rng.randint(1, 4), rng.randint(2, 5)), (1, 1)]
    shared = rng.choice([[], [0], [0, 1]])  # by the begin of the program and each layer
    gathers: list[list[Gather]] = []
    for number, (size, layers) in enumerate(groups):
        group = list(range(ops, ops + size))
        for q in group:
            made: list[int | None] = [None, *range(ops, q)]
            made += [*shared, group[-1]] if number == 1 else []
            begun = [(4.0 * rng.random(), rng.choice(made)) for _ in range(rng.randint(0, 2))]
            gathers.append(begun)
        op_of += (group + [q for q in shared if q < ops and layers > 1 and number == 1]) * layers
        ops += size
    compute = [rng.choice([0.0, rng.random(), 3.0 * rng.random()]) for _ in range(ops)]
    folded, whole = compared(op_of, compute, gathers)
    assert folded == pytest.approx(whole, abs=1e-9)


def test_values_of_the_layer_before_are_gathered_beside_it() -> None:
    """Four layers of 3 s: the first op reads what the second op of the layer before made."""
    order = RunOrder.of([0, 1, 2] * 4, [False] * 3)
    early = EarlyGathers(sums([1.0, 1.0, 1.0]), order)
    gather = early.begin(0, 0, 2.0, 1, 4.0)
    early.end()
    assert gather.exposed == pytest.approx((2.0 + 3 * 1.0) / 4)


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_clipped_series(seed: int) -> None:
    rng = random.Random(seed)
    start, step = rng.uniform(-5, 5), rng.choice([0.0, rng.uniform(-2, 2)])
    low, high, count = rng.uniform(0, 3), rng.uniform(0, 6), rng.randint(0, 9)
    terms = [min(high, max(low, start + j * step)) for j in range(count)]
    assert clipped_sum(start, step, low, high, count) == pytest.approx(sum(terms), abs=1e-9)
