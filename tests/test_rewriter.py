"""The rewriter of modules copies what a subclass does not change."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op, Region
from partir_search.ir.interpreter import evaluate
from partir_search.ir.printer import print_partition
from partir_search.ir.verify import verify
from partir_search.passes.rewriter import Rewriter
from tests.support import module_of, state_of

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def step(x: jax.Array, w: jax.Array) -> Any:
    table = np.arange(4, dtype=np.float32)[:, None]

    def body(carry: jax.Array, _: None) -> Any:
        return jnp.sin(carry @ w) + table, carry.sum()

    return jax.lax.scan(body, x, None, length=2)


def run(module: Any, *args: Any) -> list[Any]:
    return [np.asarray(y) for y in evaluate(state_of(module).partition(), args)]


def test_copy_is_the_same_program() -> None:
    module = module_of(step, X, np.eye(8, dtype=np.float32))
    copy = Rewriter(module).run()
    verify(copy)
    old, new = (print_partition(state_of(m).partition(), full=True) for m in (module, copy))
    assert old == new
    assert not set(map(id, module.values)) & set(map(id, copy.values))
    assert not set(map(id, module.ops)) & set(map(id, copy.ops))


def test_subclass_changes_ops_in_regions() -> None:
    class Cosines(Rewriter):
        def op(self, old: Op) -> Op:
            new = super().op(old)
            if old.prim != "sin":
                return new
            return dataclasses.replace(new, prim="cos", handle=jax.lax.cos_p, key=None)

    args = X, np.eye(8, dtype=np.float32)
    module = module_of(step, *args)
    copy = Cosines(module).run()
    verify(copy)
    wanted = module_of(lambda x, w: _with_cosines(x, w), *args)
    for got, want in zip(run(copy, *args), run(wanted, *args), strict=True):
        np.testing.assert_array_equal(got, want)


def _with_cosines(x: jax.Array, w: jax.Array) -> Any:
    table = np.arange(4, dtype=np.float32)[:, None]
    return jax.lax.scan(lambda c, _: (jnp.cos(c @ w) + table, c.sum()), x, None, length=2)


def test_subclass_drops_ops() -> None:
    """Ops whose results nothing uses any more go with a dropped one."""

    class Dropping(Rewriter):
        def ops(self, old: Region) -> list[Op]:
            return [self.op(op) for op in old.ops if op.prim != "reduce_sum"]

    def total(x: jax.Array) -> Any:
        return jnp.tanh(x) * 2, jnp.exp(x).sum()

    module = module_of(total, X)
    body = dataclasses.replace(module.body, results=module.body.results[:1])
    copy = Dropping(dataclasses.replace(module, body=body)).run()
    verify(copy)
    assert [op.prim for op in copy.ops] == ["tanh", "mul"]
