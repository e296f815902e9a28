"""Equal programs on several matrices: found, computed once on a stack, and equal when executed."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.role import Role
from partir_search.ir.verify import verify
from partir_search.passes.stacks import Stack, find_stacks, stack_module
from partir_search.passes.stacks.find import stackable
from partir_search.rules import RuleTable
from partir_search.rules.registry import role_of
from partir_search.simulator.target.machine import find_machine
from tests.support import check_partition, floats_of, module_of, state_of

V5E = find_machine("tpu_v5e")
# Kernels of small matrices cost as much as those of large ones on a TPU.
SLOW = dataclasses.replace(
    V5E,
    name="slow",
    flops_per_s={k: v / 1e5 for k, v in V5E.flops_per_s.items()},
    hbm_bytes_per_s=V5E.hbm_bytes_per_s / 1e5,
    vmem_bytes_per_s=V5E.vmem_bytes_per_s / 1e5,
    kernel_seconds=0.0,
    hop_seconds=0.0,
)
Step = Callable[..., Any]


def muon(shapes: Sequence[tuple[int, int]], **options: Any) -> tuple[Step, tuple[Any, ...]]:
    """One update of `optax.contrib.muon` on matrices of these shapes, and its arguments."""
    tx = optax.contrib.muon(1e-2, **options)
    params = {f"w{i:02d}": x for i, x in enumerate(floats_of(*shapes))}
    grads = {f"w{i:02d}": x for i, x in enumerate(floats_of(*shapes[::-1])[::-1])}

    def update(params: Any, state: Any, grads: Any) -> Any:
        found, state = tx.update(grads, state, params)
        return optax.apply_updates(params, found), state

    return update, (params, tx.init(params), grads)


def newton_schulz(x: Any) -> Any:
    """Three iterations, unrolled."""
    x = x / (jnp.linalg.norm(x) + 1e-6)
    for _ in range(3):
        a = x @ x.T
        x = 3.4 * x + (-4.8 * a + 2.0 * a @ a) @ x
    return x


def train(widths: Sequence[tuple[int, int]]) -> tuple[Step, tuple[Any, ...]]:
    """A step of momentum with unrolled Newton-Schulz iterations on a small network."""
    weights, momenta = floats_of(*widths), floats_of(*widths)
    (x,) = floats_of((16, widths[0][0]))

    def step(weights: Any, momenta: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return (y**2).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        new = [w - 0.1 * newton_schulz(m) for w, m in zip(weights, momenta, strict=True)]
        return new, momenta, value

    return step, (weights, momenta, x)


def root(a: Any, power: float) -> Any:
    """Power of a symmetric matrix, by its eigenvectors."""
    values, vectors = jnp.linalg.eigh(a + 0.1 * jnp.eye(a.shape[0]))
    return (vectors * jnp.abs(values) ** power) @ vectors.T


def shampoo(weights: Any, left: Any, right: Any, grads: Any) -> Any:
    """One update of Shampoo."""
    left = [0.9 * x + g @ g.T for x, g in zip(left, grads, strict=True)]
    right = [0.9 * x + g.T @ g for x, g in zip(right, grads, strict=True)]
    sides = zip(weights, left, grads, right, strict=True)
    return [w - 0.1 * root(a, -0.25) @ g @ root(b, -0.25) for w, a, g, b in sides], left, right


def shampoo_args(n: int, rows: int, columns: int) -> tuple[Any, ...]:
    sides = [jnp.eye(rows)] * n, [jnp.eye(columns)] * n
    found = floats_of(*((rows, columns),) * (2 * n))
    return found[:n], *sides, found[n:]


def soap(bases: Any, moments: Any, count: Any, grads: Any) -> Any:
    """One update of preconditioners whose bases are refreshed every second step."""
    moments = [0.9 * m + g @ g.T for m, g in zip(moments, grads, strict=True)]

    def refreshed() -> Any:
        return [jnp.linalg.qr(m @ q)[0] for m, q in zip(moments, bases, strict=True)]

    new = jax.lax.cond(count % 2 == 0, refreshed, lambda: list(bases))
    return [q @ (q.T @ g) for q, g in zip(new, grads, strict=True)], new, moments, count + 1


def soap_args(n: int, size: int) -> tuple[Any, ...]:
    grads = floats_of(*((size, size),) * n)
    return [jnp.eye(size)] * n, [g @ g.T for g in grads], jnp.int32(0), grads


def flat(fn: Step, args: tuple[Any, ...]) -> tuple[Step, list[Any]]:
    """The function of flat arguments and results."""
    leaves, tree = jax.tree.flatten(args)
    return lambda *xs: jax.tree.leaves(fn(*jax.tree.unflatten(tree, xs))), leaves


def rules_of(module: Module) -> list[Any]:
    return list(map(RuleTable(), module.ops))


CASES: dict[str, Callable[[], tuple[Step, tuple[Any, ...]]]] = {
    "muon, 8 leaves": lambda: muon([(16, 32)] * 8),
    "muon, 12 leaves": lambda: muon([(16, 32)] * 12),
    "muon, 7 leaves": lambda: muon([(16, 32)] * 7),
    "muon, both ways": lambda: muon([(16, 32), (32, 16)] * 4),
    "muon, mixed shapes": lambda: muon([(16, 32), (32, 16), (8, 24)] * 2 + [(40, 16)]),
    "muon, first iteration apart": lambda: muon([(16, 32)] * 4, preconditioning="aol"),
    "momentum in a train step": lambda: train([(16, 16)] * 8),
    "shampoo": lambda: (shampoo, shampoo_args(8, 8, 16)),
    "bases in a cond": lambda: (soap, soap_args(8, 8)),
}
SIZES = {  # matrices in each stack and size of each stack, on 8 devices, filled if that helps
    "muon, 8 leaves": [(8, 8)],
    "muon, 12 leaves": [(12, 16)],
    "muon, 7 leaves": [(7, 8)],
    "muon, both ways": [(8, 8)],
    "muon, mixed shapes": [(4, 4), (2, 2)],
    "muon, first iteration apart": [(4, 4)],
    "momentum in a train step": [(8, 8)],
    "shampoo": [(8, 8)],
    "bases in a cond": [(8, 8)] * 3,
}


@pytest.mark.devices
@pytest.mark.parametrize("name", CASES)
def test_stacks_are_found_and_equal(name: str) -> None:
    """Each stack tiled by as many devices as divide it: evaluator, devices and plain agree."""
    fn, args = flat(*CASES[name]())
    module = module_of(fn, *args)
    exact, filled = find_stacks(module, rules_of(module), 8)
    assert [(len(s.values), s.size) for s in filled or exact] == SIZES[name]
    stacked = stack_module(module, rules_of(module), filled or exact)
    verify(stacked)
    assert len({v.name for v in stacked.values}) == len(stacked.values)
    state = state_of(stacked, MeshShape(("x", "y"), (4, 2)))
    stacks = [op.results[0] for op in stacked.ops if role_of(op) is Role.STACK]
    assert stacks
    for stack in stacks:
        for axis in (0, 1):
            cls = state.graph.class_of[stack.id]
            if state.may_tile(cls, 0, (axis,)):
                state.tile(cls, 0, (axis,))
    partition = state.partition()
    tiled = [partition.layout(stack)[0] for stack in stacks]
    assert all(tiled)  # 8 and 16 by both axes, 4 by the first, 2 by the second
    for stack, axes in zip(stacks, tiled, strict=True):
        devices = np.prod([(4, 2)[a] for a in axes])
        assert devices == np.gcd(8, stack.type.shape[0])
    check_partition(partition, fn, args)


def test_the_norm_is_stacked_and_the_momentum_is_not() -> None:
    """Ops before a chain belong to it as long as no more bytes enter the stack."""
    for shapes, entering in (
        ([(16, 32)] * 4, "f32[16,32]"),  # in Nesterov's form, a sum of two arrays
        ([(16, 32), (32, 16)] * 2, "f32[1,16,32]"),  # half of them before a transposition
    ):
        module = module_of(*flat_module(*muon(shapes)))
        (group,) = stackable(module, rules_of(module))
        own = [values[0] for values in group.entering if len({v.id for v in values}) > 1]
        assert [str(v.type) for v in own] == [entering]
        squares = {v.name for op in group.ops(0) for v in op.results}
        assert any(name.startswith("sqrt") for name in squares)


def test_one_array_leaves_unrolled_iterations() -> None:
    """The sum of the last iteration is taken in: its two operands would leave the stack."""
    module = module_of(*flat_module(*train([(16, 16)] * 4)))
    (group,) = stackable(module, rules_of(module))
    (values,) = group.leaving()
    assert [str(v.type) for v in values] == ["f32[16,16]"] * 4
    (last,) = {op.prim for op in module.ops if values[0] in op.results}
    assert last == "mul"  # by the learning rate: as many bytes


def flat_module(fn: Step, args: tuple[Any, ...]) -> tuple[Any, ...]:
    step, leaves = flat(fn, args)
    return step, *leaves


def test_layers_of_networks_are_not_stacked() -> None:
    """Products of one activation, layers behind each other, vectors, and gradients."""

    def attention(q: Any, k: Any, v: Any, x: Any) -> Any:
        return [jnp.tanh(x @ w) for w in (q, k, v)]

    square = floats_of(*((16, 16),) * 3, (64, 16))
    (fn, args) = train([(16, 16)] * 4)

    def plain(weights: Any, momenta: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: sum((x @ u).sum() for u in w))(weights)
        return [w - m - g for w, m, g in zip(weights, momenta, grads, strict=True)]

    for step, leaves in ((attention, square), flat(plain, args)):
        module = module_of(step, *leaves)
        assert find_stacks(module, rules_of(module), 8) == ((), ())
    module = module_of(*flat_module(fn, args))
    assert find_stacks(module, rules_of(module), 8)[0]
    assert find_stacks(module, rules_of(module), 1) == ((), ())
    assert find_stacks(module, rules_of(module), 3) == ((), ())  # 3 divides no stack of 4 or 5


def test_unknown_stacks_are_refused() -> None:
    module = module_of(*flat_module(*muon([(16, 32)] * 4)))
    with pytest.raises(ValueError, match="no equal programs that make a, b to stack"):
        stack_module(module, rules_of(module), [Stack(("a", "b"), 2)])


def test_search_stacks_where_it_pays() -> None:
    """Large matrices on 8 devices: the plan with stacks is found, and every matrix is whole."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    tx = optax.contrib.muon(1e-2)
    params = {f"w{i}": jax.ShapeDtypeStruct((2048, 4096), jnp.float32) for i in range(8)}
    state = jax.eval_shape(tx.init, params)

    def update(params: Any, state: Any, grads: Any) -> Any:
        found, state = tx.update(grads, state, params)
        return optax.apply_updates(params, found), state

    plans = {
        stack: ps.auto_partition(mesh, machine="tpu_v5e", episodes=60, stack=stack)(update).plan(
            params, state, params
        )
        for stack in ("auto", True, False)
    }
    assert not plans[False].stacks
    assert plans["auto"].stacks == plans[True].stacks
    assert [stack.size for stack in plans["auto"].stacks] == [8]
    assert plans["auto"].cost.seconds < 0.8 * plans[False].cost.seconds
    whole = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[])(update)
    ideal = whole.plan(params, state, params).cost.flops / 8
    assert plans["auto"].cost.flops < 1.01 * ideal


