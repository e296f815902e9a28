"""What tests of rings share: a mesh with a diagonal, and one step of two matrices on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from partir_search.ir.mesh import MeshShape
from partir_search.propagation.state import State
from tests.support import module_of, state_of, tile_arg


def square(n: int) -> MeshShape:
    return MeshShape(("r", "c"), (n, n)).with_diagonals(["r~c"])


def mlp(w1: Any, w2: Any, x: Any) -> tuple[Any, Any]:
    """One step of two matrices."""

    def loss(w1: Any, w2: Any) -> Any:
        y = jnp.tanh(x @ w1) @ w2
        return jnp.sum(y * y)

    g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
    return w1 - 0.1 * g1, w2 - 0.1 * g2


def mlp_state(mesh: MeshShape, args: Sequence[Any]) -> State:
    state = state_of(module_of(mlp, *args, ties=[(0, 0), (1, 1)]), mesh)
    for arg, dim, axis in ((2, 0, "r"), (2, 1, "c"), (0, 1, "r~c"), (1, 1, "c")):
        tile_arg(state, arg, dim, axis)
    return state
