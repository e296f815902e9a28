"""Passes from the traced call to the program of one device: named, recorded and dumped."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.lowering.scheduling.schedule import SCHEDULING
from partir_search.passes.pad_choice import Pad
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.stacks import Stack
from partir_search.plan.pass_record import PIPELINE
from partir_search.plan.rewrites import Rewrites
from partir_search.plan.spec import PlanSpec

MESH = AbstractMesh((2, 2), ("batch", "model"))
X, W = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 8), (8, 32)))


def step(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w.T


def partitioned(**options: Any) -> Any:
    return ps.auto_partition(MESH, machine="tpu_v5e", episodes=20, progress=False, **options)(step)


def test_recorded_in_order() -> None:
    plan = partitioned().plan(X, W)
    names = [record.name for record in plan.passes]
    rewrites = ["trace", "unread", "row_lookups", "early_lookups", "loop_products"]
    rewrites += [
        "loop_broadcasts",
        "views",
        "group_arguments",
        "block_scans",
        "block_selections",
        "fold",
        "search",
        "unfold",
    ]
    assert names == [*rewrites, "local", *SCHEDULING, "emit"]
    assert names == [name for name in PIPELINE if name in names]
    assert all(record.seconds >= 0 for record in plan.passes)
    trace, fold, local = (plan.passes[name] for name in ("trace", "fold", "local"))
    assert trace.ops_after == fold.ops_before == local.ops_before == len(plan.module.ops)
    assert local.ops_after == plan.program.size
    assert plan.passes[list(SCHEDULING)[-1]].text() == plan.local_ir()
    assert str(plan.passes).splitlines()[1].startswith("trace")
    with pytest.raises(KeyError, match=r"'pad' did not run; passes that did: \['trace'"):
        plan.passes["pad"]


def test_rewrites_are_passes() -> None:
    """What a plan rewrites is in its record, and in that of its replay."""

    def uneven(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) @ w.T

    shapes = (
        jax.ShapeDtypeStruct((8191, 8192), jnp.float32),
        jax.ShapeDtypeStruct((8192, 8191), jnp.float32),
    )
    decorate = ps.auto_partition(MESH, machine="tpu_v5e", episodes=30, progress=False)
    plan = decorate(uneven).plan(*shapes)
    assert plan.padding
    assert plan.passes["pad"].ops_after > plan.passes["pad"].ops_before
    again = ps.auto_partition(MESH, machine="tpu_v5e", schedule=plan)(uneven).plan(*shapes)
    names = [record.name for record in again.passes]
    rewrites = [
        "trace",
        "unread",
        "row_lookups",
        "early_lookups",
        "loop_products",
        "loop_broadcasts",
        "views",
        "group_arguments",
        "block_scans",
        "block_selections",
        "pad",
        "unfold",
    ]
    assert names == [*rewrites, "local", *SCHEDULING, "emit"]
    assert again.spec == plan.spec


def test_dumped(tmp_path: pathlib.Path) -> None:
    train = partitioned(dump_dir=tmp_path / "passes")
    plan = train.plan(X, W)
    files = sorted(p.name for p in (tmp_path / "passes").iterdir())
    last = 22 + len(SCHEDULING)
    assert files == [
        "00_trace.ir",
        "01_unread.ir",
        "02_row_lookups.ir",
        "03_early_lookups.ir",
        "06_loop_products.ir",
        "07_loop_broadcasts.ir",
        "08_views.ir",
        "09_group_arguments.ir",
        "10_block_scans.ir",
        "11_block_selections.ir",
        "18_fold.ir",
        "19_search.ir",
        "20_unfold.ir",
        "21_local.ir",
        *(f"{at}_{name}.ir" for at, name in enumerate(SCHEDULING, 22)),
        f"{last}_emit.ir",
        "passes.txt",
    ]
    read = {p.name: p.read_text() for p in (tmp_path / "passes").iterdir()}
    assert read["00_trace.ir"].count("dot_general") > 1
    assert 'tile 0 "batch"' not in read["00_trace.ir"]
    assert read["20_unfold.ir"] == plan.ir(full=True) + "\n"
    assert read[f"{last - 1}_scatter_tiles_first.ir"] == plan.local_ir() + "\n"
    assert "shard_map" in read[f"{last}_emit.ir"]
    other = train.plan(jax.ShapeDtypeStruct((32, 8), jnp.float32), W)
    assert (tmp_path / "passes" / other.fingerprint / "21_local.ir").exists()


def test_dumps_of_a_program_with_shifted_reads(tmp_path: pathlib.Path) -> None:
    """A pass leaves the program before it as it was."""

    def rolled(x: Any, w: Any) -> Any:
        y = x @ w
        return jnp.concatenate([y[:, 1:], y[:, :1]], 1) - y + jnp.roll(y, 2, 1)

    options: dict[str, Any] = {"machine": "tpu_v5e", "episodes": 20, "progress": False}
    plan = ps.auto_partition(MESH, dump_dir=tmp_path, **options)(rolled).plan(X, W)
    before = (tmp_path / "00_trace.ir").read_text()
    assert before.count("= concatenate") == 2
    assert plan.passes["trace"].text() + "\n" == before
    assert "= concatenate" not in plan.passes["views"].text()


def test_dumps_of_other_static_values(tmp_path: pathlib.Path) -> None:
    """Modules of other structures are other functions, whose files do not replace each other."""
    train = ps.auto_partition(
        MESH, machine="tpu_v5e", episodes=5, progress=False, dump_dir=tmp_path
    )(lambda model, x: model(x).sum())
    modules = [nnx.Linear(8, 32, use_bias=bias, rngs=nnx.Rngs(0)) for bias in (True, False)]
    plans = [train.plan(module, X) for module in modules]
    assert "bias" in (tmp_path / "00_trace.ir").read_text()
    other = tmp_path / plans[1].fingerprint / "00_trace.ir"
    assert "bias" not in other.read_text()


def test_spec_is_saved_and_read() -> None:
    """Every field of a spec and of its rewrites goes through JSON."""
    spec = PlanSpec(
        function="step",
        fingerprint="abc",
        mesh=ps.MeshShape(("a", "b"), (4, 2)).split({"a": (2, 2)}),
        machine="cpu",
        actions=(ps.Tile("x", 0, "b"), ps.Close("x", 1, "b")),
        rewrites=Rewrites(
            microbatches=2,
            pipeline=(PipelineForm("b", 2, 3, "gpipe"),),
            parallel_iterations=8,
            attention=True,
            scan_layers=True,
            stacks=(Stack(("y", "z"), 4),),
            padding=(Pad("x", 0, 8),),
            remat=((1, 4),),
        ),
        arguments={"x": "f32[4, 4]"},
    )
    defaults = Rewrites()
    for field in dataclasses.fields(Rewrites):
        assert getattr(spec.rewrites, field.name) != getattr(defaults, field.name)
    data = json.loads(json.dumps(spec.to_json()))
    assert PlanSpec.from_json(data) == spec
    wanted = {"microbatches", "attention", "scan_layers", "stacks", "padding", "remat", "sub_axes"}
    assert set(data) >= wanted  # of format 2
    former = {**data, "parts": data["sub_axes"]}
    del former["sub_axes"]
    assert PlanSpec.from_json(former) == spec
    assert spec.remat == ((1, 4),)
    plain = dataclasses.replace(spec, rewrites=defaults).to_json()
    assert not set(plain) & {field.name for field in dataclasses.fields(Rewrites)}
