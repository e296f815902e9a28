"""Rematerialisation: the rewrite computes the same in less memory; plans use it where they must."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from models.transformer import (
    TransformerConfig,
    example_args,
    init_state,
    make_train_step,
    optimizer,
)
from partir_search.ir.core import Module
from partir_search.ir.verify import verify
from partir_search.passes.fold.fold import fold
from partir_search.passes.remat import find_segments, forward_length, namesake, rematerialize
from partir_search.plan.rewrites import Rewrites
from partir_search.planning import stage_planner
from partir_search.planning.planner import Planner
from partir_search.planning.tactics import ManualPartition
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.actions import KeepGathered, Tile
from partir_search.rules.registry import rule_key
from tests.support import assert_same, check_partition, module_of, state_of, ties_of, tile_arg

LARGE = TransformerConfig(layers=4, d_model=1024, heads=8, d_ff=4096, vocab=8192, seq=1024)
SMALL = TransformerConfig(layers=2, d_model=32, heads=4, d_ff=64, vocab=64, seq=16, dropout=0.1)
STEP = make_train_step(LARGE)  # one function: jax traces it once
V5E = ps.MACHINES["tpu_v5e"]


@functools.cache
def large() -> Module:
    args = example_args(LARGE, optimizer(), 32)
    fn = jax.jit(STEP, donate_argnums=0)
    return trace_call(fn, split_call(fn, args, {}, (), ()), args, {}, "step").module


def deep(x: Any, *weights: Any) -> Any:
    """New weights after one step of a deep MLP."""

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = y + jnp.tanh(jnp.sin(y @ w) @ w.T)
        return (y * y).mean()

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def deep_args() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = [(8, 16)] + [(16, 32)] * 4
    return tuple(jnp.asarray(rng.normal(size=s) * 0.3, jnp.float32) for s in shapes)


def test_segments_lie_between_layers() -> None:
    module = large()
    segments = find_segments(module)
    assert 4 <= len(segments) <= 9
    assert all(a < b for a, b in segments)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(segments))
    assert segments[-1][1] <= forward_length(module)
    assert find_segments(module_of(lambda x: jnp.sin(x) @ x, jnp.ones((4, 4)))) == []


def test_rewrite_frees_memory() -> None:
    """The whole forward pass again costs about a third more flops and far less memory."""
    module = large()
    again = rematerialize(module, find_segments(module))
    verify(again)
    assert again.arg_paths == module.arg_paths
    assert again.ties == module.ties
    mesh = ps.MeshShape(("data", "model"), (4, 2))
    schedule = [ManualPartition({"tokens": 0}, "data")]
    before, after = (Planner(m, mesh, V5E).run(schedule).cost for m in (module, again))
    assert after.peak_bytes < 0.6 * before.peak_bytes
    assert 1.15 < after.flops / before.flops < 1.4
    some = rematerialize(module, find_segments(module)[:3])
    between = Planner(some, mesh, V5E).run(schedule).cost
    assert after.peak_bytes < between.peak_bytes < before.peak_bytes
    assert before.flops < between.flops < after.flops


@pytest.mark.devices
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("tiles", [[], [(0, 0, "batch")], [(0, 0, "batch"), (1, 1, "model")]])
def test_rewrite_computes_the_same(tiles: Any, every: int) -> None:
    """Under no tiling, data and model parallelism: evaluator, emitted program, plain function."""
    args = deep_args()
    module = module_of(deep, *args, ties=[(i + 1, i) for i in range(4)])
    segments = find_segments(module)[::every]
    again = rematerialize(module, segments)
    assert sum(op.prim == "checkpoint" for op in again.ops) == len(segments) >= 2
    verify(again)
    state = state_of(again)
    for arg, dim, axis in tiles:
        tile_arg(state, arg, dim, axis)
    check_partition(state.partition(), deep, args)


@pytest.mark.devices
@pytest.mark.parametrize("tiles", [[], [(0, 0, "batch"), (1, 1, "model")]])
def test_results_stored_in_segments_do_not_run_again(tiles: Any) -> None:
    """The second product of each segment is stored; evaluator, emitted program, plain function."""
    args = deep_args()
    module = module_of(deep, *args, ties=[(i + 1, i) for i in range(4)])
    ops, segments = module.body.ops, find_segments(module)

    def products(found: Module) -> int:
        return sum(op.prim == "dot_general" for op in found.ops)

    stored = [
        (begin, stop, [at for at in range(begin, stop) if ops[at].prim == "dot_general"][-1])
        for begin, stop in segments
    ]
    whole, part = rematerialize(module, segments), rematerialize(module, stored)
    assert sum(op.prim == "checkpoint" for op in part.ops) == len(segments)
    assert products(module) < products(part) < products(whole)
    verify(part)
    state = state_of(part)
    for arg, dim, axis in tiles:
        tile_arg(state, arg, dim, axis)
    check_partition(state.partition(), deep, args)


@pytest.mark.devices
def test_gradients_leave_segments_narrow() -> None:
    """They are widened for the optimizer after the segment, where the widening is fused."""

    def fn(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x.astype(jnp.bfloat16)
            for w in weights:
                w = w.astype(jnp.bfloat16)
                y = y + jnp.tanh(jnp.sin(y @ w) @ w.T)
            return jnp.square(y.astype(jnp.float32)).mean()

        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    args = deep_args()
    module = module_of(fn, *args)
    again = rematerialize(module, find_segments(module))
    verify(again)
    regions = [op for op in again.ops if op.prim == "checkpoint"]
    assert len(regions) >= 2
    assert {r.type.dtype for op in regions for r in op.results} == {jnp.dtype(jnp.bfloat16)}
    check_partition(state_of(again).partition(), fn, args)


def planned(machine: ps.Machine, **options: Any) -> ps.Plan:
    mesh = AbstractMesh((2, 2), ("data", "model"))
    wrapped = ps.auto_partition(mesh, machine=machine, episodes=60, donate_argnums=0, **options)
    return wrapped(STEP).plan(*example_args(LARGE, optimizer(), 32))


def test_search_computes_again_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = planned(V5E)
    assert roomy.remat == ()
    assert roomy.fits
    limit = int(0.6 * planned(V5E, remat=False, goals=[ps.Fit(1.0), ps.Fastest()]).cost.peak_bytes)
    tight = dataclasses.replace(V5E, hbm_bytes=limit)
    forms = mock.Mock(side_effect=stage_planner.with_tiles_of)
    monkeypatch.setattr(stage_planner, "with_tiles_of", forms)
    plan = planned(tight)
    assert forms.called
    assert plan.remat
    assert plan.fits
    assert plan.cost.seconds > roomy.cost.seconds
    every = planned(tight, remat=True)
    assert len(every.remat) >= len(plan.remat)
    assert every.cost.seconds >= 0.98 * plan.cost.seconds
    without = planned(tight, remat=False)
    assert not without.fits
    first, *others = without.remedies()
    assert "computed again" in first.what
    assert first.peak_bytes <= limit
    assert any("batch of about" in r.what and "instead of 32" in r.what for r in others)
    assert any("8 devices instead of 4" in r.what for r in others)
    assert all(r.peak_bytes <= limit for r in others)


def test_actions_find_their_values_where_other_segments_run_again() -> None:
    """Where a copy is not made, an action on it means the value itself."""
    segments = find_segments(large())
    names = [{v.name for v in rematerialize(large(), segments[:n]).values} for n in (0, 2, 4)]
    none, some, every = names
    again = {n for n in every if n.endswith("_again")}
    assert again - some
    for name in again | {n for n in every if n.endswith(("_in", "_"))}:
        assert namesake(name, every) == name
        assert namesake(name, none) in none
        assert namesake(name, some) in some
    action = Tile("a_again", 0, "data", also=("b",), barriers=("c_again",))
    wanted = Tile("a", 0, "data", also=("b",), barriers=("c",))
    assert action.renamed(lambda name: namesake(name, {"a", "b", "c"})) == wanted
    assert KeepGathered("data").renamed(str.upper) == KeepGathered("data")


def test_values_that_enter_several_regions_are_told_apart() -> None:
    """Actions find values by name: a mask read by all layers enters each region under its own."""

    def masked(x: Any, mask: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for w in weights:
                y = y + jnp.tanh(jnp.sin(y @ w) * mask @ w.T)
            return (y * y).mean()

        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    module = module_of(masked, np.ones((64, 8)), np.ones((64, 8)), *[np.eye(8)] * 4)
    n = forward_length(module)
    rewritten = rematerialize(module, [(0, n // 2), (n // 2, n)])
    entering = {v.name for v in rewritten.values if v.name.startswith("a1_in")}
    assert len(entering) > 1
    verify(rewritten)
    assert {namesake(name, module.value_names()) for name in entering} == {"a1"}


def test_no_more_is_computed_again_than_must_be() -> None:
    whole = planned(V5E, remat=False, goals=[ps.Fit(1.0), ps.Fastest()]).cost.peak_bytes
    some = planned(tight := dataclasses.replace(V5E, hbm_bytes=int(0.85 * whole)))
    assert 0 < len(some.remat) < len(find_segments(large()))
    assert some.fits
    assert some.searches
    assert not some.proven
    mesh = ps.MeshShape(("data", "model"), (2, 2))
    peaks = []
    for left in some.remat:
        fewer = rematerialize(large(), [s for s in some.remat if s != left])
        found, _ = Planner(fewer, mesh, tight).replay_compatible(some.actions)
        peaks.append(found.cost.peak_bytes)
    aim = (1.0 - V5E.traits.memory_fragmentation_fraction) * tight.hbm_bytes
    assert some.cost.peak_bytes <= aim < max(peaks)


@pytest.mark.devices
def test_plans_with_remat_run_and_are_saved(
    mesh: jax.sharding.Mesh, tmp_path: pathlib.Path
) -> None:
    fn = make_train_step(SMALL)
    state = jax.jit(lambda: init_state(SMALL, optimizer()))()
    tokens = np.random.default_rng(0).integers(0, 64, (8, SMALL.seq + 1)).astype(np.int32)
    args = (state, tokens, jax.random.key(0))
    options: dict[str, Any] = {"machine": "tpu_v5e", "episodes": 40}
    step = ps.auto_partition(mesh, remat=True, **options)(fn)
    plan = step.plan(*args)
    assert len(plan.remat) >= 2
    assert "checkpoint" in plan.ir()
    assert_same(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(fn)(*args)), 1e-4)
    plan.save(tmp_path / "plan.json")
    again = ps.auto_partition(mesh, schedule=ps.load_plan(tmp_path / "plan.json"))(fn).plan(*args)
    stored = Rewrites(remat=((0, 6), (6, 19, 9, 12)))
    assert Rewrites.from_json(json.loads(json.dumps(stored.to_json()))) == stored
    assert again.remat == plan.remat
    assert again.ir() == plan.ir()
    assert again.fingerprint == ps.auto_partition(mesh, **options)(fn).plan(*args).fingerprint


def test_what_cannot_fit_is_refused_before_compiling(mesh: jax.sharding.Mesh) -> None:
    fn = make_train_step(SMALL)
    args = example_args(SMALL, optimizer(), 8)
    tiny = dataclasses.replace(V5E, hbm_bytes=20_000)
    options: dict[str, Any] = {"machine": tiny, "episodes": 10}
    step = ps.auto_partition(mesh, **options)(fn)
    with pytest.raises(
        ps.DoesNotFit, match=r"needs [\d.]+ kB on a device .*, the limit is 20 kB"
    ) as caught:
        step.lower(*args)
    assert "on_overflow='warn'" in str(caught.value)
    loose = ps.auto_partition(mesh, on_overflow="warn", **options)(fn)
    with pytest.warns(UserWarning, match="the step does not fit"):
        loose.lower(*args)
    with pytest.raises(ValueError, match="remat is one of"):
        ps.auto_partition(mesh, remat="yes")  # type: ignore[arg-type]


def test_layers_run_again_in_pairs_fold() -> None:
    """Updates go by the order of names (0, 1, 10 to 19, 2, 20, ...), in which even and odd layers
    do not take turns: beside gradients of one class they merge all the same.
    """
    entry = MODELS["ssm-tiny"].resized(layers=24)
    step, args = jax.jit(entry.step), entry.abstract_args(4)
    module = trace_call(step, split_call(step, args, {}, (), ()), args, {}, "step").module
    segments = find_segments(module)
    pairs = [(a[0], b[1]) for a, b in zip(segments[::2], segments[1::2], strict=True)]
    folded = fold(rematerialize(module, pairs), rule_key, ties_of=ties_of)
    assert len(folded.module.body.args) < len(module.body.args) / 10
