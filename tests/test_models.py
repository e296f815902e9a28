"""Every model of the catalog: found plans, known strategies and random plans compute the plain
step, and what is emitted and compiled holds the planned collectives.

`pytest tests/test_models.py --long --plans=20` runs 20 random plans and all known strategies of
each, also of the models that are left out without `--long`: their layers run in others.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partir_search as ps
from models import training
from models.catalog import MODELS
from partir_search.plan.plan import spec_of
from partir_search.propagation.actions import Action, Tile, action_from_json
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State

TINY = tuple(sorted(name for name in MODELS if name.endswith("-tiny")))
ALIKE = ("bert", "bloom", "decoding", "gpt", "gpt-scan", "llama", "master", "nnx")
ALIKE += ("ensemble", "lora", "microbatch", "mixer", "nnx-scan", "opt", "vit")
NAMES = [
    pytest.param(n, marks=pytest.mark.long) if n.removesuffix("-tiny") in ALIKE else n for n in TINY
]
# Rounding: bfloat16 gradients differ by a bit of 2^-8, float8 ones by one of 2^-3, where a sum's
# order puts a value on the other side of a tie.
TOLERANCE = {"master-tiny": 1e-2, "microbatch-tiny": 1e-2, "float8-tiny": 0.1}


@pytest.fixture(autouse=True)
def momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum after one step is the clipped gradient, so that comparing states compares these;
    Adam would blow up gradients that are zero but for rounding (those of a key's bias).
    """
    monkeypatch.setattr(
        training,
        "optimizer",
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2, momentum=0.9)),
    )


@functools.cache
def plain(name: str) -> tuple[Any, Any]:
    """Arguments and results of one step on one device."""
    entry = MODELS[name]
    args = jax.jit(lambda: entry.args(8))()
    return args, jax.jit(entry.step)(*args)


def compare(name: str, mesh: jax.sharding.Mesh, **options: Any) -> ps.Plan:
    """Runs the model partitioned; asserts equal results and the planned collectives."""
    args, want = plain(name)
    step = ps.auto_partition(mesh, machine="tpu_v5e", **options)(MODELS[name].step)
    plan = step.plan(*args)
    assert not plan.opaque()
    lowered = step.lower(*args)
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    got = jax.block_until_ready(lowered.compile()(*args))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    same(jax.tree.leaves(got), jax.tree.leaves(want), TOLERANCE.get(name, 2e-4))
    return plan


def same(got: list[Any], want: list[Any], tolerance: float) -> None:
    """Leaf by leaf, against the leaf's largest element."""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = max(np.abs(y).max(initial=0), 1e-3)
        assert np.abs(x - y).max(initial=0) <= tolerance * scale, f"leaf {i}"


@pytest.mark.devices
@pytest.mark.parametrize("name", NAMES)
def test_plans(name: str, mesh: jax.sharding.Mesh, request: pytest.FixtureRequest) -> None:
    """The found plan, and for every eighth model a random one; or `--plans` random ones, and the
    known strategies.
    """
    count = request.config.getoption("--plans") or (TINY.index(name) % 8 == 1)
    args, _ = plain(name)
    found = compare(name, mesh, episodes=60)
    if count > 1:
        step = ps.auto_partition(mesh, machine="tpu_v5e")(MODELS[name].step)
        known = step.known_plans(*args).values()
        distinct = {str((p.partition.loops, p.partition.tiles, p.partition.mesh)): p for p in known}
        for plan in distinct.values():
            compare(name, mesh, schedule=plan)
    base = spec_of(found)
    no_remat = dataclasses.replace(base.rewrites, remat=())
    state = State(Graph(found.module), base.mesh)
    for seed in range(count):
        start = state.key()
        rng = random.Random(f"{name} {seed}")
        actions = tuple(random_actions(state, rng))
        state.restore(start)
        compare(name, mesh, schedule=dataclasses.replace(base, actions=actions, rewrites=no_remat))


def random_actions(state: State, rng: random.Random) -> Iterator[Action]:
    """Legal tilings of arguments and, one in three, of values inside."""
    module = state.graph.module
    for _ in range(rng.randint(3, 12)):
        values = module.values if rng.random() < 0.3 else module.body.args
        value = rng.choice(values)
        if not value.type.shape:
            continue
        dim = rng.randrange(len(value.type.shape))
        axis = rng.randrange(len(state.mesh.names))
        if state.may_tile(state.graph.class_of[value.id], dim, (axis,)):
            state.tile(state.graph.class_of[value.id], dim, (axis,))
            yield Tile(value.name, dim, state.mesh.names[axis])


@pytest.mark.devices
def test_experts_on_the_axis_of_the_tokens(mesh: jax.sharding.Mesh) -> None:
    """GShard: tokens travel to the experts and back, forward and backward (where the tokens that
    went in are sent once more, for the weights' gradients), and no expert's weight moves.
    """
    (args, _), entry = plain("moe-tiny"), MODELS["moe-tiny"]
    axis, other = mesh.axis_names
    known = ps.auto_partition(mesh, machine="tpu_v5e")(entry.step).known_plans(*args)
    plan = known[f"BP({axis}+{other})+EP({axis})"]
    mixtures = sum(i % 2 for i in range(entry.config.layers))
    assert [c.kind for c in plan.collectives].count("all_to_all") == 5 * mixtures
    specs = {path: spec for path, _, spec in plan.arguments()}
    assert all(spec[0] == axis for path, spec in specs.items() if path.endswith(("w_in", "w_out")))
    actions = plan.to_json()["actions"]
    assert any("barriers" in a for a in actions)
    assert [action_from_json(a).to_json() for a in actions] == actions
    compare("moe-tiny", mesh, schedule=plan)
