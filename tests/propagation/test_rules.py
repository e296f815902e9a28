"""Every rule: its golden line, and each of its factors executed on devices and by the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core.primitives
import jax.lax.linalg
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.core import Module, Op
from partir_search.ir.from_jaxpr import INLINED, REGIONS, TAKEN_APART
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.ir.reading.refs.discharge import READ
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.rules import RULES, RuleTable
from partir_search.rules.unruled import UNRULED
from tests.propagation.cases import CASES
from tests.propagation.primitives_table import PAGE, page
from tests.propagation.samples import floats
from tests.support import check_partition, module_of

TWO = MeshShape(("x",), (2,))


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
    rule = RuleTable()(op)
    lines = [f"{prim}: {rule} ({rule.kind.value})"]
    for _, state in looped_states(module, op):
        text = print_partition(state.partition(), lambda o: o is op, full=True)
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


MADE_OF_FLOATS = ("fft_planes", "triangular_solve", "triangular_solve_right", "bitcast", "convert")
WIDE_ALONE = ("svd", "tridiagonal_solve") if jax.__version_info__ >= (0, 12) else ()
CONSTANTS_OF_FLOATS = ("clamp", "pad", "reduce", "reduce_window", "reduce_window_same")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_rules_of_narrow_floats_are_those_of_wide_ones(dtype: Any) -> None:
    """bfloat16 is no floating type of numpy's own."""

    def narrow(x: Any) -> Any:
        return x.astype(dtype) if x.dtype == np.float32 else x

    for case in sorted(CASES.keys() - {*MADE_OF_FLOATS, *WIDE_ALONE, *CONSTANTS_OF_FLOATS}):
        prim, fn, args = CASES[case]
        wide = RuleTable()(op_of(module_of(fn, *args), prim))
        rule = RuleTable()(op_of(module_of(fn, *jax.tree.map(narrow, args)), prim))
        assert str(rule) == str(wide), case


def test_rounded_parts_do_not_add_up() -> None:
    """A sum in 32 bits is finished before it is rounded; one in 16 may be widened first."""

    def rule(source: Any, target: Any) -> Any:
        args = [jax.ShapeDtypeStruct((4, 6), source)]
        module = module_of(lambda x: lax.convert_element_type(x, target), *args)
        return RuleTable()(op_of(module, "convert_element_type"))

    assert not rule(jnp.float32, jnp.bfloat16).linear
    assert rule(jnp.bfloat16, jnp.float32).linear == ((0,),)


def looped_states(module: Module, op: Op) -> Iterator[tuple[int, State]]:
    """(factor, a state in which the op loops over it) for each factor that two tiles divide.

    Minor factors need several axes: see test_compound_factors.py.
    """
    graph = Graph(module)
    node = graph.nodes[graph.node_of[op.id]]
    structure = node.structure
    for factor, size in enumerate(structure.sizes):
        if (
            size
            and size % 2 == 0
            and not (structure.major_factors and structure.major_factors[factor])
        ):
            state = State(graph, TWO)
            cls, dim = next(
                (node.classes[p], d)
                for p, d in structure.places[factor]
                if state.may_tile(node.classes[p], d, (0,))
            )
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
    covered = {RULES[prim].make for prim, _, _ in CASES.values()}
    elsewhere = {  # tests/test_train_steps.py, reported/test_shifted_reads.py, test_stacks.py ...
        RULES[p].make
        for p in (
            *("random_bits", "scan", "while", "cond", "checkpoint", "optimization_barrier"),
            *("sharding_constraint", "shard_alike", "debug_print"),
            *(
                "platform_index",
                "rng_bit_generator",
                "ruled_call",
                "shard_map",
                "attention",
                "check",
            ),
            *("inspect_sharding", "shift", "remap", "banded", "scan_blocks"),
            *("block_extremes", "best_extreme", "block_top_k", "best_top_k"),
            *("stack_arrays", "stored_value", "unstack_arrays"),
        )
    }
    missing = {entry.make.__name__ for entry in RULES.values()} - {
        f.__name__ for f in covered | elsewhere
    }
    assert not missing


def test_bad_rule_is_refused() -> None:
    from partir_search.ir.kind import Kind
    from partir_search.ir.rule import OpRule

    with pytest.raises(ValueError, match="in no result and has no reducer"):
        OpRule(Kind.REDUCTION, sizes=(4,), operands=((0,),), results=((),), reducers=("",))


def test_second_rule_for_a_primitive_is_refused() -> None:
    from partir_search.rules import register

    with pytest.raises(ValueError, match="'add' has a rule already"):
        register("add")(lambda op: RuleTable()(op))


def test_nothing_in_jax_lax_is_forgotten() -> None:
    """Each of jax's public primitives has a rule, is read through, or is named with a reason."""
    public = {
        p.name
        for home in (jax.lax, jax.lax.linalg, jax.extend.core.primitives)
        for p in vars(home).values()
        if isinstance(p, jax.extend.core.Primitive)
    }
    assert len(public) > 150
    assert not public - {*RULES, *INLINED, *REGIONS, *TAKEN_APART, *READ, *UNRULED}
    assert not set(UNRULED) & {*RULES, *INLINED, *REGIONS, *READ}


def test_the_table_of_primitives_is_up_to_date() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.propagation.primitives_table"
