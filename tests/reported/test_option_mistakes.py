"""Mistakes in options, tactics, meshes and rules: one message each, before work."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from tests.reported.mistakes import (
    MESH,
    STATE,
    decorated,
    manual,
    planned,
    rows,
    says,
    step,
)

KEYWORDS: list[tuple[str, Any, str]] = [
    ("episodes", "10", "episodes is a whole number, not '10'; write 10"),
    ("episodes", 2.5, "episodes is a whole number, not 2.5"),
    ("episodes", -1, "episodes must be at least 1, not -1"),
    ("episodes", True, "episodes is a whole number, not True"),
    ("seed", None, "seed is a whole number, not None; leave it out"),
    ("seed", "0", "seed is a whole number, not '0'; write 0"),
    ("donate_argnums", "state", "positions of arguments; write donate_argnames='state'"),
    ("donate_argnums", 0.0, "donate_argnums is a whole number, not 0.0; write 0"),
    ("donate_argnames", 0, "names of arguments, not 0; donate_argnums= takes ints"),
    ("static_argnums", ["k"], "positions of arguments; write static_argnames='k'"),
    ("static_argnames", [1], "static_argnames are names of arguments, not 1"),
    ("static_argnames", "stat", "no argument 'stat'; it has state, batch; did you mean 'state'?"),
    ("donate_argnums", (0, 5), "step takes 2 positional arguments (state, batch), and none has"),
    ("trip_counts", 3, "trip_counts maps globs on loops to whole numbers"),
    ("explicit_results", "yes", "explicit_results is one of"),
    ("in_shardings", (None, P(3)), "batch/x: P(3,): axis 3 is not in the mesh"),
    ("remat", "always", "remat is one of ('auto', True, False), not 'always'"),
    ("remat", None, "remat is one of"),
    ("microbatches", 0, "microbatches are numbers of at least 1, not 0"),
    ("microbatches", [], "microbatches are numbers of at least 1"),
    ("microbatches", 2.5, "microbatches is a whole number, not 2.5"),
    ("microbatches", "4", "microbatches is a whole number, not '4'; write 4"),
    ("microbatches", [2, "4"], "microbatches is a whole number, not '4'"),
    ("microbatches", None, "microbatches is a whole number, not None"),
    ("microbatches", 3, "has shape (16, 8): its leading dim, the batch of 16, does not"),
    ("rings", "yes", "rings is one of (True, False), not 'yes'"),
    ("pad", "no", "pad is one of"),
    ("skewed_state", 2, "skewed_state is one of"),
    ("on_overflow", "ignore", "on_overflow is one of ('raise', 'warn'), not 'ignore'"),
    ("on_overflow", "Warn", "did you mean 'warn'?"),
    ("plan_on", "all", "plan_on is one of ('every', 'first'), not 'all'"),
    ("groups", "state/**", "groups is a list of what partir_search.group(...) makes"),
    ("groups", ps.group("a", "b"), "write groups=[partir_search.group('a', 'b')]"),
    ("groups", None, "groups is a list"),
    ("groups", [ps.group("state/parms/w1")], "near it are: state/params/w1"),
    (
        "shardings_like",
        "plan.json",
        "not 'plan.json'; replay the saved plan first",
    ),
    ("shardings_like", step, "shardings_like=train_step.plan(state, batch)"),
    ("cache", 3, "cache is a path, a str or pathlib.Path, not 3"),
    ("cache", "", "cache is an empty path"),
    ("cache", __file__, "there is a file of that name; choose another one"),
    ("progress", "yes", "progress is True, False, None or a function"),
    ("progress", lambda: None, "is called with one argument, the search's record"),
    ("goals", ps.Fit(1e9), "goals is a list of goals, not Fit(bytes=1000000000.0); write goals=["),
    ("goals", ps.Fastest, "write goals=[Fastest(...)]"),
    ("goals", [ps.Fastest], "goals[0] is the class Fastest; write Fastest(...)"),
    ("goals", [], "goals is empty; None is [Fit(machine.hbm_bytes), Fastest()]"),
    ("goals", ["fast"], "goals[0] is no goal: 'fast' has no method excess(cost)"),
    ("goals", [ps.Fastest(), ps.Fit("1GB")], "goals[1]: Fit: bytes is a number, not '1GB'"),
    ("goals", [ps.Fit(0)], "goals[0]: Fit: bytes is a number above 0, not 0"),
    ("goals", [ps.FewestBytes("modle")], "its axes are ['batch', 'model']; did you mean 'model'?"),
    ("goals", [ps.Weighted(ps.FewestBytes("rows"), 1)], "Weighted: goal: FewestBytes: axis 'rows'"),
    ("goals", [ps.Weighted(ps.Fastest(), "1")], "Weighted: weight is a number, not '1'"),
    ("machine", 3, "machine is a partir_search.Machine, a name such as 'tpu_v5e' or the path"),
    ("machine", "TPU v5e", "unknown machine 'TPU v5e'; known are a100"),
    ("machine", "TPU v5e", "did you mean 'tpu_v5e'?"),
    ("machine", "NVIDIA H100", "did you mean 'h100'?"),
    ("machine", pathlib.Path("no.json"), "no.json holds no machine: there is no machine at"),
    ("schedule", pathlib.Path("p.json"), "pass partir_search.load_plan('p.json')"),
    ("schedule", ps.AutomaticPartition(), "not one tactic; write schedule=[AutomaticPartition("),
    ("schedule", ps.AutomaticPartition, "write schedule=[AutomaticPartition(...)]"),
    ("schedule", {"batch": 0}, "write schedule=[ManualPartition({'batch/x': 0}, axis='batch')]"),
    ("schedule", [ps.Summa], "not the class Summa; write Summa(...)"),
    ("schedule", [None], "a schedule holds ManualPartition, AutomaticPartition"),
    ("schedule", [ps.AutomaticPartition(("modle",))], "did you mean 'model'?"),
    ("schedule", [ps.ContextParallel("rows")], "axis 'rows' is not in the mesh"),
    ("schedule", [ps.AutomaticPartition(exclude=("state/parms",))], "near it are: state/params/w1"),
    ("schedule", manual(lambda path, shape: P()), "for batch/x: a dim is an int, not P()"),
    ("schedule", manual(5), "batch/x has shape (16, 8): there is no dim 5 to tile on axis 'batch'"),
    ("in_shardings", "batch", "in_shardings is a tuple with a sharding"),
    ("in_shardings", 3, "in_shardings is a tuple with a sharding"),
    ("in_shardings", (P(),), "it has 1 entries, the call has 2 positional arguments"),
    ("in_shardings", {"state": P(), "batch": P()}, "goes by position, not by name"),
    ("in_shardings", (None, "batch"), "batch/x: shardings are NamedSharding, PartitionSpec or"),
    ("in_shardings", (None, "batch"), "write jax.P('batch')"),
    ("in_shardings", (None, {"x": P(), "z": P()}), "batch has no 'z'"),
    ("in_shardings", (None, {"x": P()}), "batch has 'y', which is given no sharding"),
    ("in_shardings", ({"params": {"w_1": P(), "w2": P()}}, None), "state/params has no 'w_1'; it"),
    (
        "in_shardings",
        ({"params": {"w1": {"k": P()}, "w2": P()}}, None),
        "state/params/w1 is an",
    ),
    ("in_shardings", (None, P("modle")), "did you mean 'model'?"),
    ("out_shardings", ({"params": {"v": P()}}, None), "result/0/params has no 'v'; it has w1, w2"),
    ("out_shardings", (P(), 3), "result 1: shardings are NamedSharding"),
]


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    KEYWORDS,
    ids=[f"{k}-{i}" for i, (k, _, _) in enumerate(KEYWORDS)],
)
def test_keywords(keyword: str, value: Any, message: str) -> None:
    with says(message):
        planned(**{keyword: value})


def test_what_is_right_stays_right(tmp_path: pathlib.Path) -> None:
    """Forms that look like mistakes and are none."""
    kw = {"progress": None, "episodes": np.int64(3), "machine": "cpu"}
    assert planned(**kw, in_shardings=P(), donate_argnames=["state"]).partition_specs[0][1]
    assert planned(**kw, seed=-1, goals=[ps.Fit(1e9)]).fits
    assert planned(**kw, goals=[ps.Fit(float("inf")), ps.Fastest()]).fits
    assert planned(**kw, schedule=manual(np.int64(-2))).partition_specs[0][1]["x"] == P("batch")
    ps.MACHINES["cpu"].save(tmp_path / "new" / "here.json")
    assert planned(**{**kw, "machine": tmp_path / "new" / "here.json"}).machine.name == "cpu"


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "two axes": (lambda: manual(0, ("batch", "model")), "write a tactic for each axis, one after"),
    "no axis": (lambda: manual(0, None), "ManualPartition: axis is a string, 'batch', not None"),
    "text for a dim": (lambda: manual("0"), "dims['batch/x']: a dim is an int, not '0'; write 0"),
    "spec for a dim": (lambda: manual(P("batch")), "PartitionSpecs go to in_shardings"),
    "axis for a dim": (lambda: manual("batch"), "a dim is an int, not 'batch'; write the number"),
    "two dims": (lambda: manual((0, 1)), "write one dim; a second one takes another tactic"),
    "bool for a dim": (lambda: manual(True), "a dim is an int, not True"),
    "function of one": (lambda: manual(lambda path: 0), "called with an argument's path and shape"),
    "list of paths": (lambda: ps.ManualPartition(["x"], "batch"), "dims maps argument paths to"),  # type: ignore[arg-type]
    "number for a path": (lambda: ps.ManualPartition({3: 0}, "batch"), "path in dims is a string"),  # type: ignore[dict-item]
    "axes as text": (lambda: ps.AutomaticPartition("batch"), "axes is a tuple of strings, ('ba"),  # type: ignore[arg-type]
    "exclude as text": (
        lambda: ps.AutomaticPartition(exclude="a/**"),
        "exclude is a tuple of strings",
    ),  # type: ignore[arg-type]
    "episodes as text": (lambda: ps.AutomaticPartition(episodes="9"), "whole number, not '9'"),  # type: ignore[arg-type]
    "one ring axis": (lambda: ps.SpatialTemporal(("a",)), "SpatialTemporal: axes are 2 axes"),  # type: ignore[arg-type]
    "equal ring axes": (lambda: ps.SpatialTemporal(("a", "a")), "axes are different axes"),
    "ring as text": (lambda: ps.SpatialTemporal("ab"), "axes is a tuple of strings"),  # type: ignore[arg-type]
    "no matmul axis": (lambda: ps.CollectiveMatmul(()), "axes are one or more axes"),
    "context axes": (lambda: ps.ContextParallel(("a",)), "axis is the name of one axis"),  # type: ignore[arg-type]
    "context ring": (lambda: ps.ContextParallel("a", ring="no"), "ring is True or False"),  # type: ignore[arg-type]
    "summa axes": (lambda: ps.Summa(("a", "b", "c")), "Summa: axes are 2 axes"),  # type: ignore[arg-type]
    "3d hold": (lambda: ps.TensorParallel3D(("a", "b", "c"), hold=1), "hold is True or False"),  # type: ignore[arg-type]
    "mesh text": (lambda: ps.MeshShape.parse("2x4"), "(write it as batch:2,model:4): '2x4' is no"),
    "mesh number": (lambda: ps.MeshShape.parse(8), "a mesh is written as batch:2,model:4, not 8"),  # type: ignore[arg-type]
    "no axes": (lambda: ps.AutomaticPartition(()), "axes is empty; None searches over all axes"),
    "form": (
        lambda: ps.SpatialTemporal(("a", "b"), form=np.ones(2)),
        "form is one of output",
    ),  # type: ignore[arg-type]
    "one mesh size": (lambda: ps.MeshShape(("a",), 2), "sizes of mesh axes are a tuple of ints"),  # type: ignore[arg-type]
    "machine share": (
        lambda: dataclasses.replace(ps.MACHINES["cpu"], hbm_efficiency=3.0),
        "hbm_efficiency is a share of the peak, at most 1, not 3.0",
    ),
    "mesh sizes": (lambda: ps.MeshShape(("a",), ("2",)), "the size of mesh axis 'a' is a whole"),  # type: ignore[arg-type]
    "mesh names": (lambda: ps.MeshShape("ab", (2, 2)), "names of mesh axes is a tuple of strings"),  # type: ignore[arg-type]
    "machine rate": (
        lambda: dataclasses.replace(ps.MACHINES["cpu"], flops_per_s={"float32": 1.0}),
        "Machine('cpu'): flops_per_s has no 'default' rate",
    ),
    "machine memory": (
        lambda: dataclasses.replace(ps.MACHINES["cpu"], hbm_bytes="2 GB"),  # type: ignore[arg-type]
        "Machine('cpu'): hbm_bytes is a number, not '2 GB'",
    ),
    "machine links": (
        lambda: ps.MACHINES["cpu"].with_axis("hosts", -1, 0),
        "with_axis: bytes_per_s is a number above 0, not -1",
    ),
    "rule of a function": (lambda: ps.register_rule(step, "a -> a"), "@with_rule('a b, b c -> a"),
    "rule as a number": (lambda: ps.register_rule("q", 3), "the rule of 'q' is a string"),  # type: ignore[arg-type]
    "rule's flops": (
        lambda: ps.register_rule("q", "a->a", flops_per_point=-1),
        "flops_per_point of 'q' is a number at least 0",
    ),
    "bare with_rule": (
        lambda: ps.with_rule(step),
        "write @with_rule('a b, b c -> a c') above step",
    ),  # type: ignore[arg-type]
    "with_rule number": (lambda: ps.with_rule(3), "the rule of 'a function' is a string"),  # type: ignore[arg-type]
    "no microbatches": (lambda: ps.microbatched(step, 0), "microbatched: microbatches must be at"),
    "half microbatches": (lambda: ps.microbatched(step, 2.5), "is a whole number, not 2.5"),  # type: ignore[arg-type]
    "no step to split": (lambda: ps.microbatched(3, 2), "microbatched takes a train step, not 3"),  # type: ignore[arg-type]
    "counts": (lambda: ps.hlo_counts(3), "hlo_counts takes the text of a program"),  # type: ignore[arg-type]
    "on_change": (lambda: ps.load_plan("p.json", on_change="aply"), "did you mean 'apply'?"),  # type: ignore[arg-type]
    "plan as a number": (lambda: ps.load_plan(3), "path is a path, a str or pathlib.Path, not 3"),  # type: ignore[arg-type]
    "known strategies turned": (
        lambda: ps.known_strategies(MESH, step, STATE),
        "takes the step first",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", sorted(MADE))
def test_made(case: str) -> None:
    make, message = MADE[case]
    with says(message):
        make()


def test_meshes() -> None:
    with says("write @auto_partition(mesh) above step, not @auto_partition"):
        ps.auto_partition(step)  # type: ignore[arg-type]
    with says("needs a mesh, and none is set: write auto_partition(jax.make_mesh("):
        ps.auto_partition(machine="cpu")
    with says("the mesh has no axes"):
        ps.auto_partition(AbstractMesh((), ()))
    for name in ("", "data+fsdp", "data~r", "data,fsdp"):
        with says(f"mesh axis {name!r}: a name is not empty and has none of + , ~, which join"):
            ps.auto_partition(AbstractMesh((4, 2), ("model", name)), machine="cpu")
    with jax.sharding.use_abstract_mesh(MESH):
        made = ps.auto_partition(machine="cpu", schedule=manual(0))(step).plan(STATE, rows())
    assert made.mesh_shape.names == ("batch", "model")


def test_functions() -> None:
    with says("is given the function to partition, not its result; write auto_partition(mesh)(st"):
        ps.auto_partition(MESH, machine="cpu")((STATE, 0.0))  # type: ignore[arg-type]
    with says("step is partitioned already; partition the plain function, its attribute .plain"):
        ps.auto_partition(MESH, machine="cpu")(decorated())
    with says("init takes a function that makes the state, not {'params': {'w1': float32[8, 16], "):
        decorated().init(STATE, rows())
    with says("init calls made without arguments: missing a required argument: 'key'; write"):

        def made(key: Any) -> Any:
            return STATE

        decorated().init(made, rows())
    with says("static_argnums=(2,): step takes 2 positional arguments"):
        ps.auto_partition(MESH, machine="cpu", static_argnums=2)(jax.jit(step))


def test_errors_of_dim_functions_are_noted() -> None:
    with pytest.raises(KeyError) as caught:
        planned(schedule=manual(lambda path, shape: {}[path]))
    assert caught.value.__notes__ == ["in the function of 'batch/x', for batch/x of shape (16, 8)"]


def test_links_of_no_axis_are_warned_of() -> None:
    far = ps.MACHINES["cpu"].with_axis("modle", 1e9, 1e-5)
    with pytest.warns(UserWarning, match=r"links of axis 'modle', .*did you mean 'model'\?"):
        ps.auto_partition(MESH, machine=far)
