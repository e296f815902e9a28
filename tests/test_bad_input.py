"""Bad input gets one clear error, before any search: path, value and remedy."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import partir_search as ps


def f(x: Any, w: Any) -> Any:
    return x @ w["kernel"]


X = np.ones((6, 16), np.float32)
W = {"kernel": np.ones((16, 8), np.float32)}


def plan(mesh: jax.sharding.Mesh, x: Any = X, **kw: Any) -> ps.Plan:
    def no_search(record: Any) -> None:
        pytest.fail("a search ran before the error")

    return ps.auto_partition(mesh, machine="cpu", progress=no_search, **kw)(f).plan(x, W)


def manual(dims: Any, axis: str) -> list[ps.Tactic]:
    return [ps.AutomaticPartition(), ps.ManualPartition(dims, axis=axis)]


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "axis_not_in_mesh": (
        {"schedule": manual({"x": 0}, "data")},
        r"axis 'data' is not in the mesh; its axes are \['batch', 'model'\]",
    ),
    "automatic_axis_not_in_mesh": (
        {"schedule": [ps.AutomaticPartition(axes=("stage",))]},
        "axis 'stage' is not in the mesh",
    ),
    "axis_twice": (
        {"in_shardings": (P("batch", "batch"), None)},
        "x: .* uses axis 'batch' on dims 0 and 1; an axis can tile one dim",
    ),
    "dim_out_of_range": (
        {"schedule": manual({"x": 2}, "batch")},
        r"x has shape \(6, 16\): there is no dim 2 to tile on axis 'batch'; use 0 to 1",
    ),
    "does_not_divide": (
        {"schedule": manual({"x": 0}, "model")},
        r"x has shape \(6, 16\): dim 0 of size 6 does not divide by axis 'model' of size 4; 4 or 8"
        " would divide",
    ),
    "in_shardings_do_not_divide": (
        {"in_shardings": (P("model"), None)},
        r"x: dim 0 of shape \(6, 16\) does not divide by 4, the size of 'model'",
    ),
    "in_shardings_rank": (
        {"in_shardings": (P(None, None, "batch"), None)},
        r"x: .* has 3 entries, the value has shape \(6, 16\)",
    ),
    "in_shardings_tree": (
        {"in_shardings": (P(), {"bias": P()})},
        "in_shardings is no pytree prefix",
    ),
    "in_shardings_type": ({"in_shardings": ("batch", None)}, "x: shardings are NamedSharding"),
    "glob_matches_nothing": (
        {"schedule": manual({"w/bias": 0}, "batch")},
        "'w/bias' matches no argument; near it are: w/kernel, x",
    ),
    "path_for_plan": ({"schedule": "plan.json"}, r"pass partir_search.load_plan\('plan.json'\)"),
    "one_tactic": ({"schedule": ps.Summa(("batch", "model"))}, "a list of tactics or a plan, not"),
    "no_tactic": ({"schedule": ["bp"]}, "a schedule holds ManualPartition, AutomaticPartition"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_message(case: str, mesh: jax.sharding.Mesh) -> None:
    kw, message = CASES[case]
    with pytest.raises((ValueError, TypeError), match=message):
        plan(mesh, **kw)


def test_batch_smaller_than_axis(mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(ValueError, match=r"size 2 .* of size 4; it is smaller than the axis; use"):
        plan(mesh, X[:2], schedule=manual({"x": 0}, "model"))


def test_empty_batch(mesh: jax.sharding.Mesh) -> None:
    """It is whole, whatever a tactic or the user says of it (see `reported/test_empty_arrays`)."""
    tiled: list[dict[str, Any]] = [
        {},
        {"schedule": manual({"x": 0}, "batch")},
        {"in_shardings": (P("batch"), None)},
    ]
    for options in tiled:
        step = ps.auto_partition(mesh, machine="cpu", episodes=3, **options)(f)
        found = step.plan(X[:0], W)
        assert [spec for path, _, spec in found.arguments() if path == "x"] == [P()]


def test_contradicting_tactics(mesh: jax.sharding.Mesh) -> None:
    schedule = [ps.ManualPartition({"x": 0}, "batch"), ps.ManualPartition({"x": 1}, "batch")]
    with pytest.raises(ps.IllegalAction, match=r"an earlier tactic .* has it tiled on dim 0; put"):
        plan(mesh, schedule=schedule)
    schedule = [
        ps.ManualPartition({"x": 0}, "batch"),
        ps.ManualPartition({"x": ps.REPLICATED}, "batch"),
    ]
    with pytest.raises(ps.IllegalAction, match="x cannot be replicated along axis 'batch'"):
        plan(mesh, schedule=schedule)


def test_not_a_mesh() -> None:
    with pytest.raises(TypeError, match=r"takes a jax.sharding.Mesh .* make one with"):
        ps.auto_partition({"batch": 2})  # type: ignore[arg-type]


def test_unknown_machine(mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(ValueError, match="unknown machine 'tpu_v99'; known are a100, a100_40gb"):
        ps.auto_partition(mesh, machine="tpu_v99")


def test_episodes(mesh: jax.sharding.Mesh) -> None:
    with pytest.raises(ValueError, match="episodes must be at least 1, not 0"):
        ps.auto_partition(mesh, episodes=0)


def test_saved_plan_for_something_else(mesh: jax.sharding.Mesh, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    plan(mesh, schedule=[ps.ManualPartition({"x": 0}, axis="batch")]).save(path)
    saved = ps.load_plan(path)
    assert plan(mesh, schedule=saved).partition_specs[0][0] == P("batch")
    other = jax.make_mesh((4, 2), ("batch", "model"))
    with pytest.raises(ValueError, match=r"for mesh<batch:2, model:4>, .* does not divide"):
        plan(other, schedule=saved)
    with pytest.raises(ValueError, match=r"x: f32\[6,16\] became f32\[4,16\]"):
        plan(mesh, X[:4], schedule=saved)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "format": 99}))
    with pytest.raises(ValueError, match="is not a plan that can be read: format 99"):
        ps.load_plan(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a plan that can be read"):
        ps.load_plan(path)


def test_shapes_differ_from_a_plans(mesh: jax.sharding.Mesh) -> None:
    made = plan(mesh, schedule=[ps.ManualPartition({"x": 0}, axis="batch")])
    with pytest.raises(ValueError, match=r"x: f32\[6,16\] became f32\[4,16\]"):
        plan(mesh, X[:4], schedule=made)


def test_register_rule_reads_the_equation() -> None:
    with pytest.raises(ValueError, match="write the rule of 'q' as"):
        ps.register_rule("q", "a b c")
    with pytest.raises(ValueError, match="'2' is no dim name"):
        ps.register_rule("q", "a 2 -> a")


def test_mesh_text() -> None:
    with pytest.raises(ValueError, match="write it as batch:2,model:4"):
        ps.MeshShape.parse("batch=2")


def test_large_constants_are_named() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("batch",))
    table = jnp.zeros((2048, 2048))
    step = ps.auto_partition(mesh, machine="cpu", schedule=[])(lambda x: x @ table)
    with pytest.warns(UserWarning, match=r"f32\[2048,2048\] of 16 MiB \(used at .*test_bad_input"):
        step.plan(jnp.ones((2, 2048)))


def test_explicit_axes_without_devices_cannot_be_lowered() -> None:
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("batch", "model"), axis_types=explicit)
    parts = ps.auto_partition(mesh, machine="cpu", episodes=5, explicit_results=True)
    step = parts(lambda x: x * 2)
    assert step.plan(jnp.ones((8, 8))).cost.seconds > 0
    with pytest.raises(ValueError, match="explicit_results over an AbstractMesh, as jax asks"):
        step.lower(jnp.ones((8, 8)))
    plain = ps.auto_partition(mesh, machine="cpu", episodes=5)(lambda x: x * 2)
    assert "sharding" in plain.lower(jnp.ones((8, 8))).as_text()
