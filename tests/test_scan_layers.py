"""The option `scan_layers=`: recorded, replayed, chosen, executed."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.plan.report.data import report_data
from partir_search.plan.report.summary import summary
from partir_search.planning.layer_forms import SLOWER
from tests.support import (
    assert_same,
)
from tests.written_out import deep, deep_args


def planned(scan_layers: Any, schedule: Any = (), **options: Any) -> Any:
    """Plan of a step of gradient descent on four layers."""
    mesh = AbstractMesh((2, 2), ("data", "model"))
    decorate = ps.auto_partition(
        mesh, machine="tpu_v5e", schedule=schedule, scan_layers=scan_layers, **options
    )
    return decorate(deep).plan(*deep_args())


def test_option_is_recorded_and_replayed(tmp_path: pathlib.Path) -> None:
    """A saved plan scans the layers again; the report and `plan.passes` name the pass."""
    plain = planned(False)
    plan = planned(True, [ps.ManualPartition({"x": 0}, axis="data")])
    assert (plan.scan_layers, plain.scan_layers) == (True, False)
    record = plan.passes["scan_layers"]
    assert record.ops_after < record.ops_before
    assert "stack_layers" in record.text()
    assert "scan_layers" not in [record.name for record in plain.passes]
    assert "equal layers as scans, compiled once" in dict(summary(plan))["why this plan"]
    assert plan.to_json()["scan_layers"] is True
    assert report_data(plan)["scan_layers"]
    plan.save(tmp_path / "plan.json")
    again = planned(False, ps.load_plan(tmp_path / "plan.json"))
    assert again.scan_layers
    assert again.spec == plan.spec
    assert again.cost == plan.cost


def test_option_auto() -> None:
    """Scans that take more simulated seconds than allowed are not written."""
    plan, plain, scanned = (planned(x, episodes=8, schedule=None) for x in ("auto", False, True))
    allowed = scanned.cost.seconds <= SLOWER * plain.cost.seconds
    assert plan.scan_layers == allowed
    assert plan.cost.seconds == (scanned if allowed else plain).cost.seconds


def test_option_without_layers() -> None:
    x = jnp.ones((4, 4))
    mesh = AbstractMesh((2,), ("data",))
    step = ps.auto_partition(mesh, machine="tpu_v5e", scan_layers=True)(lambda x: x @ x)
    with pytest.warns(UserWarning, match="scan_layers=True changes nothing: no layers repeat"):
        assert not step.plan(x).scan_layers
    with pytest.raises(ValueError, match="scan_layers"):
        ps.auto_partition(mesh, scan_layers="always")  # type: ignore[arg-type]


@pytest.mark.devices
def test_option_on_devices(mesh: jax.sharding.Mesh) -> None:
    """A searched plan with scanned layers runs as the plain step."""
    args = deep_args()
    step = ps.auto_partition(mesh, machine="tpu_v5e", scan_layers=True, episodes=8)(deep)
    got = step(*args)
    assert step.plan(*args).scan_layers
    assert_same(got, jax.jit(deep)(*args))
