"""A row put into a sequence, or cut out of one, does not decide how the sequence lies in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding

import partir_search as ps
from partir_search.lowering import shard_map
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.lone_rows import lone_rows
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.traits import NEUTRAL
from partir_search.simulator.target.known_traits import PLATFORMS

BATCH = 64


def attention_step(params: Any, token: Any, x: Any) -> Any:
    """Update of a layer of attention over rows of `x` behind a token of each sequence."""

    def loss(params: Any) -> Any:
        h = jnp.concatenate([(token @ params["token"])[:, None], x], 1)
        q, k, v = (z.reshape(*h.shape[:2], -1, 64) for z in jnp.split(h @ params["qkv"], 3, -1))
        shares = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k) / 8, -1)
        h = h + jnp.einsum("bhqk,bkhe->bqhe", shares, v).reshape(h.shape) @ params["out"]
        h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
        return (h[:, 1:].astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def first(token: Any, x: Any) -> Any:
    return jnp.concatenate([token[:, None] * 2, x], 1)


def recurrent(token: Any, x: Any) -> Any:
    """A recursion over rows, written out."""
    rows = [token]
    for t in range(x.shape[1]):
        rows.append(jnp.tanh(rows[-1] + x[:, t]))
    return jnp.concatenate([row[:, None] for row in rows], 1)


def planned(mesh: Any, fn: Any, *args: Any) -> LocalProgram:
    tactics = [ps.ManualPartition({"token": 0, "x": 0}, axis="batch")]
    return ps.auto_partition(mesh, schedule=tactics, machine="tpu_v5e")(fn).plan(*args).program


@pytest.mark.parametrize(
    ("fn", "batch", "rows", "width", "held"),
    [
        (first, 64, 15, 256, [(8, 1, 256)]),
        (first, 64, 15, 64, []),
        (first, 64, 6, 256, []),
        (first, 8, 15, 256, []),
        (recurrent, 64, 15, 256, []),
    ],
    ids=["token", "narrow", "few rows", "one sequence", "all rows"],
)
def test_single_rows_are_found(
    fn: Any, batch: int, rows: int, width: int, held: list[tuple[int, ...]]
) -> None:
    shapes = [(batch, width), (batch, rows, width)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = planned(AbstractMesh((8,), ("batch",)), fn, *args)
    found = lone_rows(program, program.body, NEUTRAL)
    assert [row.shape for each in found.values() for row in each] == held


def test_rows_in_order_change_no_number(mesh: jax.sharding.Mesh) -> None:
    random = np.random.default_rng(0)
    shapes = [(BATCH, 128), (BATCH, 15, 128)]
    args = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    program = schedule_for(planned(mesh, first, *args), PLATFORMS["tpu"])
    specs = [NamedSharding(mesh, s) for s in shard_map.argument_specs(program)]
    lowered = jax.jit(shard_map.sharded(program, mesh)).lower(*jax.device_put(args, specs))
    assert lowered.as_text().count("@LayoutConstraint") == 1
    (found,) = lowered.compile()(*jax.device_put(args, specs))
    np.testing.assert_array_equal(found, first(*args))


@pytest.mark.compilers
def test_a_token_does_not_turn_the_sequence() -> None:
    """XLA:TPU laid out sums and gradients of all rows with the batch between rows and lanes."""
    d = 256
    sizes = {
        "token": (d, d),
        "qkv": (d, 3 * d),
        "out": (d, d),
        "up": (d, 2 * d),
        "down": (2 * d, d),
    }
    params = {name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in sizes.items()}
    rows = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((BATCH, d), (BATCH, 63, d))]
    tactics = [ps.ManualPartition({"token": 0, "x": 0}, axis="batch")]
    plan = ps.auto_partition(AbstractMesh((8,), ("batch",)), schedule=tactics, machine="tpu_v5e")(
        attention_step
    ).plan(params, *rows)
    found = plan.verify("tpu_v5e:2x4")
    assert found.confirmed, str(found)
    assert "[8,64,256]{2,1,0" in found.hlo
    assert "[8,64,256]{2,0,1" not in found.hlo
