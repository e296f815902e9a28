"""Plans of ops with regions that states share are those that each state alone would make."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.support import floats_of, module_of, state_of

MESH = MeshShape(("batch", "model"), (4, 2))


def _nested(x: Any, w: Any, v: Any) -> Any:
    """Loops in a loop beside a cond, products in each."""

    def turn(c: Any, _: Any) -> tuple[Any, Any]:
        c = lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ w) @ v + i, c)
        c = lax.cond(c[0, 0] > 0, lambda y: y @ (w @ v), jnp.sin, c)
        return c, c.sum(0)

    return lax.scan(turn, x, length=4)


def test_states_share_what_they_tile_alike() -> None:
    args = floats_of((8, 16), (16, 32), (32, 16))
    module = module_of(jax.checkpoint(_nested), *args)
    rng, cache, made = random.Random(0), LocalCache(), 0
    for _ in range(40):
        state = state_of(module, MESH)
        for _ in range(2):  # of any value, also of those inside that nothing outside shares
            cls, dim = rng.randrange(len(state.graph.shapes)), rng.randrange(2)
            axes = state.mesh.axes(rng.choice(MESH.names))
            if len(state.graph.shapes[cls]) > dim and state.may_tile(cls, dim, axes):
                state.tile(cls, dim, axes)
        model = CostModel(module, state.graph.rules, MACHINES["tpu_v5e"])
        shared = localize(state.partition(), cache, sparse=True)
        alone = localize(state.partition(), sparse=True)
        assert [m.step for m, _ in shared.reshards()] == [m.step for m, _ in alone.reshards()]
        assert model.evaluate(shared) == model.evaluate(alone)
        made += len(alone.body.steps)
    assert made
    assert sum(map(len, cache.regions.values())) > len(cache.regions)
