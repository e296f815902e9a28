"""Order of kernels in the compiler, and live memory along it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.simulator.memory.kernel_graph import KernelGraph, Node, Received
from partir_search.simulator.memory.latency_order import latency_order
from partir_search.simulator.memory.least_memory_order import least_memory_order

LAYERS, WIDTH, BATCH = 6, 2048, 4096
MESH = AbstractMesh((2, 4), ("data", "model"))


def kernels(*waits: set[int], seconds: float = 1.0) -> KernelGraph:
    graph = KernelGraph()
    for earlier in waits:
        graph.add(Node.KERNEL, seconds, earlier)
    return graph


def test_without_collectives_the_order_is_the_programs() -> None:
    assert latency_order(kernels(set(), {0}, {0}, {1, 2})) == [0, 1, 2, 3]


def test_a_kernel_runs_beside_a_gather_that_takes_as_long() -> None:
    graph = KernelGraph()
    made = graph.add(Node.KERNEL, 1.0, set())
    short = graph.add(Node.KERNEL, 1.0, {made})
    long = graph.add(Node.KERNEL, 3.0, {made})
    start = graph.add(Node.START, 3.0, {short}, gathers=True)
    end = graph.add(Node.END, 0.0, {start}, gathers=True)
    assert latency_order(graph) == [made, short, start, long, end]


def test_one_gather_runs_at_a_time() -> None:
    graph = KernelGraph()
    sources = [graph.add(Node.KERNEL, 1.0, set()) for _ in range(3)]
    starts = [graph.add(Node.START, 1.0, {s}, gathers=True) for s in sources]
    ends = [graph.add(Node.END, 0.0, {s}, gathers=True) for s in starts]
    graph.add(Node.KERNEL, 1.0, set(ends))
    order, under_way = latency_order(graph), 0
    for node in order:
        under_way += (node in starts) - (node in ends)
        assert under_way <= 1
    place = {node: at for at, node in enumerate(order)}
    assert all(place[e] < place[node] for node, w in enumerate(graph.waits) for e in w)


def test_barriers_keep_kernels_from_waiting() -> None:
    """A kernel behind a barrier with another's result does not precede it."""
    graph = KernelGraph()
    made = graph.add(Node.KERNEL, 1.0, set())
    gradient = graph.add(Node.KERNEL, 3.0, {made})
    barrier = graph.add(Node.BARRIER, 0.0, {made, gradient})
    start = graph.add(Node.START, 3.0, {barrier}, gathers=True)
    end = graph.add(Node.END, 0.0, {start}, gathers=True)
    last = graph.add(Node.KERNEL, 1.0, {end})
    assert latency_order(graph) == [made, gradient, barrier, start, end, last]


def test_the_kernel_that_frees_most_runs_first() -> None:
    graph = kernels(set(), set(), {0}, {1, 2})  # 0 and 1 make 0 and 1, which 2 and 3 read
    graph.reads = {0: [(2, 2)], 1: [(3, 3)], 2: [(3, 3)]}
    makers, nbytes = {0: 0, 1: 1, 2: 2}, {0: 10.0, 1: 100.0, 2: 1.0}
    assert least_memory_order(graph, makers, nbytes, frozenset()) == [0, 2, 1, 3]


def test_a_gathered_copy_takes_memory_from_its_start() -> None:
    graph = kernels(set(), set(), {0})
    start = graph.add(Node.START, 1.0, {1}, gathers=True)
    end = graph.add(Node.END, 0.0, {start}, gathers=True)
    graph.add(Node.KERNEL, 1.0, {2, end})
    graph.received[start] = Received(50.0, end)
    graph.reads = {0: [(2, 2)]}
    order = least_memory_order(graph, {0: 0}, {0: 10.0}, frozenset())
    assert order.index(2) < order.index(start)


def plan_of(name: str, recomputes: bool = False, **traits: object) -> ps.Plan:
    """Known plan of an MLP's step with momentum, on v5e.

    Args:
      recomputes: True for layers computed again in the backward pass.
    """

    def layer(h, w):
        return jnp.tanh(h @ w)

    layer = jax.checkpoint(layer) if recomputes else layer

    def step(state, x, y):
        weights, momenta = state

        def loss(weights):
            h = x
            for w in weights:
                h = layer(h, w)
            return ((h - y) ** 2).mean()

        grads = jax.grad(loss)(weights)
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)], momenta

    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
    data = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    machine = ps.Target.parse("tpu_v5e:2x4").machine.with_traits(**traits)
    partitioned = ps.auto_partition(MESH, machine=machine, donate_argnums=0, progress=False)(step)
    return partitioned.known_plans((weights, weights), data, data)[name]


def test_for_least_memory_updates_need_no_rule() -> None:
    """Updates run as soon as their gradients are made, as `updates_early` says."""
    with_rule, without = (
        plan_of("BP(data+model)", updates_early=early, combined_reduction_bytes=0).cost
        for early in (True, False)
    )
    assert with_rule.peak_bytes == pytest.approx(without.peak_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["BP(data+model)+Z2", "BP(data+model)+Z3", "BP(data+model)"])
def test_moves_alone_cost_what_the_program_costs(name: str) -> None:
    plan = plan_of(name)
    assert plan.simulation.reordered is not None
    assert plan.simulation.cost.peak_bytes == pytest.approx(plan.cost.peak_bytes)
    assert max(b for _, b in plan.timeline.memory) == pytest.approx(plan.cost.peak_bytes)


def test_the_order_is_a_trait_of_the_machine() -> None:
    plain = plan_of("BP(data+model)+Z2", reorders_kernels=False)
    assert plain.simulation.reordered is None
    found = plan_of("BP(data+model)+Z2")
    added = found.simulation.reordered.added
    assert found.cost.peak_bytes == pytest.approx(plain.cost.peak_bytes + added)


def test_recomputed_regions_keep_the_order() -> None:
    """A region is one kernel of the graph, and many of the compiler's."""
    assert plan_of("BP(data+model)+Z3", recomputes=True).simulation.reordered is None
