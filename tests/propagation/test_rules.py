"""Every rule: its golden line, and each of its factors executed on devices and by the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import ad

from partir_search.ir.core import Module, Op
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.propagation.graph import Graph
from partir_search.propagation.propagate import State
from partir_search.propagation.rules import RULES, RuleTable
from tests.support import check_partition, module_of

TWO = MeshShape(("x",), (2,))
rng = np.random.default_rng(0)


def floats(*shape: int) -> jax.Array:
    return jnp.asarray(rng.uniform(0.1, 0.9, shape), jnp.float32)


def ints(*shape: int, low: int = 0, high: int = 8) -> jax.Array:
    return jnp.asarray(rng.integers(low, high, shape), jnp.int32)


def bools(*shape: int) -> jax.Array:
    return jnp.asarray(rng.integers(0, 2, shape), bool)


def dus(x: Any, u: Any) -> Any:
    return lax.dynamic_update_slice(x, u, (0, 1, 0))


def take_rows(table: Any, ids: Any) -> Any:
    return jnp.take(table, ids, axis=0)


def batched_take(x: Any, ids: Any) -> Any:
    return jnp.take_along_axis(x, ids[..., None], axis=-1)


def dot(contract: Any, batch: Any = ((), ())) -> Callable[..., Any]:
    return lambda x, y: lax.dot_general(x, y, (contract, batch))


def conv(strides: Any, padding: str, **groups: int) -> Callable[..., Any]:
    layout = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: lax.conv_general_dilated(
        x, k, strides, padding, dimension_numbers=layout, **groups
    )


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


CASES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "add": ("add", lax.add, (floats(4, 6), floats(4, 6))),
    "add_any": ("add_any", ad.add_jaxvals, (floats(4, 6), floats(4, 6))),
    "and": ("and", lax.bitwise_and, (bools(4, 6), bools(4, 6))),
    "argmax": ("argmax", lambda x: jnp.argmax(x, 1), (floats(4, 6),)),
    "broadcast_in_dim": (
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (4, 6, 2), (0, 1)),
        (floats(4, 1),),
    ),
    "clamp": ("clamp", lambda x: lax.clamp(0.2, x, 0.5), (floats(4, 6),)),
    "concatenate": ("concatenate", lambda x, y: lax.concatenate([x, y], 1), (floats(4, 2),) * 2),
    "conv": (
        "conv_general_dilated",
        conv((2, 2), "SAME"),
        (floats(4, 8, 8, 6), floats(3, 3, 6, 2)),
    ),
    "conv_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((2, 2), "SAME")(x, k) ** 2).sum()),
        (floats(3, 3, 6, 2), floats(4, 8, 8, 6)),
    ),
    "conv_image_gradient": (
        "conv_general_dilated",
        jax.grad(lambda x, k: (conv((2, 2), "SAME")(x, k) ** 2).sum()),
        (floats(4, 8, 8, 6), floats(3, 3, 6, 2)),
    ),
    "conv_groups": (
        "conv_general_dilated",
        conv((1, 1), "SAME", feature_group_count=4),
        (floats(2, 4, 4, 8), floats(3, 3, 2, 12)),
    ),
    "conv_groups_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((1, 1), "SAME", feature_group_count=4)(x, k) ** 2).sum()),
        (floats(3, 3, 2, 12), floats(2, 4, 4, 8)),
    ),
    "conv_pointwise": (
        "conv_general_dilated",
        conv((1, 1), "VALID"),
        (floats(4, 8, 8, 6), floats(1, 1, 6, 2)),
    ),
    "conv_pointwise_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((1, 1), "VALID")(x, k) ** 2).sum()),
        (floats(1, 1, 6, 2), floats(4, 8, 8, 6)),
    ),
    "convert": ("convert_element_type", lambda x: x.astype(jnp.bfloat16), (floats(4, 6),)),
    "copy": ("copy", jnp.copy, (floats(4, 6),)),
    "cumsum": ("cumsum", lambda x: jnp.cumsum(x, 1), (floats(4, 6),)),
    "cumsum_reverse": ("cumsum", lambda x: lax.cumsum(x, 1, reverse=True), (floats(4, 6),)),
    "cummax": ("cummax", lambda x: lax.cummax(x, 0), (floats(4, 6),)),
    "div": ("div", lax.div, (floats(4, 6), floats(4, 6))),
    "dot": ("dot_general", dot(((1,), (0,))), (floats(4, 6), floats(6, 2))),
    "dot_batched": (
        "dot_general",
        dot(((3, 1), (1, 2)), ((0,), (0,))),
        (floats(2, 4, 6, 8), floats(2, 8, 4, 2)),
    ),
    "dynamic_slice": (
        "dynamic_slice",
        lambda x, i: lax.dynamic_slice(x, (0, i), (4, 2)),
        (floats(4, 6), jnp.int32(3)),
    ),
    "dynamic_update_slice": ("dynamic_update_slice", dus, (floats(4, 6, 2), floats(4, 2, 2))),
    "eq": ("eq", lax.eq, (ints(4, 6), ints(4, 6))),
    "erf": ("erf", lax.erf, (floats(4, 6),)),
    "exp": ("exp", lax.exp, (floats(4, 6),)),
    "expand": ("broadcast_in_dim", lambda x: x[:, None], (floats(4, 6),)),
    "gather_embedding": ("gather", take_rows, (floats(8, 6), ints(4, 2))),
    "gather_clip": (
        "gather",
        lambda t, i: jnp.take(t, i, axis=0, mode="clip"),
        (floats(8, 6), ints(4, 2, low=-3, high=12)),
    ),
    "gather_fill": (
        "gather",
        lambda t, i: t.at[i].get(mode="fill", fill_value=7.0),
        (floats(8, 6), ints(4, 2, low=-3, high=12)),
    ),
    "gather_batched": ("gather", batched_take, (floats(4, 2, 8), ints(4, 2))),
    "integer_pow": ("integer_pow", lambda x: x**3, (floats(4, 6),)),
    "iota": ("iota", lambda x: x + lax.broadcasted_iota(jnp.float32, (4, 6), 1), (floats(4, 6),)),
    "logistic": ("logistic", lax.logistic, (floats(4, 6),)),
    "max": ("max", lax.max, (floats(4, 6), floats(4, 6))),
    "mul_broadcast": ("mul", lambda x, y: lax.mul(x, y), (floats(4, 6), floats(4, 6))),
    "neg": ("neg", lax.neg, (floats(4, 6),)),
    "pad": ("pad", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 2, 1))), (floats(4, 6),)),
    "pool_max": ("reduce_window_max", max_pool, (floats(4, 8, 6, 2),)),
    "pool_sum": (
        "reduce_window_sum",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 1, 1), (1, 1, 1, 1), "SAME"),
        (floats(4, 8, 6, 2),),
    ),
    "pool_max_gradient": (
        "select_and_scatter_add",
        jax.grad(lambda x: (max_pool(x) ** 2).sum()),
        (floats(4, 8, 6, 2),),
    ),
    "pool_max_tangent": (
        "select_and_gather_add",
        lambda x, t: jax.jvp(max_pool, (x,), (t,))[1],
        (floats(4, 8, 6, 2), floats(4, 8, 6, 2)),
    ),
    "reduce_and": ("reduce_and", lambda x: jnp.all(x, 0), (bools(4, 6),)),
    "reduce_max": ("reduce_max", lambda x: jnp.max(x, 1), (floats(4, 6),)),
    "reduce_min": ("reduce_min", lambda x: jnp.min(x, 0), (ints(4, 6),)),
    "reduce_or": ("reduce_or", lambda x: jnp.any(x, 1), (bools(4, 6),)),
    "reduce_prod": ("reduce_prod", lambda x: jnp.prod(x, 1), (floats(4, 6),)),
    "reduce_sum": ("reduce_sum", lambda x: jnp.sum(x, (0, 2)), (floats(4, 6, 2),)),
    "reshape_merge": ("reshape", lambda x: x.reshape(4, 12), (floats(4, 6, 2),)),
    "reshape_split": ("reshape", lambda x: x.reshape(2, 2, 6), (floats(4, 6),)),
    "reshape_ones": ("reshape", lambda x: x.reshape(1, 4, 1, 6), (floats(4, 6),)),
    "rev": ("rev", lambda x: lax.rev(x, (1,)), (floats(4, 6),)),
    "scatter_add": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u),
        (floats(8, 6), ints(4), floats(4, 6)),
    ),
    "scatter_add_bounds": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (floats(8, 6), ints(4, low=-3, high=12), floats(4, 6)),
    ),
    "scatter_add_clip": (
        "scatter-add",
        lambda t, i, u: t.at[i].add(u, mode="clip"),
        (floats(8, 6), ints(4, low=-3, high=12), floats(4, 6)),
    ),
    "scatter_add_batched": (
        "scatter-add",
        lambda x, i: jax.grad(lambda y: batched_take(y, i).sum())(x),
        (floats(4, 2, 8), ints(4, 2)),
    ),
    "scatter_max": (
        "scatter-max",
        lambda t, i, u: t.at[i].max(u),
        (floats(8, 6), ints(4), floats(4, 6)),
    ),
    "scatter_set": (
        "scatter",
        lambda t, u: t.at[jnp.array([1, 5, 2, 7])].set(u, unique_indices=True),
        (floats(8, 6), floats(4, 6)),
    ),
    "select": ("select_n", lax.select_n, (bools(4, 6), floats(4, 6), floats(4, 6))),
    "slice": ("slice", lambda x: x[:, 1:5:2], (floats(4, 6),)),
    "sort": ("sort", lambda x: lax.sort(x, dimension=1), (floats(4, 6),)),
    "sort_pairs": (
        "sort",
        lambda x, y: lax.sort((x, y), dimension=0, num_keys=1),
        (floats(4, 6), ints(4, 6)),
    ),
    "split": ("split", lambda x: lax.split(x, (2, 4), axis=1), (floats(4, 6),)),
    "squeeze": ("squeeze", lambda x: lax.squeeze(x, (1,)), (floats(4, 1, 6),)),
    "stack": ("stack", lambda x, y: jnp.stack([x, y], 1), (floats(4, 6), floats(4, 6))),
    "sub_broadcast": ("sub", lambda x, y: x - y, (floats(4, 6), floats(4, 1))),
    "tanh": ("tanh", lax.tanh, (floats(4, 6),)),
    "top_k": ("top_k", lambda x: lax.top_k(x, 3), (floats(4, 6),)),
    "unstack": ("unstack", lambda x: jnp.unstack(x, axis=1), (floats(4, 2, 6),)),
    "transpose": ("transpose", lambda x: lax.transpose(x, (2, 0, 1)), (floats(4, 6, 2),)),
}


def op_of(module: Module, prim: str) -> Any:
    found = [op for op in module.ops if op.prim == prim]
    assert found, f"the case holds no {prim}: {[op.prim for op in module.ops]}"
    return found[-1]


@pytest.mark.parametrize("case", sorted(CASES))
def test_rule_line(case: str, golden: Callable[[str], None]) -> None:
    """The rule, and the op printed in each loop that the rule allows."""
    prim, fn, args = CASES[case]
    module = module_of(fn, *args)
    op = op_of(module, prim)
    lines = [f"{prim}: {RuleTable()(op)}"]
    for _, state in looped_states(module, op):
        text = print_partition(state.partition(), lambda o: o is op)
        lines += text.splitlines()[1:-1]
    golden("\n".join(lines))


@pytest.mark.devices
@pytest.mark.parametrize("case", sorted(CASES))
def test_rule_executes(case: str) -> None:
    """Loops over each factor in turn; every result equals the plain function's."""
    prim, fn, args = CASES[case]
    module = module_of(fn, *args)
    op = op_of(module, prim)
    states = list(looped_states(module, op))
    assert states
    for factor, state in states:
        partition = state.partition()
        assert partition.loops[0][op.id] == factor
        check_partition(partition, fn, args)


