"""Comparison of a partitioned function with the plain function, leaf by leaf, on CPU devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from partir_search.arguments.abstract_values import SCALARS
from partir_search.frontends.refs import is_ref, value
from partir_search.ir.argument_paths import leaf_path
from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.rules.construct import weakened

if TYPE_CHECKING:
    from rich.console import RenderableType

TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}  # of a leaf's largest element, by bytes of a real number


@dataclasses.dataclass(frozen=True)
class LeafCheck:
    """Largest absolute difference in one result leaf.

    Attributes:
      path: path of the leaf in the result.
      type: dtype and shape, as text.
      difference: largest absolute difference; for integers and keys, 1 if any element differs.
      relative: `difference` divided by the largest absolute element of the plain result.
      ok: True if `relative` is within the dtype's tolerance and NaNs are at the same places.
    """

    path: str
    type: str
    difference: float
    relative: float
    ok: bool


@dataclasses.dataclass(frozen=True, repr=False)
class Check(Shown):
    """Result of `Plan.check`; printing shows a table of the worst leaves."""

    leaves: tuple[LeafCheck, ...]

    @property
    def ok(self) -> bool:
        """True if every leaf agrees up to rounding."""
        return all(leaf.ok for leaf in self.leaves)

    @property
    def worst(self) -> LeafCheck:
        return max(self.leaves, key=lambda leaf: (not leaf.ok, leaf.relative))

    def __rich__(self) -> RenderableType:
        title = "partitioned against plain: " + ("they agree" if self.ok else "they differ")
        table = new_table(title=title, title_justify="left")
        for column in ("result", "type"):
            table.add_column(column)
        for column in ("largest difference", "of the largest element", ""):
            table.add_column(column, justify="right")
        ranked = sorted(self.leaves, key=lambda leaf: (leaf.ok, -leaf.relative))
        for leaf in ranked[:20]:
            numbers = f"{leaf.difference:.2e}", f"{leaf.relative:.2e}"
            table.add_row(leaf.path, leaf.type, *numbers, "" if leaf.ok else "differs")
        if len(ranked) > 20:
            table.caption = f"and {len(ranked) - 20} more, which differ less"
        return table


def cpu_mesh(names: tuple[str, ...], sizes: tuple[int, ...]) -> Mesh:
    """Mesh of CPU devices.

    Raises:
      ValueError: jax has too few CPU devices; the message gives the XLA flag.
    """
    count = int(np.prod(sizes))
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ValueError(
            f"the check runs on {count} CPU devices, jax has {len(devices)}; set"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={count} before jax starts"
        )
    return Mesh(np.array(devices[:count]).reshape(sizes), names)


def concrete(tree: Any, seed: int = 0) -> Any:
    """Copies the leaves of `tree` to the host and fills ShapeDtypeStructs with random data.

    Floats are drawn from a normal distribution of scale 0.1, integers from {0, 1}, and PRNG keys
    are split from `seed`. Python's numbers and weak types are kept: another type is another
    program.
    """
    rng = np.random.default_rng(seed)

    def draw(x: Any) -> Any:
        if is_ref(x):
            x = value(x)
        if isinstance(x, SCALARS):
            return x
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = jax.device_get(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(x)))
        if not isinstance(x, jax.ShapeDtypeStruct):
            found = jax.device_get(x)
        elif jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            keys = jax.random.split(jax.random.key(seed), max(1, int(np.prod(x.shape))))
            return keys.reshape(x.shape)
        elif jnp.issubdtype(x.dtype, jnp.inexact):
            found = jnp.asarray(rng.normal(scale=0.1, size=x.shape), x.dtype)
        else:
            found = jnp.asarray(rng.integers(0, 2, x.shape), x.dtype)
        return weakened(jnp.asarray(found)) if getattr(x, "weak_type", False) else found

    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(draw, tree)


def compared(
    partitioned: Callable[..., Any], plain: Callable[..., Any], args: Any, kwargs: Any
) -> Check:
    """Runs both functions on copies of the arguments (either may donate); compares the results."""

    def fresh() -> Any:
        def copied(x: Any) -> Any:
            return x if isinstance(x, SCALARS) else jnp.array(x, copy=True)

        return jax.tree.map(copied, (args, kwargs))

    with jax.default_device(jax.devices("cpu")[0]):
        copies = fresh()
        expected = jax.block_until_ready(plain(*copies[0], **copies[1]))
        copies = fresh()
    result = jax.block_until_ready(partitioned(*copies[0], **copies[1]))
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(result), strict=True)
    return Check(tuple(_leaf(leaf_path("", keys) or "result", a, b) for (keys, a), b in pairs))


def _leaf(path: str, expected: Any, result: Any) -> LeafCheck:
    kind = f"{expected.dtype}{list(expected.shape)}"
    if jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
        expected, result = jax.random.key_data(expected), jax.random.key_data(result)
    x, y = np.asarray(expected), np.asarray(result)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        wrong = float(np.max(x != y, initial=0))
        return LeafCheck(path, kind, wrong, wrong, not wrong)
    tolerance = TOLERANCE.get(x.real.dtype.itemsize, 0.2)
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    x, y = x.astype(wide), y.astype(wide)
    same_nans = bool(np.array_equal(np.isnan(x), np.isnan(y)))
    difference = float(np.nanmax(np.abs(x - y), initial=0.0))
    relative = difference / max(float(np.nanmax(np.abs(x), initial=0.0)), 1e-3)
    return LeafCheck(path, kind, difference, relative, same_nans and relative <= tolerance)
