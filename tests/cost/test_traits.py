"""Traits of XLA: one table, with units and evidence, and no constants beside it."""

from __future__ import annotations

import ast
import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import pytest

import partir_search as ps
from partir_search.simulator.target.known_traits import PLATFORMS, TRAITS, UNKNOWN, traits_of
from partir_search.simulator.target.machine import MACHINES, find_machine
from partir_search.simulator.target.moved_traits import READERS
from partir_search.simulator.target.traits import XlaTraits
from tests.cost.traits_table import PAGE, page
from tests.support import ROUND, TPU_TRAITS

PACKAGE = pathlib.Path(ps.__file__).parent

# Bounds and codes of our own analyses and caches, which no compiler sets.
BOUNDS = {
    "CODE_BITS",
    "EDGE_REPEATS",
    "EFFORT",
    "FIRST_PASS",
    "FIRST_STEP",
    "JOINT",
    "LARGE_COPIES",
    "LAST_STEP",
    "LEAST_BYTES",
    "LEAST_GAIN",
    "LEAST_RAISED",
    "LEAST_REMOVED",
    "MAX_CACHED",
    "MAX_ENTRIES",
    "MAX_REGION_PLANS",
    "MAX_ROWS",
    "MAX_TILINGS",
    "MAX_WALKED",
    "MOST_COUNTED",
    "NEAR",
    "PARTIAL_RESULT",
    "PREFIXES",
    "PROHIBITIVE",
    "ROUNDING",
    "ROUNDS",
    "STALE",
    "STEPS",
    "SWEEPS",
    "TURNS",
}
UNITS = {"GB", "GIB", "TERA"}


def test_the_page_of_traits_is_up_to_date() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.cost.traits_table"


def test_every_trait_has_a_unit_and_evidence() -> None:
    for field in dataclasses.fields(XlaTraits):
        assert re.match(r"[A-Z]\w+", field.metadata["meaning"])
        assert field.metadata["unit"]
        assert len(field.metadata["evidence"]) > 20 or "See `" in field.metadata["evidence"]


@pytest.mark.parametrize("room", ["simulator", "lowering"])
def test_no_number_stands_beside_the_traits(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {t.id for t in targets if isinstance(t, ast.Name) and t.id.isupper()}
            kinds = (ast.Constant, ast.BinOp, ast.UnaryOp)
            number = isinstance(node.value, kinds) and not isinstance(
                getattr(node.value, "value", 0), str
            )
            assert not number or names <= BOUNDS | UNITS, (path, names)


def test_the_lowering_knows_no_platform() -> None:
    for path in (PACKAGE / "lowering").rglob("*.py"):
        names = {
            n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)
        }
        assert "platform" not in names, path


def test_every_machine_has_the_traits_of_its_name() -> None:
    assert {m.removesuffix("_40gb").removesuffix("_16gb") for m in MACHINES} == set(TRAITS)
    for name, machine in MACHINES.items():
        assert machine.traits == TRAITS[name.removesuffix("_40gb").removesuffix("_16gb")]


def test_traits_of_a_mesh() -> None:
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    assert traits_of(mesh) == PLATFORMS["cpu"]
    assert traits_of(jax.sharding.AbstractMesh((1,), ("x",))) == UNKNOWN


def test_print() -> None:
    text = str(TRAITS["tpu_v5e"])
    assert len(text.splitlines()) == 1 + len(dataclasses.fields(XlaTraits))
    assert re.search(r"max_fused_inputs +8  \[values\]", text)
    assert re.search(r"collective_copy_factors +all_to_all 8 ", text)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"max_fused_inputs": -1}, "max_fused_inputs is a number at least 0"),
        ({"vmem_value_fraction": 1.5}, "vmem_value_fraction is a fraction, at most 1, not 1.5"),
        ({"fuses_weight_casts": 1}, "fuses_weight_casts is True or False"),
        ({"async_all_gather": "late"}, "async_all_gather is one of"),
        ({"collective_copy_factors": {"all_to_all": 0}}, "is a number above 0"),
    ],
)
def test_wrong_values(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        XlaTraits(**wrong)


@pytest.mark.parametrize("name", sorted(READERS))
def test_former_fields_of_machines(name: str) -> None:
    """Names of traits in `Machine` are read, given and replaced as before, with a warning."""
    with pytest.warns(DeprecationWarning, match=f"Machine.{name}"):
        value = getattr(MACHINES["tpu_v5e"], name)
    other = {} if name == "repacks" else not value
    with pytest.warns(DeprecationWarning, match=f"Machine.{name}"):
        changed = dataclasses.replace(MACHINES["tpu_v5e"], **{name: other})
    with pytest.warns(DeprecationWarning, match=f"Machine.{name}"):
        assert getattr(changed, name) == other
    assert changed.traits != MACHINES["tpu_v5e"].traits


def test_former_fields_together() -> None:
    with pytest.warns(DeprecationWarning, match="bf16_products, Machine.reuses") as warned:
        machine = dataclasses.replace(ROUND, bf16_products=True, reuses_buffers=False)
    assert machine.traits == TPU_TRAITS
    assert pathlib.Path(warned[0].filename) == pathlib.Path(__file__)
    with pytest.raises(AttributeError, match="no attribute 'bf16_product'"):
        _ = machine.bf16_product


def test_machines_saved_with_former_fields(tmp_path: pathlib.Path) -> None:
    """A file of a version in which traits were fields of the machine."""
    machine = MACHINES["h100"]
    data = dataclasses.asdict(machine)
    del data["traits"]
    former = {"fuses_operands": False, "prefetches": True, "puts_off": True, "repacks": {}}
    former |= {"bf16_products": False, "reuses_buffers": True, "stores_softmax": False}
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(data | former | {"copies_gathered": False}))
    found = find_machine(str(file))
    later: dict[str, Any] = {
        **dict.fromkeys(("pins_update_layouts", "fuses_lookups", "pads_images"), False),
        "recomputes_comparisons": False,
        "selection_bytes": 0.0,
        "half_rate_features": 0,
        **dict.fromkeys(("fills_dilated_windows", "transforms_in_passes"), False),
        "copies_scan_rows": False,
        **dict.fromkeys(("grouped_convolution_bytes", "grouped_product_bytes"), 0.0),
        "full_rate_results": 0,
        "stores_values_sliced_again": False,
        "computes_gradients_first": False,
        "stores_expensive_elementwise": False,
        "misaligned_product_rate": 1.0,
        "atomic_update_bytes": {},
    }
    assert found == machine.with_traits(**later)


def test_saved_machines_keep_their_traits(tmp_path: pathlib.Path) -> None:
    machine = MACHINES["tpu_v6e"].with_traits(max_fused_inputs=5)
    machine.save(tmp_path / "machine.json")
    assert find_machine(tmp_path / "machine.json") == machine
    text = (tmp_path / "machine.json").read_text().replace("max_fused_inputs", "max_fused_input")
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(ValueError, match="a trait 'max_fused_input'; did you mean"):
        find_machine(tmp_path / "machine.json")
