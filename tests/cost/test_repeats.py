"""Gathers of broadcast values: the elements before the broadcast are gathered and priced."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.aot.hlo import CompiledCollective
from partir_search.aot.verify import compare
from partir_search.ir.analysis.repeats import repeated_dims
from tests.support import ROUND

ROWS, COPIES, D = 16, 64, 32
X = jax.ShapeDtypeStruct((ROWS, D), jnp.float32)

Forms = dict[str, tuple[Callable[[jax.Array], jax.Array], bool]]


def _repeated(x: jax.Array) -> jax.Array:
    return jnp.broadcast_to(x[:, None], (ROWS, COPIES, D))


FORMS: Forms = {
    "plain": (_repeated, True),
    "converted": (lambda x: _repeated(x).astype(jnp.bfloat16), True),
    "scaled": (lambda x: _repeated(x) * 0.5, True),
    "by a constant array": (lambda x: _repeated(x) * jnp.full((ROWS, COPIES, D), 0.5), True),
    "of alike ones": (lambda x: _repeated(x) + jnp.sin(_repeated(x * x)), True),
    "of unlike ones": (
        lambda x: _repeated(x) + jnp.arange(float(COPIES))[None, :, None],
        False,
    ),
}


def _plan(form: str, *, gathers: bool) -> ps.Plan:
    """Plan of a sort over all rows of a repeated value that is tiled along its rows."""

    def step(x: jax.Array) -> jax.Array:
        return jnp.sort(FORMS[form][0](x), axis=0)

    tactics = [ps.ManualPartition({"x": 0}, axis="batch")]
    machine = ROUND.with_traits(gathers_broadcast_sources=gathers)
    mesh = AbstractMesh((8,), ("batch",))
    return ps.auto_partition(mesh, schedule=tactics, machine=machine)(step).plan(X)


@pytest.mark.parametrize("form", FORMS)
def test_compiled_gathers_of_the_source_are_named(form: str) -> None:
    plan, repeated = _plan(form, gathers=True), FORMS[form][1]
    (gather,) = plan.collectives
    assert gather.kind == "all_gather"
    compiled = [CompiledCollective("all_gather", ROWS * D, 4, None)]
    changes, unexplained = compare(plan.program, compiled)[1:]
    if repeated:
        assert "1 of the values before the broadcast" in changes[0]
        assert not unexplained
    else:
        assert len(unexplained) == 2


@pytest.mark.parametrize("form", FORMS)
def test_gathers_of_repeated_values_are_priced_by_the_source(form: str) -> None:
    whole, source = (_plan(form, gathers=gathers) for gathers in (False, True))
    sent = [sum(plan.cost.bytes_by_axis.values()) for plan in (whole, source)]
    copies = COPIES if FORMS[form][1] else 1
    assert sent[0] == pytest.approx(copies * sent[1])
    named = [
        "gathers_broadcast_sources" in row.traits
        for row in source.breakdown()
        if row.kind == "all_gather"
    ]
    assert named == [FORMS[form][1]]


def test_repeated_dims() -> None:
    """Dims of a broadcast stay repeated through elementwise ops alone."""

    def step(x: jax.Array) -> jax.Array:
        return _repeated(jnp.sin(x)).astype(jnp.bfloat16).sum(axis=0)

    plan = ps.auto_partition(AbstractMesh((1,), ("batch",)), schedule=[], machine=ROUND)(step)
    partition = plan.plan(X).program.partition
    found = repeated_dims(partition.module, partition.rules)
    shapes = {partition.module.values[v].type.shape: dims for v, dims in found.items()}
    assert shapes == {(ROWS, COPIES, D): frozenset({1})}
