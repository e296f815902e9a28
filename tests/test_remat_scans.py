"""Rematerialisation of scans: iterations run again, as a whole or with results stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module, Value
from partir_search.ir.verify import verify
from partir_search.passes.remat import find_segments, rematerialize
from partir_search.planning.tactics import ManualPartition
from tests.support import assert_same, check_partition, module_of, state_of, tile_arg


def scanned(x: Any, stacked: Any, shared: Any, shift: Any) -> Any:
    """New weights of a scan over layers with weights of each, of all, and a second carry."""

    def loss(stacked: Any, shared: Any) -> Any:
        def layer(carry: Any, w: Any) -> tuple[Any, Any]:
            y, count = carry
            z = jnp.tanh(y @ w["a"] + shift[count]) @ w["b"]
            z = jax.nn.softmax(z @ shared)
            return (y + jnp.sin(z), count + 1), z.mean()

        (y, _), means = jax.lax.scan(layer, (x, 0), stacked)
        return (y * y).mean() + means.sum()

    value, (a, b) = jax.value_and_grad(loss, argnums=(0, 1))(stacked, shared)
    new = jax.tree.map(lambda w, g: w - 0.1 * g, stacked, a)
    return value, new, shared - 0.1 * b


def scanned_args() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32)

    return array(8, 16), {"a": array(4, 16, 32), "b": array(4, 32, 16)}, array(16, 16), array(4, 32)


@pytest.mark.devices
def test_iterations_of_a_scan_run_again(mesh: jax.sharding.Mesh) -> None:
    """The carry is kept, once for each layer, and nothing else; results are those of the plain step
    under every strategy that is tried.
    """
    args = scanned_args()
    flat = jax.tree.leaves(args)

    def fn(*xs: Any) -> Any:
        return jax.tree.leaves(scanned(*jax.tree.unflatten(jax.tree.structure(args), xs)))

    module = module_of(fn, *flat)
    (segment,) = find_segments(module)
    assert module.body.ops[segment[0]].prim == "scan"
    again = rematerialize(module, [segment])
    verify(again)

    def stacked_bytes(m: Module) -> int:
        scan = next(op for op in m.body.ops if op.prim == "scan")
        return sum(r.type.nbytes for r in scan.results if r.type.shape[:1] == (4,))

    carry = 4 * 8 * 16 * 4  # layers, batch, width, bytes
    assert stacked_bytes(again) <= carry + 4 * 4 + 4 * 4  # the means, and the counts
    assert stacked_bytes(module) > 4 * carry
    for arg, dim, axis in ((0, 0, "batch"), (1, 2, "model"), (2, 1, "batch"), (3, 0, "model")):
        state = state_of(again)
        tile_arg(state, arg, dim, axis)
        check_partition(state.partition(), fn, flat)
    batch, _ = mesh.axis_names
    for schedule in (None, [ManualPartition({"x": 0}, axis=batch)]):
        step = ps.auto_partition(mesh, machine="cpu", schedule=schedule, remat=True, episodes=30)(
            scanned
        )
        plan = step.plan(*args)
        assert plan.remat == (segment,)
        assert_same(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(scanned)(*args)))


@pytest.mark.devices
@pytest.mark.parametrize("tiles", [[], [(0, 0, "batch")], [(0, 0, "batch"), (1, 2, "model")]])
def test_results_stored_in_scans_do_not_run_again(tiles: Any) -> None:
    """Products of each iteration are stored, of which one is no residual, and a residual that is
    the operand of a recomputed op; evaluator, emitted program, plain function.
    """
    flat = jax.tree.leaves(scanned_args())

    def fn(*xs: Any) -> Any:
        return jax.tree.leaves(scanned(*jax.tree.unflatten(tree, xs)))

    tree = jax.tree.structure(scanned_args())
    module = module_of(fn, *flat)
    (segment,) = find_segments(module)
    region = module.body.ops[segment[0]].regions[0]
    products = [at for at, op in enumerate(region.ops) if op.prim == "dot_general"]
    tanh = [at for at, op in enumerate(region.ops) if op.prim == "tanh"]
    stacked = {x.id for x in region.results if isinstance(x, Value)}
    assert any(region.ops[at].results[0].id not in stacked for at in products)
    assert all(region.ops[at].results[0].id in stacked for at in tanh)

    def count(prim: str, found: Module) -> int:
        return sum(op.prim == prim for op in found.ops)

    whole = rematerialize(module, [segment])
    part = rematerialize(module, [(*segment, *products[1:], *tanh)])
    verify(part)
    assert count("dot_general", module) < count("dot_general", whole)
    assert count("dot_general", part) == count("dot_general", module)
    assert count("tanh", part) == count("tanh", module) < count("tanh", whole)
    forward, after = (m.body.ops[segment[0]] for m in (module, part))
    assert any(op.prim == "cos" for op in forward.regions[0].ops)
    assert not any(op.prim == "cos" for op in after.regions[0].ops)  # made in the backward scan
    assert len(after.results) < len(forward.results)
    state = state_of(part)
    for arg, dim, axis in tiles:
        tile_arg(state, arg, dim, axis)
    check_partition(state.partition(), fn, flat)


@pytest.mark.devices
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gpt-scan-tiny", marks=pytest.mark.long),
        pytest.param("lstm-tiny", marks=pytest.mark.long),
        pytest.param("microbatch-tiny", marks=pytest.mark.long),
        pytest.param("ssm-tiny", marks=pytest.mark.long),
    ],
)
def test_scanned_models_run_again(name: str, mesh: jax.sharding.Mesh) -> None:
    entry = MODELS[name]
    if name == "gpt-scan-tiny":
        entry = entry.resized(remat="")
    args = jax.jit(lambda: entry.args(8))()
    step = ps.auto_partition(mesh, machine="tpu_v5e", remat=True, episodes=20)(entry.step)
    plan = step.plan(*args)
    scans = [
        a for a, b, *_ in plan.remat if plan._original.body.ops[a].prim == "scan" and b == a + 1
    ]
    assert bool(scans) == (name in ("gpt-scan-tiny", "lstm-tiny"))
    want = jax.tree.leaves(jax.jit(entry.step)(*args))
    assert_same(jax.tree.leaves(step(*args)), want, 2e-2 if name == "microbatch-tiny" else 2e-3)