@pytest.mark.devices
@pytest.mark.parametrize(
    "name",
    ["muon, 8 leaves", "muon, 12 leaves", "muon, mixed shapes", "shampoo", "bases in a cond"],
)
def test_plans_with_stacks_run_and_are_saved(name: str, tmp_path: pathlib.Path) -> None:
    devices = jax.devices()[:8]
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=devices)
    fn, args = CASES[name]()
    options: dict[str, Any] = {"machine": SLOW, "episodes": 40, "progress": False}
    step = ps.auto_partition(mesh, stack=True, **options)(fn)
    plan = step.plan(*args)
    assert plan.stacks
    stacks = [op.results[0] for op in plan.module.ops if role_of(op) is Role.STACK]
    if name != "bases in a cond":  # too small for the search to spread
        assert any(plan.sketch.partition.layout(stack)[0] for stack in stacks)
    want, got = jax.jit(fn)(*args), step(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4), got, want)
    plan.save(tmp_path / "plan.json")
    again = ps.auto_partition(mesh, schedule=ps.load_plan(tmp_path / "plan.json"), **options)(fn)
    replayed = again.plan(*args)
    assert replayed.stacks == plan.stacks
    assert replayed.cost == plan.cost
    assert "stack" in [record.name for record in replayed.passes]


