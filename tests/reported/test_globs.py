"""Globs on argument paths: `**` stands for zero or more parts, as in pathlib and gitignore."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.argument_paths import matches


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("state/mu/**/emb", "state/mu/emb", True),
        ("state/mu/**/emb", "state/mu/a/emb", True),
        ("state/mu/**/emb", "state/mu/a/b/emb", True),
        ("state/mu/**/emb", "state/mu/a/b/emb/table", True),  # in the subtree that is named
        ("state/mu/**/emb", "state/mu/a", False),
        ("state/mu/**/emb", "state/muemb", False),
        ("state/mu/**/emb", "state/mu/member", False),
        ("state/mu/**/emb", "state/nu/emb", False),
        ("**/emb", "emb", True),
        ("**/emb", "state/emb", True),
        ("**/emb", "state/member", False),
        ("state/**", "state", True),
        ("state/**", "state/w", True),
        ("state/**", "state/w/0", True),
        ("state/**", "states/w", False),
        ("**", "x", True),
        ("**", "state/w/0", True),
        ("**/**/w", "w", True),
        ("a/**/b/**/c", "a/b/c", True),
        ("a/**/b/**/c", "a/x/b/y/z/c", True),
        ("a/**/b/**/c", "a/c/b", False),
        ("a/*/b", "a/b", False),  # one part, which may not be left out
        ("a/*/b", "a/x/b", True),
        ("a/*/b", "a/x/y/b", False),
        ("layer_*/**/w", "layer_3/w", True),
        ("layer_*/**/w", "layer_3/attention/w", True),
        ("a**/w", "abc/w", True),  # a star within a part stays within it
        ("a**/w", "abc/d/w", False),
        ("w+/**", "w+/x", True),
        ("w+/**", "ww/x", False),
    ],
)
def test_matches(glob: str, path: str, expected: bool) -> None:
    assert matches(glob, path) is expected


def test_a_tactic_reaches_leaves_at_every_depth() -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("d",))

    def step(state: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        mu = state["mu"]
        return x @ mu["emb"] + x @ mu["deep"]["emb"]  # type: ignore[index]

    w = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    tactic = ps.ManualPartition({"state/mu/**/emb": 1}, axis="d")
    plan = ps.auto_partition(mesh, schedule=[tactic], machine="tpu_v5e")(step).plan(
        {"mu": {"emb": w, "deep": {"emb": w}}}, jax.ShapeDtypeStruct((4, 16), jnp.float32)
    )
    specs = plan.partition_specs[0][0]["mu"]
    assert specs["emb"] == specs["deep"]["emb"] == jax.P(None, "d")
