"""What several tests need: modules of small functions, partitions, and both ways to run them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from partir_search.ir.core import Module, Op
from partir_search.ir.data_flow import Tied, tied_values
from partir_search.ir.from_jaxpr import read_module
from partir_search.ir.interpreter import evaluate
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.reading.manual import RegionAxes
from partir_search.ir.verify import verify, verify_partition
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import argument_specs, lifted_shardings, result_specs, sharded
from partir_search.lowering.traits import NEUTRAL, LoweringTraits
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.rules.registry import RuleTable
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.known_traits import traits_of
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.target.traits import XlaTraits

MESH = MeshShape(("batch", "model"), (2, 4))

# Round figures, so that expectations can be worked out by hand.
ROUND = Machine(
    name="round",
    flops_per_s={"default": 1e9},
    hbm_bytes=10**9,
    hbm_bytes_per_s=1e9,
    link_bytes_per_s=1e6,
    hop_seconds=0.0,
    kernel_seconds=0.0,
    matmul_efficiency=1.0,
    hbm_efficiency=1.0,
)

# As XLA:TPU stores values, but for in which buffers.
TPU_TRAITS = XlaTraits(
    f32_dot_operand_bytes=2,
    keeps_dots_wide=True,
    fuses_one_hot_updates=True,
    fuses_weight_casts=True,
    in_place_elementwise=False,
)

# Flags that shorten XLA:CPU's compilation. Fusion emitters take half of it (newer versions have no
# other way); modules split for parallel compilation take a fifth more CPU time.
FASTER = " --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):
    FASTER += " --xla_cpu_use_fusion_emitters=false"


def module_of(
    fn: Callable[..., Any],
    *args: Any,
    ties: Sequence[tuple[int, int]] = (),
    region_axes: RegionAxes | None = None,
) -> Module:
    """The module of a function of flat array arguments `a0`, `a1`, ..."""
    traced = jax.jit(fn).trace(*args)
    results = len(jax.tree.leaves(traced.out_info))
    module = read_module(
        traced.jaxpr,
        name=getattr(fn, "__name__", "f").strip("<>"),
        arg_paths=[f"a{i}" for i in range(len(args))],
        result_paths=[str(i) for i in range(results)],
        ties=ties,
        region_axes=region_axes,
    )
    verify(module)
    return module


def state_of(module: Module, mesh: MeshShape = MESH, *, contract: bool = False) -> State:
    return State(Graph(module, contract=contract), mesh, record=True)


def cost_of(state: State, machine: Machine = ROUND) -> Cost:
    graph = state.graph
    return CostModel(graph.module, graph.rules, machine).evaluate(localize(state.partition()))


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def tile_arg(state: State, arg: int, dim: int, axis: str) -> None:
    value = state.graph.module.body.args[arg]
    state.tile(state.graph.class_of[value.id], dim, state.mesh.axes(axis))


@functools.cache
def device_mesh(
    shape: MeshShape, kind: jax.sharding.AxisType = jax.sharding.AxisType.Explicit
) -> jax.sharding.Mesh:
    devices = jax.devices()[: shape.devices]
    kinds = (kind,) * len(shape.device_sizes)
    return jax.make_mesh(shape.device_sizes, shape.device_names, kinds, devices=devices)


def ties_of(op: Op) -> list[Tied]:
    """Values in and around a region op that are tiled alike."""
    return tied_values(op, RuleTable()(op).data_flow)


def run_evaluator(partition: Partition, args: Sequence[Any]) -> list[Any]:
    """The oracle: loops run slice by slice (under one jit: eager ops compile one by one)."""
    return list(jax.jit(lambda *xs: evaluate(partition, xs))(*args))


def run_emitted(
    partition: Partition, args: Sequence[Any], traits: LoweringTraits = NEUTRAL
) -> list[Any]:
    """The emitted program on CPU devices; checks that replicas of each result agree."""
    program = localize(partition, LocalCache(traits))
    mesh = device_mesh(partition.mesh)
    scheduled = schedule_for(program, traits_of(mesh))
    placed = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip(args, argument_specs(program), strict=True)
    ]
    constants = program.partition.module.constants
    lifted = zip(program.lifted, lifted_shardings(program, mesh), strict=True)
    placed += [jax.device_put(constants[i], s) for i, s in lifted]
    out = jax.block_until_ready(jax.jit(sharded(scheduled, mesh))(*placed))
    for value, spec in zip(out, result_specs(program), strict=True):
        check_replicas(value, NamedSharding(mesh, spec))
    return list(out)


def check_replicas(value: jax.Array, sharding: NamedSharding) -> None:
    """`check_vma=False` checks nothing, so a wrong claim of replication is looked for here."""
    seen: dict[str, np.ndarray[Any, Any]] = {}
    for shard in value.addressable_shards:
        data = plain(shard.data)
        first = seen.setdefault(str(shard.index), data)
        np.testing.assert_array_equal(first, data)


def plain(x: Any) -> np.ndarray[Any, Any]:
    """A numpy array of an array or of random keys."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def assert_same(got: Sequence[Any], want: Sequence[Any], tolerance: float = 2e-5) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape, f"result {i}: {a.shape} != {b.shape}"
        assert a.dtype == b.dtype, f"result {i}: {a.dtype} != {b.dtype}"
        x, y = plain(a), plain(b)
        if np.issubdtype(x.dtype, np.inexact) or x.dtype == jnp.bfloat16:
            x, y = x.astype(np.float64), y.astype(np.float64)
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=f"result {i}")
        else:
            np.testing.assert_array_equal(x, y, err_msg=f"result {i}")


def check_partition(
    partition: Partition,
    fn: Callable[..., Any],
    args: Sequence[Any],
    plain: Callable[..., Any] | None = None,
    traits: LoweringTraits = NEUTRAL,
) -> None:
    """Evaluator, emitted program and plain function agree.

    Args:
      plain: what to compare with; then without the evaluator, which gives all that `fn` has fixed
        to XLA's partitioner.
      traits: by which the partition is lowered.
    """
    verify_partition(partition)
    want = [jnp.asarray(x) for x in jax.tree.leaves(jax.jit(plain or fn)(*args))]
    if plain is None:
        assert_same(run_evaluator(partition, args), want)
    assert_same(run_emitted(partition, args, traits), want)


def floats_of(*shapes: tuple[int, ...]) -> list[jax.Array]:
    """Arrays of the given shapes, of a fixed seed."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.uniform(-1, 1, s), jnp.float32) for s in shapes]
