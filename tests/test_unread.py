"""Operands and results of loops that no op reads: left out of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op
from partir_search.ir.verify import verify
from partir_search.passes.remat import find_scans, find_segments, rematerialize
from partir_search.passes.remat_scan import copied_ops
from partir_search.passes.unread import without_unread
from partir_search.rules.registry import RuleTable
from tests.support import assert_same, check_partition, module_of, state_of, tile_arg


def array(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape) * 0.3, jnp.float32)


X, WS = array(8, 16), array(4, 16, 16)


def unread_elements(x: Any, ws: Any, extra: Any) -> Any:
    """A scan that returns its `extra` elements to a scan that does not read them."""

    def one(c: Any, each: Any) -> Any:
        w, e = each
        return jnp.tanh(c @ w), (c, e * 2.0)

    def other(c: Any, each: Any) -> Any:
        a, _ = each
        return c + jnp.sin(a), None

    y, (kept, unread) = jax.lax.scan(one, x, (ws, extra))
    z, _ = jax.lax.scan(other, jnp.zeros_like(x), (kept, unread))
    return y, z


def unread_results(x: Any, ws: Any, extra: Any) -> Any:
    """A conditional and a loop with results without readers, of values read for these alone."""

    def body(carry: Any) -> Any:
        n, c, e = carry
        return n + 1, jnp.tanh(c @ ws[0]), e * 1.5

    y, _ = jax.lax.cond(
        x[0, 0] > 0.0, lambda a, b: (a * 2.0, b @ b), lambda a, b: (a, b), x, extra[0]
    )
    return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, y, extra[1]))[1]


def of(module: Module, prim: str) -> list[Op]:
    return [op for op in module.body.ops if op.prim == prim]


@pytest.mark.devices
@pytest.mark.parametrize("fn", [unread_elements, unread_results])
@pytest.mark.parametrize("tiles", [[], [(0, 0, "batch")], [(0, 1, "model"), (1, 2, "batch")]])
def test_left_out(fn: Callable[..., Any], tiles: Any) -> None:
    args = (X, WS, array(4, 16, 16))
    module = module_of(fn, *args)
    new = without_unread(module, RuleTable())
    verify(new)
    assert without_unread(new, RuleTable()) is new
    if fn is unread_elements:
        first, second = of(new, "scan")
        assert len(first.results) == len(first.operands) == len(second.operands) == 2
        assert not any(op.prim == "mul" for op in new.ops)
    else:
        assert len(of(new, "cond")[0].results) == 1
        assert sum(op.prim == "dot_general" for op in new.ops) == 1
        assert len(of(new, "while")[0].results) == 3  # carries are kept
    state = state_of(new)
    for arg, dim, axis in tiles:
        tile_arg(state, arg, dim, axis)
    check_partition(state.partition(), fn, args)


def two_losses(x: Any, ws: Any) -> Any:
    """Gradients of two backward scans of one forward scan, of each for one half of the weights."""

    def layers(a: Any, b: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            h = jnp.sin(jnp.tanh(c @ w[0]))
            return c + jnp.cos(h * h) @ w[1], h.mean()

        return jax.lax.scan(layer, x, (a, b))

    (y, means), vjp = jax.vjp(layers, ws, 2.0 * ws)
    a, _ = vjp((y, jnp.zeros_like(means)))
    _, b = vjp((jnp.ones_like(y), means))
    return a, b


def test_recomputed_ops_of_each_backward_scan() -> None:
    """Ops that a backward scan repeats are those of the residuals that it reads itself."""
    module = without_unread(module_of(two_losses, X, WS), RuleTable())
    segments = find_segments(module)
    ((_, remat),) = find_scans(module, segments).items()
    assert remat is not None
    assert len(remat.users) == 2
    again, uses = rematerialize(module, segments), def_use(module)
    region = module.body.ops[remat.position].regions[0]
    copied = [copied_ops(module, uses, remat, user) for user in remat.users]
    assert len({*map(len, copied)}) == 2
    for user, some in zip(remat.users, copied, strict=True):
        ops = again.body.ops[user].regions[0].ops[: len(some)]
        assert [region.ops[at].prim for at in some] == [op.prim for op in ops]
        assert all(op.results[0].name.endswith("_again") for op in ops)


@pytest.mark.devices
def test_two_backward_scans_are_planned(mesh: jax.sharding.Mesh) -> None:
    step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=30, progress=False)(two_losses)
    assert_same(step(X, WS), jax.jit(two_losses)(X, WS))
