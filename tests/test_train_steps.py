"""One real train step under every schedule equals the plain one: all leaves of the state.

The optimizer is sgd with momentum and clipping: after one step the momentum is the clipped
gradient, so comparing it compares the gradients of every leaf. Adamw runs in `test_adamw`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partir_search as ps
from experiments.schedules import schedule
from models.transformer import TransformerConfig, init_state, make_train_step, optimizer
from tests.support import assert_same, check_replicas

SCHEDULES = ("bp", "bp+mp", "mp", "bp+mp+z2", "bp+mp+z3")
VARIANTS = tuple(itertools.product((False, True), repeat=3))
# Each variant with one schedule, each schedule with one variant at least; all with `--long`.
SHORT = {(SCHEDULES[(3 * i + 1) % 5], *v) for i, v in enumerate(VARIANTS)}
PAIRS = [
    (s, *v) if (s, *v) in SHORT else pytest.param(s, *v, marks=pytest.mark.long)
    for s in SCHEDULES
    for v in VARIANTS
]


def config_of(scan: bool, remat: bool, dropout: bool, layers: int) -> TransformerConfig:
    return TransformerConfig(
        layers=layers,
        d_model=16,
        heads=4,
        d_ff=32,
        vocab=32,
        seq=8,
        scan=scan,
        remat=remat,
        dropout=0.2 if dropout else 0.0,
    )


def momentum() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1e-2, momentum=0.9))


@functools.cache
def reference(
    scan: bool, remat: bool, dropout: bool, adamw: bool = False
) -> tuple[TransformerConfig, Any, Any]:
    """Config, arguments and the plain step's results."""
    config = config_of(scan, remat, dropout, layers=2 if scan or adamw else 1)
    tx = optimizer(learning_rate=1e-2, steps=2) if adamw else momentum()
    state = jax.jit(lambda: init_state(config, tx))()
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 32, (8, 9)), jnp.int32)
    args = (state, tokens, jax.random.key(7))
    return config, args, jax.jit(make_train_step(config))(*args)


@pytest.mark.devices
@pytest.mark.parametrize("name,scan,remat,dropout", PAIRS)
def test_step_equals_plain(
    name: str, scan: bool, remat: bool, dropout: bool, mesh: jax.sharding.Mesh
) -> None:
    compare(reference(scan, remat, dropout), name, mesh)


@pytest.mark.devices
@pytest.mark.parametrize(
    "name", [pytest.param(s, marks=pytest.mark.long) if "z3" not in s else s for s in SCHEDULES]
)
def test_adamw(name: str, mesh: jax.sharding.Mesh) -> None:
    compare(reference(False, False, True, adamw=True), name, mesh)


def compare(plain: tuple[TransformerConfig, Any, Any], name: str, mesh: jax.sharding.Mesh) -> None:
    config, args, want = plain
    step = ps.auto_partition(mesh, schedule=schedule(name), machine="cpu")(make_train_step(config))
    got = jax.block_until_ready(step(*args))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-5)
    for leaf in jax.tree.leaves(got):
        check_replicas(leaf, leaf.sharding)


@pytest.mark.devices
def test_found_plan_trains(mesh: jax.sharding.Mesh) -> None:
    """The automatic schedule, three steps with donation: state stays put, losses agree."""
    config, args, _ = reference(False, False, True, adamw=True)
    plain = jax.jit(make_train_step(config))
    step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=150, donate_argnums=0)(
        make_train_step(config)
    )
    single, tokens, key = args
    many = jax.tree.map(jnp.copy, single)
    plan = step.plan(many, tokens, key)
    for _ in range(3):
        many, loss = step(many, tokens, key)
        single, expected = plain(single, tokens, key)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    wanted = jax.tree.leaves(plan.in_shardings[0][0])
    for leaf, sharding in zip(jax.tree.leaves(many), wanted, strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    assert_same(jax.tree.leaves(many), jax.tree.leaves(single), tolerance=1e-4)