@pytest.mark.devices
def test_a_longer_batch_keeps_its_stacks() -> None:
    devices = jax.devices()[:8]
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=devices)
    fn, args = train([(16, 16)] * 8)
    step = ps.auto_partition(mesh, stack=True, machine=SLOW, episodes=40, progress=False)(fn)
    plan = step.plan(*args)
    longer = (*args[:2], jnp.concatenate([args[2]] * 2))
    other = step.plan(*longer)
    assert plan.stacks == other.stacks != ()
    want, got = jax.jit(fn)(*longer), step(*longer)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4), got, want)


def test_the_option_is_checked() -> None:
    mesh = jax.sharding.AbstractMesh((8,), ("x",))
    with pytest.raises(ValueError, match="stack is one of"):
        ps.auto_partition(mesh, machine="tpu_v5e", stack="always")  # type: ignore[arg-type]


@pytest.mark.devices
def test_stacks_by_a_tactic() -> None:
    """Whole matrices on each device, between parameters and momenta in rows."""
    devices = jax.devices()[:8]
    mesh = jax.make_mesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2, devices=devices)
    fn, args = muon([(16, 32), (32, 16)] * 4)

    def short(_: str, shape: tuple[int, ...]) -> int:
        return shape.index(16)

    dims = dict.fromkeys(("params/*", "grads/*", "state/**/mu"), short)
    rows = [ps.ManualPartition(dims, axis=axis) for axis in ("x", "y")]
    options: dict[str, Any] = {"machine": "tpu_v5e", "progress": False}
    schedule = [ps.StackParallel(("x", "y")), *rows]
    step = ps.auto_partition(mesh, schedule=schedule, **options)(fn)
    plan = step.plan(*args)
    counts = {kind: n for kind, n in plan.collective_counts.items() if n}
    assert counts == {"all_to_all": 2}
    want, got = jax.jit(fn)(*args), step(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4), got, want)
    for other in (schedule[:1], schedule):
        with pytest.raises(ps.IllegalAction, match="no equal programs on matrices"):
            ps.auto_partition(mesh, schedule=other, stack=False, **options)(fn).plan(*args)
    with pytest.raises(ValueError, match="StackParallel: axes are different axes"):
        ps.StackParallel(("x", "x"))
