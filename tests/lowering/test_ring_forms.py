"""The forms of rings: what passes and what stays, by their tables, in print and on devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.axis_options import Modes
from partir_search.ir.printer import print_partition
from partir_search.ir.skewed_schedule import FORMS, HOME, ring_of
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.localize import localize
from partir_search.rules.registry import RuleTable
from tests.rings import mlp, mlp_state, square
from tests.support import check_partition, floats_of, module_of, state_of, tile_arg


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_forms_cover_the_product(n: int, form: str) -> None:
    """Whatever passes: each slice of the product is worked on once, nothing is held twice."""
    module = module_of(jnp.matmul, *floats_of((n, n), (n, n)))
    rule = RuleTable()(module.ops[0])
    m, k, summed = 0, 1, 2
    for factors in itertools.permutations((m, k, summed)):
        for nbytes in itertools.permutations((1, 2, 3)):
            assert ring_of(rule, (0, 1, 2), n, factors, form, nbytes).faults(rule) == []


@pytest.mark.parametrize("n", [2, 3, 4])
def test_largest_stays(n: int) -> None:
    """The largest block stays. The rest passes n - 1 times, the smaller of what is left (if the
    result is one of them) once more.
    """
    module = module_of(jnp.matmul, *floats_of((n, n), (n, n)))
    rule = RuleTable()(module.ops[0])

    def passed(nbytes: tuple[int, int, int]) -> int:
        ring = ring_of(rule, (0, 1, 2), n, (0, 1, 2), "min_traffic", nbytes)
        times, sent = [HOME, *range(n), HOME], 0
        for i, (dims, size) in enumerate(zip((*rule.operands, *rule.results), nbytes, strict=True)):
            when = times[1:] if i == 2 else times[:-1]
            places = [ring.place(ring.indices(rule, dims), t) for t in when]
            sent += size * sum(a != b for a, b in itertools.pairwise(places))
        return sent

    assert passed((1, 2, 100)) == (n - 1) * 3
    assert passed((100, 2, 1)) == (n - 1) * 3 + 1
    assert passed((100, 1, 2)) == (n - 1) * 3 + 1
    assert passed((2, 100, 1)) == (n - 1) * 3 + 1


def test_print_min_traffic(golden: Callable[[str], None]) -> None:
    """A result that passes is shown with the slice that a turn adds to."""

    def forward(w1: Any, w2: Any, x: Any) -> Any:
        return jnp.tanh(x @ w1) @ w2

    state = state_of(module_of(forward, *floats_of((6, 24), (24, 6), (12, 6))), square(3))
    for arg, dim, axis in ((2, 0, "r"), (2, 1, "c"), (0, 1, "r~c"), (1, 1, "c")):
        tile_arg(state, arg, dim, axis)
    state.modes = Modes(ring_schedules={2: "min_traffic"})
    golden(print_partition(state.partition()))


@pytest.mark.devices
@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.long), 3, 4])
def test_mlp_min_traffic(n: int) -> None:
    """Hidden activations stay where a product has them (section 1.7 of the facts: fewer bytes by
    far), and what is computed is the same.
    """
    rows, width, hidden = 4 * n, 2 * n, 8 * n
    args = floats_of((width, hidden), (hidden, width), (rows, width))
    state = mlp_state(square(n), args)
    plain = localize(state.partition())
    state.modes = Modes(ring_schedules={2: "min_traffic"})
    partition = state.partition()
    check_partition(partition, mlp, args)
    program = localize(partition)
    w, x = width * hidden, rows * width
    # Hidden activations, the largest of the three, stay in all five products: they are the result
    # of the first and of the fourth. Where they are an operand, a result passes once more.
    least = 5 * (n - 1) * (w + x) + 3 * min(x, w)
    edge = 4 * w  # matrices come and go
    assert _sent(program) == 4 * (least + edge) // n**2
    assert _sent(program) < _sent(plain)


@pytest.mark.devices
@pytest.mark.parametrize("n", [2, 3, 4])
def test_primepar_form(n: int) -> None:
    """PrimePar's own phases: 6(n-1) + 2 permutes of a linear, and one more as jax has the gradient
    of the matrix before that of the input, which would leave the cotangent where it begins. Of the
    two the gradient of the matrix goes home in the last turn, as there; the other brings the
    gradient of the input home (there the matrix, as arguments do not stay).
    """

    def linear(w: Any, x: Any) -> Any:
        return jax.grad(lambda w, x: jnp.sum(jnp.square(x @ w)), (0, 1))(w, x)

    rows, width, out = 4 * n, 2 * n, 3 * n
    args = floats_of((width, out), (rows, width))
    state = state_of(module_of(linear, *args), square(n))
    for arg, dim, axis in ((1, 0, "r"), (1, 1, "r~c"), (0, 1, "c")):
        tile_arg(state, arg, dim, axis)
    state.modes = Modes(ring_schedules={2: "primepar"})
    partition = state.partition()
    check_partition(partition, linear, args)
    program = localize(partition)
    edge = 4  # both arguments come, both gradients go
    assert len(list(program.reshards())) == 6 * (n - 1) + 3 + edge
    x, w, y = rows * width, width * out, rows * out
    assert _sent(program) == 4 * (2 * (n - 1) * (x + w + y) + 3 * (w + x) + y) // n**2


@pytest.mark.devices
def test_mlp_primepar() -> None:
    """Both types of linears, n = 3."""
    args = floats_of((6, 9), (9, 6), (12, 6))
    state = mlp_state(square(3), args)
    state.modes = Modes(ring_schedules={2: "primepar"})
    check_partition(state.partition(), mlp, args)


def _sent(program: LocalProgram) -> int:
    """Bytes that a device sends; nothing but permutes does."""
    assert {m.step.kind for m, _ in program.reshards()} == {"collective_permute"}
    return sum(m.payload_bytes for m, _ in program.reshards())
