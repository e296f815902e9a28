"""Mistakes in arguments of a call, and batches that no axis divides."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
)


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
