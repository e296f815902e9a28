"""What reads much for the loss's value alone comes before the backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partir_search as ps
from partir_search.lowering.local_ir import Instruction, LocalOp, Reshard
from partir_search.lowering.scheduling.early_reads import early_reads
from partir_search.lowering.traits import NEUTRAL

BATCH, WIDTH, VOCAB = 16, 32, 512


def step(w: Any, x: Any, labels: Any) -> Any:
    def loss(w: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(x) @ w, labels).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


def arguments() -> list[Any]:
    random = np.random.default_rng(0)
    w, x = (random.normal(size=s).astype(np.float32) for s in ((WIDTH, VOCAB), (BATCH, WIDTH)))
    return [w, x, random.integers(0, VOCAB, BATCH, dtype=np.int32)]


@pytest.mark.parametrize(
    "tiled",
    [{"x": 0, "labels": 0}, {"w": 1}, {"w": 1, "labels": 0}],
    ids=["rows", "vocabulary", "gathered labels"],
)
def test_logits_of_labels_are_read_first(tiled: dict[str, int], mesh: jax.sharding.Mesh) -> None:
    """The gather of the logits is tied to the labels that their gradient needs."""
    tactics = [ps.ManualPartition(tiled, axis="batch")]
    partitioned = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(step)
    args = arguments()
    program = partitioned.plan(*args).program
    (item,) = early_reads(program.body, program.partition.rules, NEUTRAL).items()
    read, tied = program.body.steps[item[0]], item[1]
    assert isinstance(read, LocalOp)
    assert read.op.prim == "gather"
    gathers = [x for x in program.body.steps if isinstance(x, Reshard) and x.source is tied]
    assert [x.target in read.ins for x in gathers] == [True] * len(gathers)
    if tiled == {"w": 1, "labels": 0}:
        assert [x.regather for x in gathers] == [False, True]  # once for each pass
    else:
        assert tied in read.ins
    assert np.issubdtype(tied.value.type.dtype, np.integer)
    for got, want in zip(partitioned(*args), step(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    barriers = [x for x in partitioned.lower(*args).as_text().splitlines() if "_barrier" in x]
    assert any("xf32>" in x and "xi32>" in x for x in barriers)


def test_what_the_backward_pass_waits_for_is_left_alone() -> None:
    """The maximum of the logits reads as much, but their gradient needs it."""
    mesh = jax.sharding.AbstractMesh((8,), ("batch",))
    tactics = [ps.ManualPartition({"x": 0}, axis="batch")]

    def fn(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jax.nn.logsumexp(jnp.tanh(x) @ w, axis=1).mean())(w)

    plan = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(fn).plan(*arguments()[:2])
    assert not early_reads(plan.program.body, plan.program.partition.rules, NEUTRAL)


def test_values_moved_there_and_back(mesh: jax.sharding.Mesh) -> None:
    """Rings bring values back into slots that they left: what came first counts, without end."""
    tactics = [ps.ManualPartition({"w": 1, "labels": 0}, axis="batch")]
    plan = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(step).plan(*arguments())
    block, rules = plan.program.body, plan.program.partition.rules
    steps: list[Instruction] = []
    for item in block.steps:
        steps.append(item)
        if isinstance(item, Reshard):
            steps.append(dataclasses.replace(item, source=item.target, target=item.source))
    (before,) = early_reads(block, rules, NEUTRAL).values()
    (after,) = early_reads(dataclasses.replace(block, steps=steps), rules, NEUTRAL).values()
    assert after is before


@pytest.mark.parametrize("tiled", [{"x": 0, "labels": 0}, {"w": 1}], ids=["rows", "vocabulary"])
def test_the_accuracy_is_read_first(tiled: dict[str, int], mesh: jax.sharding.Mesh) -> None:
    """An argmax of logits is tied to what the softmax reduced them to, small as it is."""

    def accurate(w: Any, x: Any, labels: Any) -> Any:
        def loss(w: Any) -> Any:
            logits = jnp.tanh(x) @ w
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), (jnp.argmax(logits, -1) == labels).mean()

        (value, right), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return w - 0.1 * gradient, value, right

    tactics = [ps.ManualPartition(tiled, axis="batch")]
    partitioned = ps.auto_partition(mesh, schedule=tactics, machine="cpu")(accurate)
    w, *others = arguments()
    args = [np.tile(w, (1, 16)), *others]
    program = partitioned.plan(*args).program
    found = early_reads(program.body, program.partition.rules, NEUTRAL)
    ops = [x.op.prim if isinstance(x, LocalOp) else "" for x in program.body.steps]
    tied = found[ops.index("block_extremes")]
    assert tied.nbytes <= BATCH * 4
    assert "gather" in [ops[at] for at in found]
    for got, want in zip(partitioned(*args), accurate(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
