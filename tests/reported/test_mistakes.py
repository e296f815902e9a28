"""Mistakes: one message each with the argument or path, the value and the remedy, before work."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from partir_search import cli
from partir_search.simulator.target.machine import machine_of_kind

MESH = AbstractMesh((2, 4), ("batch", "model"))
STATE = {"params": {"w1": np.ones((8, 16), np.float32), "w2": np.ones((16, 8), np.float32)}}


def rows(n: int = 16) -> dict[str, Any]:
    return {"x": np.ones((n, 8), np.float32), "y": np.ones((n, 8), np.float32)}


def step(state: Any, batch: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ p["w1"]) @ p["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    return {**state, "params": jax.tree.map(lambda p, g: p - g, state["params"], grads)}, value


def no_search(record: Any) -> None:
    pytest.fail("a search ran before the error")


def decorated(mesh: Any = MESH, **kw: Any) -> Any:
    return ps.auto_partition(mesh, **{"machine": "cpu", "progress": no_search, **kw})(step)


def planned(state: Any = STATE, batch: Any = None, **kw: Any) -> ps.Plan:
    plan: ps.Plan = decorated(**kw).plan(state, batch or rows())
    return plan


def manual(dim: Any, axis: Any = "batch") -> list[Any]:
    return [ps.ManualPartition({"batch/x": dim}, axis=axis)]


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    made: ps.Plan = planned(schedule=[ps.ManualPartition({"batch": 0}, "batch")])
    return made


def says(text: str) -> Any:
    """Expects one of the errors that are meant for users; none of what leaks from the inside."""
    return pytest.raises((TypeError, ValueError, OSError, RuntimeError), match=re.escape(text))


# What auto_partition is given: (keyword, value, part of the message) ---------------------------

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
    ("microbatches", 3, "batch/x has shape (16, 8): its leading dim, the batch of 16, does not"),
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


# Tactics, groups, meshes, machines, rules: what they are made of --------------------------------

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


# Arguments of a call ----------------------------------------------------------------------------


class Config:
    """No pytree, no array."""


class Column:
    """An array of another library, with a type and a shape."""

    shape, dtype = (3,), np.dtype(np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (Config(), "state/aux is a Config: <"),
        (Config(), "register its class with jax.tree_util.register_dataclass"),
        (lambda x: x, "state/aux is a function: the function <lambda>"),
        (jnp.tanh, "apply_fn of flax's TrainState"),
        ("resnet", "state/aux is a str: 'resnet'; leaves of arguments are arrays and numbers"),
        (b"raw", "state/aux is a bytes"),
        (np.array(["a", "b"]), "state/aux is an array of type <U1[2]"),
        (np.array([None, 3]), "state/aux is an array of type object[2]"),
        (np.datetime64("2026-01-01"), "state/aux is an array of type datetime64[D]"),
        (pathlib.Path("x"), "state/aux is a PosixPath"),
        (range(3), "state/aux is a range: range(0, 3)"),
        (Column(), "Pass numpy.asarray(...) of it"),
        (np, "state/aux is a module"),
        (np.ma.ones(3), "Pass its values with .filled(...)"),
        (np.zeros(2, [("a", "f4")]), "state/aux is an array of type"),
    ],
)
def test_leaves_that_are_no_arrays(leaf: Any, message: str) -> None:
    state = {**STATE, "aux": leaf}
    for use in ("plan", "known_plans", "eval_shape", "lower"):
        with pytest.raises(TypeError, match=re.escape(message)):
            getattr(decorated(), use)(state, rows())


def test_leaves_of_other_types_are_arrays_still() -> None:
    aux = {"n": 3, "key": jax.random.key(0), "half": jnp.ones(2, jnp.bfloat16), "none": None}
    planned(state={**STATE, "aux": aux}, schedule=manual(0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "static argument 'sizes' is a list and has no hash: [1, 2]; pass a tuple"),
        ({"a": 1}, "static argument 'sizes' is a dict and has no hash"),
        ((1, [2]), "make all that it holds hashable (tuples for lists)"),
        (np.ones(3), "arrays are no static arguments: leave it out of static_argnums"),
    ],
)
def test_statics_without_a_hash(value: Any, message: str) -> None:
    scaled = ps.auto_partition(MESH, machine="cpu", static_argnames="sizes", schedule=[])(
        lambda x, sizes: x * 2
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        scaled.plan(np.ones((4, 4)), sizes=value)


# Batches that do not divide ---------------------------------------------------------------------


def test_sizes_that_would_divide_are_of_all_axes_of_a_dim() -> None:
    both = [ps.ManualPartition({"batch": 0}, "batch"), ps.ManualPartition({"batch": 0}, "model")]
    for n, near in ((101, "96 or 104"), (12, "8 or 16")):
        with says(
            f"batch/x has shape ({n}, 8): dim 0 of size {n} does not divide by the 8 devices of"
            f" axes 'batch' and 'model' together; {near} would divide"
        ):
            planned(batch=rows(n), schedule=[ps.AutomaticPartition(), *both])
    with says("it is smaller than these; use at least 8"):
        planned(batch=rows(4), schedule=both)
    with says("12 does not divide by axis 'batch+model' of size 8; 8 or 16 would divide"):
        planned(batch=rows(12), schedule=manual(0, "batch+model"))
    with says("the size of ('batch', 'model') in P(('batch', 'model'),); 8 or 16 would divide"):
        planned(batch=rows(12), in_shardings=(None, P(("batch", "model"))))


@pytest.mark.parametrize(
    ("n", "near"), [(17, "16 or 24"), (4097, "4096 or 4104"), (3, "8"), (16, ""), (6, ""), (1, "")]
)
def test_search_warns_of_a_batch_that_no_axis_divides(
    n: int, near: str, recwarn: pytest.WarningsRecorder
) -> None:
    planned(batch=rows(n), progress=None, episodes=3)
    texts = [str(w.message) for w in recwarn]
    assert len(texts) == bool(near)
    for text in texts:
        assert text.startswith(f"batch/x has shape ({n}, 8): no axis of mesh<batch:2, model:4>")
        assert f"; {near} would divide by all 8 devices" in text


def test_batch_that_the_user_leaves_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    excluding = [ps.AutomaticPartition(exclude=("batch/**",))]
    part = [ps.AutomaticPartition(axes=("model",))]
    for kw in ({"schedule": excluding}, {"schedule": part}, {"in_shardings": (None, P())}):
        planned(batch=rows(17), progress=None, episodes=3, **kw)
    assert not recwarn.list


def test_small_steps_have_small_units() -> None:
    tight = decorated(goals=[ps.Fit(100.0), ps.Fastest()], episodes=3, progress=None)
    with pytest.raises(ps.DoesNotFit, match=r"needs [\d.]+ (kB|B) on a device .*limit is 100 B"):
        tight.lower(STATE, rows())
    assert re.search(r"peak [\d.]+ (kB|B)$", str(tight.plan(STATE, rows()).cost))


# Plans -------------------------------------------------------------------------------------------

USES: dict[str, tuple[Callable[[ps.Plan], Any], str]] = {
    "what_if text": (lambda p: p.what_if("batch/x", "model"), "write jax.P('model')"),  # type: ignore[arg-type]
    "what_if tuple": (lambda p: p.what_if("batch/x", ("a", "b")), "write jax.P('a', 'b')"),  # type: ignore[arg-type]
    "what_if none": (lambda p: p.what_if("batch/x", None), "spec is a PartitionSpec or NamedS"),  # type: ignore[arg-type]
    "what_if path": (lambda p: p.what_if(3, P()), "what_if: path is a string"),  # type: ignore[arg-type]
    "explain path": (lambda p: p.explain(3), "explain: path is a string"),  # type: ignore[arg-type]
    "explain typo": (lambda p: p.explain("batch/z"), "no argument or value 'batch/z'; near it"),
    "explain nothing": (lambda p: p.explain(""), "explain: path is empty"),
    "scope": (lambda p: p.ir("decoder"), "ir: no op was traced under 'decoder'"),
    "scope number": (lambda p: p.ir(3), "ir: scope is a string"),  # type: ignore[arg-type]
    "report": (lambda p: p.report("page.html"), "a page is written by save_report(path)"),  # type: ignore[arg-type]
    "why_replicated": (
        lambda p: p.why_replicated("batch/x"),
        "explain(path) takes an argument's path",
    ),  # type: ignore[arg-type]
    "check": (
        lambda p: decorated().check(STATE, rows(), plan="p"),
        "plan is a Plan or what",
    ),
    "names' path": (
        lambda p: p.logical_axis_rules({"w1": ("a", "b")}, "state/param"),
        "no argument 'state/param/w1' to give logical names to; near it are: state/params/w1",
    ),
    "names' rank": (
        lambda p: p.logical_axis_rules({"w1": ("a",)}, "state/params"),
        "state/params/w1, of shape (8, 16), are a tuple of a name or None for each of 2 dims",
    ),
    "target": (lambda p: p.verify("h100:8"), "did you mean 'gpu_h100'?"),
    "target number": (lambda p: p.verify(8), "a target is a machine and its topology"),  # type: ignore[arg-type]
    "compare": (lambda p: ps.compare(p, "other"), "compare: after is a Plan, not 'other'"),  # type: ignore[arg-type]
    "batch": (lambda p: p.make_global_batch({"x": 1}), "no argument of 'step' has the structure"),
    "state": (lambda p: p.skew({"w": 1}), "pass a whole argument of the step"),
    "pickle": (pickle.dumps, "write it with plan.save(path), and pass partir_search.load_plan"),
    "deepcopy": (copy.deepcopy, "write it with plan.save(path)"),
    "save nowhere": (lambda p: p.save(3), "path is a path"),  # type: ignore[arg-type]
    "save to a folder": (lambda p: p.save("/"), "cannot write /: it is a folder; give the path"),
    "save below a file": (lambda p: p.save(f"{__file__}/p.json"), "there is a file of that name"),
    "page to a folder": (lambda p: p.save_report("/"), "cannot write /: it is a folder"),
}


@pytest.mark.parametrize("case", sorted(USES))
def test_uses_of_a_plan(case: str, plan: ps.Plan) -> None:
    use, message = USES[case]
    with says(message):
        use(plan)


def test_copies(plan: ps.Plan) -> None:
    assert copy.copy(plan).actions == plan.actions
    function = decorated()
    assert copy.deepcopy({"step": function})["step"] is function
    with says("step is partitioned for this process's devices and cannot be pickled"):
        pickle.dumps(function)


def test_experts_name_the_nearest(plan: ps.Plan) -> None:
    known = ps.known_strategies(step, MESH, STATE, rows(), machine="cpu")
    with pytest.raises(KeyError, match=r"no strategy 'BP\(bach\)'; .*did you mean 'BP\(batch\)'"):
        known["BP(bach)"]


def edited(plan: ps.Plan, **changes: Any) -> str:
    data = {k: v for k, v in {**plan.to_json(), **changes}.items() if v is not ...}
    return json.dumps(data)


FILES: dict[str, tuple[Callable[[ps.Plan], str], str]] = {
    "no JSON": (lambda p: "plan", "it is no JSON, or was cut off"),
    "cut off": (lambda p: edited(p)[:200], "it is no JSON, or was cut off"),
    "a list": (lambda p: "[]", "it holds []; write plans with plan.save(path)"),
    "nothing": (lambda p: "{}", "it has no 'format' (it has nothing)"),
    "older": (lambda p: edited(p, format=1), "format 1, this version of partir_search reads 2; pl"),
    "no mesh": (lambda p: edited(p, mesh=...), "it has no 'mesh'"),
    "mesh list": (lambda p: edited(p, mesh=[2, 4]), "its 'mesh' are axes and their sizes, not [2"),
    "mesh empty": (lambda p: edited(p, mesh={}), "its mesh has no axes"),
    "mesh text": (lambda p: edited(p, mesh={"batch": "2"}), "size of mesh axis 'batch' is a whole"),
    "actions": (lambda p: edited(p, actions=3), "its 'actions' are a list of actions, not 3"),
    "action": (lambda p: edited(p, actions=[{"tiel": "x"}]), "not an action: {'tiel': 'x'}"),
    "action's dim": (lambda p: edited(p, actions=[{"tile": "batch.x"}]), "it has no 'dim'"),
    "remat": (lambda p: edited(p, remat=[[1]]), "its 'remat' are pairs of positions, not [[1]]"),
    "machine": (
        lambda p: json.dumps(dataclasses.asdict(p.machine)),
        "it holds a machine: pass its path as machine=",
    ),
}


@pytest.mark.parametrize("case", sorted(FILES))
def test_plan_files(case: str, plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    write, message = FILES[case]
    path = tmp_path / "plan.json"
    path.write_text(write(plan))
    with pytest.raises(ValueError, match=re.escape(f"{path} is not a plan that can be read: ")):
        ps.load_plan(path)
    with says(message):
        ps.load_plan(path)


def test_plan_files_that_are_not_there(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    plan.save(tmp_path / "made" / "on the way" / "plan.json")
    plan.save_report(tmp_path / "page" / "report.html")
    with pytest.raises(FileNotFoundError, match=r"there is no plan at .*plna.json; .* has plan"):
        ps.load_plan(tmp_path / "made" / "on the way" / "plna.json")
    with pytest.raises(IsADirectoryError, match="it is a folder; give the path of a file"):
        ps.load_plan(tmp_path)


def test_plan_of_another_jax_is_warned_of_once(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, versions={"jax": "0.4.1"}))
    with pytest.warns(
        UserWarning, match=r"was made with jax 0\.4\.1, this is .*save the plan again"
    ) as w:
        saved = ps.load_plan(path)
    assert len(w) == 1
    planned(schedule=saved).save(path)
    ps.load_plan(path)


def test_plan_that_names_what_is_not_there(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, actions=[{"tile": "batch.z", "dim": 0, "axis": "batch"}]))
    with says("the program has no value 'batch/z'; near it are: batch/x, batch/y"):
        planned(schedule=ps.load_plan(path))
    with says(f"{path} holds no machine: it holds a plan"):
        ps.auto_partition(MESH, machine=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hbm_bytes": ...}, "figures are missing: 'hbm_bytes'"),
        ({"hbm_byte": 3}, "it has a figure 'hbm_byte'; did you mean 'hbm_bytes'?"),
        ({"flops_per_s": 3}, "flops_per_s maps names to numbers, not 3"),
        ({"torus": "yes"}, "torus is True or False, not 'yes'"),
    ],
)
def test_machine_files(change: dict[str, Any], message: str, tmp_path: pathlib.Path) -> None:
    data = {**dataclasses.asdict(ps.MACHINES["cpu"]), **change}
    path = tmp_path / "here.json"
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    with pytest.raises(ValueError, match=re.escape(f"{path} holds no machine: ")) as caught:
        ps.auto_partition(MESH, machine=str(path))
    assert message in str(caught.value)


def test_cache_that_cannot_be_written_loses_no_plan(tmp_path: pathlib.Path) -> None:
    cached = decorated(cache=tmp_path / "plans", schedule=None, progress=None, episodes=3)
    (tmp_path / "plans").rmdir()
    (tmp_path / "plans").write_text("no folder any more")
    with pytest.warns(UserWarning, match="cache: the plan cannot be stored at .*search again"):
        assert cached.plan(STATE, rows()).fits


def test_stopped_search_says_how_far_it_was() -> None:
    def stop(record: Any) -> None:
        if record.episodes >= 4:
            raise KeyboardInterrupt  # as Python does for the signal, unless a shell ignores that

    step = decorated(progress=stop, episodes=50)
    with pytest.raises(KeyboardInterrupt) as caught:
        step.plan(STATE, rows())
    (note,) = caught.value.__notes__
    assert re.search(r"stopped after 4 of 50 strategies; the best so far .*episodes=4 ends", note)


# Device kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "gb"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100_40gb", 40),
        ("NVIDIA A100-SXM4-80GB", "a100", 80),
        ("NVIDIA A100 80GB PCIe", "a100", 80),
        ("Tesla V100-SXM2-16GB", "v100_16gb", 16),
        ("Tesla V100-SXM2-32GB", "v100", 32),
        ("NVIDIA H100 80GB HBM3", "h100", 80),
        ("NVIDIA H100 64GB", "h100_64gb", 64),
        ("NVIDIA H200", "h200", 141),
    ],
)
def test_memory_in_a_device_kind(kind: str, name: str, gb: int) -> None:
    machine = machine_of_kind(kind)
    assert (machine.name, machine.hbm_bytes) == (name, gb * 10**9)


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("NVIDIA B200", "h200"),
        ("NVIDIA GH200 480GB", "h200"),
        ("TPU7x", "tpu_v6e, tpu_v5p"),
        ("AMD Instinct MI300X", ""),
    ],
)
def test_unknown_device_kinds(kind: str, near: str) -> None:
    with says(f"no figures for device kind {kind!r}; the nearest are of {near}"):
        machine_of_kind(kind)


# The command line --------------------------------------------------------------------------------


def example_args() -> Any:
    return STATE, rows()


def failing() -> Any:
    raise KeyError("boom")


def keyed(state: Any, batch: Any) -> Any:
    return state["no such key"] + batch["x"]


OWN = "tests.reported.test_mistakes"
WORDS = [f"--args={OWN}:example_args", "--mesh=batch:2,model:4", "--machine=cpu"]
COMMANDS: list[tuple[list[str], str]] = [
    ([f"{OWN}:setp", *WORDS], "did you mean 'step'?"),
    (["tests/reported/test_mistakes.py:step", *WORDS], f"did you mean {OWN}:step?"),
    ([":step", *WORDS], "'' names no module; write it as package.module:function"),
    ([f"{OWN}:WORDS", *WORDS], "must both be functions"),
    ([f"{OWN}:keyed", *WORDS], "failed: KeyError: 'no such key' ("),
    ([f"{OWN}:step", f"--args={OWN}:failing", *WORDS[1:]], "failed: KeyError: 'boom' ("),
    ([f"{OWN}:step", *WORDS, "--mesh=2x4"], "(write it as batch:2,model:4): '2x4' is no axis"),
    ([f"{OWN}:step", *WORDS, "--mesh=batch:0"], "mesh axis 'batch' has size 0"),
    ([f"{OWN}:step", *WORDS, "--machine=TPU v5e"], "did you mean 'tpu_v5e'?"),
    ([f"{OWN}:step", *WORDS, "--out="], "--out is an empty path"),
    ([f"{OWN}:step", *WORDS, f"--out={__file__}"], "--out: cannot make the folder"),
    ([f"{OWN}:step", *WORDS, f"--cache={__file__}"], "--cache: cannot make the folder"),
    ([f"{OWN}:step", *WORDS, "--verify=tpu_v5"], "unknown target 'tpu_v5'"),
    ([f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1, not 0"),
    (["--donate", "0", f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1"),
    (["--donate", "0", "1", f"{OWN}:step", *WORDS, "--episodes=0"], "episodes must be at least 1"),
    ([f"{OWN}:step", *WORDS, "--donate=7"], "donate_argnums=(7,)"),
]


@pytest.mark.parametrize("words,message", COMMANDS, ids=map(str, range(len(COMMANDS))))
def test_commands(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each ends with 2 and one line, before a search."""
    monkeypatch.setattr(
        "partir_search.planning.planner.search_noted", lambda *_: pytest.fail("searched")
    )
    assert cli.main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("partir-search: ")
    assert said.count("\n") == 1
    assert message in said


def test_command_positions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.joined_positions(["--donate", "0", "2", "m:f"]) == ["--donate=0,2", "m:f"]
    assert cli.joined_positions(["--donate=0", "m:f"]) == ["--donate=0", "m:f"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", "--donate", f"{OWN}:step", *WORDS])
    assert caught.value.code == 2
    assert "is no position of an argument; write 0 or 0,1" in capsys.readouterr().err
