"""Ways of partial results through ops: few for stacks of many scalars, whose sets are 2**n."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.propagation.graph import Graph
from partir_search.rules.registry import RuleTable
from partir_search.simulator.tables import deferrals, label_sets
from partir_search.simulator.tables.deferrals import Deferrals, find_deferrals
from partir_search.simulator.tables.variables import variables_of
from tests.support import ROUND, module_of

LEAVES = 40


def clipped(weights: list[Any], x: Any) -> tuple[list[Any], Any]:
    """A step whose global norm is of a stack of one scalar per leaf."""

    def loss(weights: list[Any]) -> Any:
        return sum(jnp.mean(jnp.tanh(x @ w) ** 2) for w in weights)

    value, grads = jax.value_and_grad(loss)(weights)
    norm = jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(g**2) for g in grads])))
    return [w - 0.1 * g / (1 + norm) for w, g in zip(weights, grads, strict=True)], value


def maxima(*xs: Any) -> Any:
    """Maxima side by side: some of them may be partial under the concatenation."""
    return jnp.concatenate([x.max(0) for x in xs]).sum()


def graph_of(fun: Any, *args: Any) -> Graph:
    return Graph(module_of(fun, *args), RuleTable())


def deferrals_of(fun: Any, *args: Any, most: float = math.inf) -> Deferrals:
    graph = graph_of(fun, *args)
    return find_deferrals(graph.module, graph.rules, graph.analysis, most)


def leaves(count: int) -> list[jax.Array]:
    """Weights of different shapes, so that no fold merges their updates."""
    rng = np.random.default_rng(0)
    shapes = [(8, 8 * (i + 1)) for i in range(count)]
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def test_scalars_of_a_stack_are_partial_together() -> None:
    weights = leaves(LEAVES)
    found = deferrals_of(lambda x, *w: clipped(list(w), x), jnp.ones((16, 8)), *weights)
    stacks = [each for each in found.passes.values() for p in each if len(p.values) == LEAVES]
    assert len(stacks) == 1
    assert len(stacks[0]) == 1


@pytest.mark.parametrize("count", [2, 4])
def test_sets_are_those_not_smaller_than_the_results(count: int) -> None:
    sizes = {i: 4 * (i + 1) for i in range(count)}
    for required, least in itertools.product([frozenset[int](), frozenset({1})], range(0, 60, 4)):
        every = [
            frozenset(s) | required
            for n in range(count + 1)
            for s in itertools.combinations(sorted(sizes.keys() - required), n)
        ]
        want = {(s, sum(sizes[v] for v in s)) for s in every if s}
        got = deferrals._sets(sizes, required, least, math.inf)
        assert len(got) == len(set(got))
        assert set(got) == {(s, size) for s, size in want if size >= least}


def test_too_many_ways_end_the_tables() -> None:
    arrays = [jnp.ones((8, 4)) for _ in range(3)]
    with pytest.raises(ValueError, match="more than 0 ways of partial results"):
        deferrals_of(maxima, *arrays, most=0)
    assert deferrals_of(maxima, *arrays, most=4).passes


def test_labels_beyond_the_limit_are_not_listed() -> None:
    with pytest.raises(ValueError, match="more than 3 labels"):
        label_sets.class_labels([(64, 64)] * 30, [2] * 30, most=3)
    graph, mesh = graph_of(maxima, jnp.ones((8, 4))), MeshShape(("data", "model"), (2, 2))
    with pytest.raises(ValueError, match="more than 2 labels"):
        variables_of(graph, mesh, max_choices=2)
    with pytest.raises(ValueError, match="labels or more"):
        variables_of(graph, mesh, max_labels=2)


@pytest.mark.devices
def test_a_step_with_many_norms_is_planned(mesh: Mesh) -> None:
    weights, x = leaves(LEAVES), jnp.ones((16, 8)) / 8
    step = ps.auto_partition(mesh, machine=ROUND, episodes=300)(clipped)
    assert step.plan(weights, x).bound is not None
    got, value = step(weights, x)
    want, wanted = jax.jit(clipped)(weights, x)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)