def looped_states(module: Module, op: Op) -> Iterator[tuple[int, State]]:
    """(factor, a state in which the op loops over it) for each factor that two tiles divide.

    Factors beneath others need several axes: see test_stacked.py.
    """
    graph = Graph(module)
    node = graph.nodes[graph.node_of[op.id]]
    for factor, size in enumerate(node.sizes):
        if size and size % 2 == 0 and not (node.above and node.above[factor]):
            state = State(graph, TWO)
            cls, dim = next(p for p in node.places[factor] if state.may_tile(*p, (0,)))
            state.tile(cls, dim, (0,))
            yield factor, state


def test_tile_mapping_table_of_a_matmul() -> None:
    """PartIR's table (section 3): rows tile, columns tile, the contracted pair sums."""
    rule = RuleTable()(op_of(module_of(lax.dot, floats(4, 6), floats(6, 2)), "dot_general"))
    assert list(rule.tilings()) == [
        (0, (0, -1), ("tile 0",)),
        (1, (-1, 1), ("tile 1",)),
        (2, (1, 0), ("sum",)),
    ]


def test_every_rule_is_tested() -> None:
    """Families share a rule function; each function has at least one case."""
    covered = {RULES[prim] for prim, _, _ in CASES.values()}
    elsewhere = {
        RULES[p] for p in ("random_bits", "random_split", "scan", "optimization_barrier")
    } | {RULES["sharding_constraint"]}
    missing = {fn.__name__ for fn in RULES.values()} - {f.__name__ for f in covered | elsewhere}
    assert not missing


def test_bad_rule_is_refused() -> None:
    from partir_search.ir.rule import OpRule

    with pytest.raises(ValueError, match="in no result and has no reducer"):
        OpRule(sizes=(4,), operands=((0,),), results=((),), reducers=("",))


def test_second_rule_for_a_primitive_is_refused() -> None:
    from partir_search.propagation.rules import register

    with pytest.raises(ValueError, match="'add' has a rule already"):
        register("add")(lambda op: RuleTable()(op))
