"""Known schedules give the published collective counts (PartIR, arXiv 2401.11202, T32 rows).

With 4 matrices and 5 vectors per layer and a tied embedding: BP reduces 9L+1 gradients and the
loss; MP reduces 4 activations a layer; Z2 scatters and gathers 4L+1 matrices; Z3 gathers 8L+3
times (matrices forward and backward, the embedding for lookup, head and head's gradient).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
import pytest

import partir_search as ps
from experiments.schedules import schedule
from models.catalog import MODELS
from models.transformer import TransformerConfig, example_args, make_train_step, optimizer
from partir_search.plan.plan import spec_of
from partir_search.plan.rewrites import Rewrites
from partir_search.propagation.actions import Tile

SCHEDULES = ("bp", "bp+mp", "mp", "bp+mp+z2", "bp+mp+z3")


def formula(name: str, layers: int) -> tuple[int, int, int, int]:
    """all_gather, all_reduce, reduce_scatter, all_to_all."""
    n = layers
    return {
        "bp": (0, 9 * n + 2, 0, 0),
        "bp+mp": (0, 9 * n + 2 + 4 * n, 0, 0),
        "mp": (0, 4 * n, 0, 0),
        "bp+mp+z2": (4 * n + 1, 9 * n + 1, 4 * n + 1, 0),
        "bp+mp+z3": (8 * n + 3, 9 * n + 1, 4 * n + 1, 0),
    }[name]


def test_formulas_are_the_published_ones() -> None:
    assert [formula(s, 32) for s in SCHEDULES] == [
        (0, 290, 0, 0),
        (0, 418, 0, 0),
        (0, 128, 0, 0),
        (129, 289, 129, 0),
        (259, 289, 129, 0),
    ]


@functools.cache
def step_and_args(layers: int) -> tuple[Any, Any]:
    config = TransformerConfig(layers=layers, d_model=16, heads=4, d_ff=32, vocab=32, seq=8)
    tx = optimizer(clip=None)
    return jax.jit(make_train_step(config), donate_argnums=0), example_args(config, tx, 8)


def plan_of(layers: int, name: str, mesh: jax.sharding.Mesh) -> Any:
    step, args = step_and_args(layers)
    partitioned = ps.auto_partition(mesh, schedule=schedule(name), machine="tpu_v5e")(step)
    return partitioned, partitioned.plan(*args), args


@pytest.mark.devices
@pytest.mark.parametrize("layers", [2, 3, pytest.param(32, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_counts(name: str, layers: int, mesh: jax.sharding.Mesh) -> None:
    """The plan's collectives follow the formulas, and the StableHLO holds exactly these."""
    partitioned, plan, args = plan_of(layers, name, mesh)
    counts = plan.collective_counts
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    assert tuple(counts[k] for k in kinds) == formula(name, layers)
    assert counts["collective_permute"] == 0
    assert not plan.conflicts()
    if layers < 32:
        assert ps.stablehlo_counts(partitioned.lower(*args).as_text()) == counts


@pytest.mark.devices
def test_gathers_survive_compilation(mesh: jax.sharding.Mesh) -> None:
    """ZeRO-3 gathers again in the backward: XLA must not merge the two (its memory is at stake).

    XLA:CPU drops barriers before it merges; without that pass the counts are the plan's.
    """
    partitioned, plan, args = plan_of(2, "bp+mp+z3", mesh)
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    text = partitioned.lower(*args).compile(compiler_options=options).as_text()
    assert ps.hlo_counts(text)["all_gather"] == plan.collective_counts["all_gather"]


def test_shardings_of_zero3(mesh: jax.sharding.Mesh) -> None:
    """State leaves as it enters; ZeRO's axis is minor where it shares a dim with Megatron's."""
    _, plan, _ = plan_of(2, "bp+mp+z3", mesh)
    (state_in, *_), _ = plan.in_shardings
    state_out, _ = plan.out_shardings
    assert jax.tree.leaves(state_in) == jax.tree.leaves(state_out)
    specs = {path: spec for path, _, spec in plan.arguments()}
    assert specs["state/params/layer_0/mlp_in/kernel"] == jax.P("batch", "model")
    assert specs["state/params/layer_0/mlp_out/kernel"] == jax.P("model", "batch")
    assert specs["state/params/layer_0/norm1/scale"] == jax.P()


def test_collectives_name_the_users_lines(mesh: jax.sharding.Mesh) -> None:
    """Not flax's and not optax's: the line of the model that called them."""
    _, plan, _ = plan_of(2, "bp+mp", mesh)
    assert {c.source.split(":")[0].rsplit("/", 2)[-2:][0] for c in plan.collectives} == {"models"}
    (embed,) = [c for c in plan.collectives if "embed" in c.value]
    assert embed.source.endswith(("(Transformer.__call__)", "(loss_fn)"))


