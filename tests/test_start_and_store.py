"""States that begin sharded, checkpoints, eval steps, batches, plans on disk."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from models.transformer import TransformerConfig, init_state, make_train_step, optimizer

pytestmark = pytest.mark.devices

CONFIG = TransformerConfig(layers=1, d_model=32, heads=4, d_ff=64, vocab=64, seq=8)
TRAIN_STEP = make_train_step(CONFIG)
KEY = jax.random.key(1)
ZERO_3 = [
    ps.ManualPartition({"tokens": 0}, axis="batch"),
    ps.ManualPartition({"state/**": ps.FIRST_DIVISIBLE_DIM}, axis="batch"),
    ps.ManualPartition({"state/**/mlp_in/kernel": 1}, axis="model"),
]


def new_state() -> Any:
    return init_state(CONFIG, optimizer(steps=4))


def tokens(rows: int = 8) -> Any:
    return np.random.default_rng(0).integers(0, 64, (rows, CONFIG.seq + 1)).astype(np.int32)


def step_on(mesh: Any, **kw: Any) -> Any:
    return ps.auto_partition(mesh, machine="tpu_v5e", **{"schedule": ZERO_3, **kw})(TRAIN_STEP)


def test_init_is_sharded_from_the_start(mesh: jax.sharding.Mesh) -> None:
    """The state is the plain one; a device never has more than its part and a little beside it."""
    step = step_on(mesh)
    state = step.init(new_state, tokens(), KEY)
    plan = step.plan(state, tokens(), KEY)
    for a, b, s in zip(
        jax.tree.leaves(state),
        jax.tree.leaves(jax.jit(new_state)()),
        jax.tree.leaves(plan.in_shardings[0][0]),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert a.sharding == s
    whole = sum(x.nbytes for x in jax.tree.leaves(state))
    compiled = jax.jit(new_state, out_shardings=plan.in_shardings[0][0]).lower().compile()
    used = compiled.memory_analysis()
    allowance = 0.75 * whole  # of one device: the state does not fit
    assert used.output_size_in_bytes + used.temp_size_in_bytes < allowance
    new, _ = step(state, tokens(), KEY)
    assert jax.tree.leaves(new)[1].sharding == jax.tree.leaves(state)[1].sharding


def test_orbax_on_the_same_and_on_another_mesh(
    mesh: jax.sharding.Mesh, tmp_path: pathlib.Path
) -> None:
    """Losses go on as if nothing had happened."""
    step = step_on(mesh, donate_argnums=0)
    state = step.init(new_state, tokens(), KEY)
    state, _ = step(state, tokens(), KEY)
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "one", state)
    losses = []
    for _ in range(2):
        state, loss = step(state, tokens(), KEY)
        losses.append(float(loss))
    other = jax.make_mesh((4, 2), ("batch", "model"))
    for where in (mesh, other):
        again = step_on(where, donate_argnums=0)
        plan = again.plan(jax.eval_shape(new_state), tokens(), KEY)
        with ocp.StandardCheckpointer() as saver:
            restored = saver.restore(tmp_path / "one", plan.abstract_state)
        for x, want in zip(
            jax.tree.leaves(restored), jax.tree.leaves(plan.in_shardings[0][0]), strict=True
        ):
            assert x.sharding == want
        for expected in losses:
            restored, loss = again(restored, tokens(), KEY)
            np.testing.assert_allclose(float(loss), expected, rtol=1e-4)


def test_an_eval_step_follows(mesh: jax.sharding.Mesh) -> None:
    plan = step_on(mesh).plan(jax.eval_shape(new_state), tokens(), KEY)

    def eval_step(params: Any, tokens: Any) -> Any:
        logits = new_state().apply_fn({"params": params}, tokens[:, :-1])
        return jnp.mean(logits**2)

    follower = ps.auto_partition(mesh, machine="tpu_v5e", shardings_like=plan)(eval_step)
    params = jax.jit(new_state)().params
    followed = follower.plan(params, tokens(4))
    assert followed.partition_specs[0][0] == plan.partition_specs[0][0].params
    assert followed.partition_specs[0][1] == P("batch")
    assert not followed.searches
    got = follower(params, tokens(4))
    np.testing.assert_allclose(got, jax.jit(eval_step)(params, tokens(4)), rtol=1e-5)
    with pytest.raises(
        ValueError, match="no argument with the path and type of one in the plan of 'train_step'"
    ):
        ps.auto_partition(mesh, shardings_like=plan)(lambda x: x + 1).plan(
            np.zeros((3,), np.float32)
        )


def test_global_batch(mesh: jax.sharding.Mesh) -> None:
    plan = step_on(mesh).plan(jax.eval_shape(new_state), tokens(), KEY)
    batch = plan.make_global_batch(tokens())
    assert batch.sharding.spec == P("batch")
    np.testing.assert_array_equal(batch, tokens())
    with pytest.raises(ValueError, match="pass what this process has of a whole argument"):
        plan.make_global_batch({"tokens": tokens()})


def test_a_second_start_plans_nothing(tmp_path: pathlib.Path) -> None:
    """The plan comes from the folder; another seed or mesh has one of its own; a file that cannot
    be read is planned again.
    """
    mesh = AbstractMesh((2, 4), ("batch", "model"))
    args = jax.eval_shape(new_state), tokens(), KEY

    def plan_of(mesh: Any = mesh, **kw: Any) -> ps.Plan:
        step = step_on(mesh, schedule=None, episodes=30, cache=tmp_path, **kw)
        return step.plan(*args)

    first = plan_of()
    assert first.searches
    (file,) = tmp_path.iterdir()
    second = plan_of()
    assert not second.searches
    assert second.actions == first.actions
    assert second.cost == first.cost
    assert plan_of(seed=1).searches
    donated = plan_of(donate_argnums=0)
    assert donated.searches
    assert plan_of(AbstractMesh((4, 2), ("batch", "model"))).searches
    assert len(list(tmp_path.iterdir())) == 4
    file.write_text("{}")
    with pytest.warns(UserWarning, match="is not a plan that can be read.*planned again"):
        assert plan_of().searches
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not plan_of().searches