def test_zero_shards_every_matrix_of_a_fold() -> None:
    """Three blocks a level, of which a fold keeps some apart: it knows all parameters as such."""
    entry = MODELS["unet-tiny"].resized(blocks=3)
    args = entry.abstract_args(4)
    mesh = jax.sharding.AbstractMesh((2,), ("batch",))
    known = ps.auto_partition(mesh, machine="tpu_v5e")(entry.step).known_plans(*args)
    matrices = sum(p.ndim > 1 for p in jax.tree.leaves(args[0].params))
    counts = known["BP(batch)+Z2"].collective_counts
    assert counts["reduce_scatter"] == counts["all_gather"] == matrices
    assert known["BP(batch)+Z3"].collective_counts["reduce_scatter"] == matrices


@pytest.mark.parametrize("name", ["gpt-scan-tiny", "nnx-scan-tiny"])
def test_scanned_layers(name: str) -> None:
    """Strategies reach into scans: Megatron tiles the stacked matrices of all layers, and ZeRO-2
    scatters their gradients inside of the loop, along no dim of layers.
    """
    entry = MODELS[name].resized(layers=4)
    args = entry.abstract_args(8)
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    known = ps.auto_partition(mesh, machine="tpu_v5e")(entry.step).known_plans(*args)
    plan = known["BP(batch)+MP(model)"]
    specs = {path: spec for path, _, spec in plan.arguments() if "kernel" in path}
    assert len(specs) >= 18  # six of the layers, and two moments of each
    for path, spec in specs.items():
        row = "attention/out" in path or "mlp_out" in path
        assert spec[1 if row else 2] == "model", path
    inside = [c for c in plan.collectives if c.times == 4 and c.axes == ("model",)]
    assert len(inside) >= 4  # two forward, two backward
    zero = known["BP(batch)+Z2"]
    scattered = [c for c in zero.collectives if c.kind == "reduce_scatter" and c.times == 4]
    assert len(scattered) >= 6
    assert not any(c.kind == "all_reduce" and c.times == 4 for c in zero.collectives)


@pytest.mark.parametrize("layers", [2, 3])
def test_decoding(layers: int) -> None:
    """IT32's formula, 2 L all_reduces a step: 98,304 for 32 layers and 1,536 steps of decoding, and
    2 L more for the prompt. None of data parallelism.
    """
    entry = MODELS["decoding-tiny"].resized(layers=layers, steps=1536)
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"))
    step = ps.auto_partition(mesh, machine="tpu_v5e")(entry.step)
    known = step.known_plans(*entry.abstract_args(8))
    assert not known["BP(batch)"].collectives
    for name in ("MP(model)", "BP(batch)+MP(model)"):
        found = known[name].collectives
        assert {c.kind for c in found} == {"all_reduce"}
        assert sum(c.times for c in found) == 2 * layers * (1 + 1536)


def test_multi_query_decoding(mesh: jax.sharding.Mesh) -> None:
    """IT32's BP+MP+MQ (Pope et al. 2022, arXiv 2211.05102, section 3.3): queries of all heads go to
    the batch that the one head of keys and values is tiled by, and what they read comes back: two
    all_to_alls a layer and step, besides the two all_reduces. Published: 98,304 all_reduces and as
    many resharding moves (64 all_gathers and 98,240 all_to_alls) for 32 layers and 1,536 steps.
    """
    batch, model = mesh.axis_names
    entry = MODELS["decoding-multiquery-tiny"].resized(steps=3, heads=8, d_model=64)
    args = jax.jit(lambda: entry.args(8))()
    base = ps.auto_partition(mesh, machine="tpu_v5e", episodes=1)(entry.step).plan(*args)
    barriers = [
        v.name for v in base.module.values if re.search(r"(query|key|value)\.dot_general", v.name)
    ]
    barriers += [
        str(op.operands[0].name)
        for op in base.module.ops
        if op.prim == "dot_general" and ".out." in op.results[0].name
    ]

    def layers(name: str, dim: int) -> Tile:
        first, *others = (f"params.layer_{i}.{name}.kernel" for i in range(entry.config.layers))
        return Tile(first, dim, model, tuple(others))

    actions = (
        Tile("prompt.tokens", 0, batch),
        Tile("broadcast_in_dim", 0, model, barriers=tuple(barriers)),
        layers("query", 1),
        layers("out", 0),
        layers("mlp_in", 1),
    )
    saved = dataclasses.replace(spec_of(base), actions=actions, rewrites=Rewrites())
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=saved)(entry.step)
    plan = step.plan(*args)
    counts = collections.Counter[str]()
    for c in plan.collectives:
        counts[c.kind] += c.times
    times = 2 * entry.config.layers * (1 + entry.config.steps)
    assert counts == {"all_reduce": times, "all_to_all": times}
    np.testing.assert_array_equal(step(*args), jax.jit(entry.step)(*args))
