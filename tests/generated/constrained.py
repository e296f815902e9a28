"""Random programs with random shardings, fixed on interior values, arguments and results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.programs import Builder, build


def random_spec(
    rng: random.Random, mesh: jax.sharding.Mesh, shape: Sequence[int], even: bool, loose: bool
) -> PartitionSpec:
    """Axes in any order on any dims.

    Args:
      even: only where they divide.
      loose: some dims may be UNCONSTRAINED.
    """
    dims: list[list[str]] = [[] for _ in shape]
    names = list(mesh.axis_names)
    rng.shuffle(names)
    left = list(shape)
    for name in names:
        d, n = rng.randrange(len(shape)), mesh.shape[name]
        if rng.random() < 0.7 and (left[d] % n == 0 or not even):
            dims[d].append(name)
            left[d] //= n
    entries: list[Any] = [tuple(d) if d else None for d in dims]
    for d, entry in enumerate(entries):
        if loose and entry is None and rng.random() < 0.15:
            entries[d] = PartitionSpec.UNCONSTRAINED
    return PartitionSpec(*entries)


def _names(entry: Any) -> tuple[str, ...]:
    """The axes of an entry of a spec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


class _Constrained(Builder):
    """A program of which every other value is constrained, or goes through a `shard_map`."""

    mesh: jax.sharding.Mesh
    plainly = False

    def grow(self) -> None:
        before = len(self.steps)
        super().grow()
        kind = self.rng.random()
        if len(self.steps) == before or kind < 0.3:
            return
        step, within = self.steps[-1], kind > 0.8
        mesh = self.renamed() if within else self.mesh
        spec = random_spec(self.rng, mesh, self.shapes[-1], even=within, loose=not within)
        if within:
            region = self.by_hand(spec, mesh) if self.plainly else self.region(spec, mesh)
            self.steps[-1] = lambda v: region(step(v))
        else:
            sharding = NamedSharding(self.mesh, spec)
            self.steps[-1] = lambda v: self.constrain(step(v), sharding)

    def constrain(self, x: Any, sharding: NamedSharding) -> Any:
        return x if self.plainly else lax.with_sharding_constraint(x, sharding)

    def renamed(self) -> jax.sharding.Mesh:
        """The mesh, or one of the same devices in the same order whose axes have other names, and
        may have other sizes.
        """
        kind, n, sizes = self.rng.random(), self.mesh.size, self.mesh.axis_sizes
        if kind < 0.4:
            return self.mesh
        if kind >= 0.6 and n % 2 == 0:
            halves = kind >= 0.8 and sizes[0] % 2 == 0  # an axis of 3 does not nest with one of 2
            sizes = (2, n // 2) if halves else (n,)
        names, types = ("one", "other", "third")[: len(sizes)], (AxisType.Auto,) * len(sizes)
        return jax.sharding.Mesh(self.mesh.devices.reshape(sizes), names, axis_types=types)

    def region(self, spec: PartitionSpec, mesh: jax.sharding.Mesh) -> Callable[[Any], Any]:
        """Adds the device's number along the axes of `spec`, and takes a mean of what is equal."""
        axes = tuple(name for entry in spec for name in _names(entry))
        others = tuple(name for name in mesh.axis_names if name not in axes)

        def body(x: Any) -> Any:
            x = lax.pmean(x, others) if others else x
            return x * 0.5 + (0.1 * lax.axis_index(axes) if axes else 0.0)

        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def by_hand(self, spec: PartitionSpec, mesh: jax.sharding.Mesh) -> Callable[[Any], Any]:
        """The same on whole arrays: each element adds the number of the device that holds it."""
        shape, sizes = self.shapes[-1], mesh.shape
        places = np.indices(shape)
        number = np.zeros(shape, np.int64)
        for dim, entry in enumerate(spec):
            tiles = math.prod(sizes[name] for name in _names(entry))
            number = number * tiles + places[dim] // (shape[dim] // tiles)
        return lambda x: x * 0.5 + 0.1 * number.astype(np.float32)


def constrained(
    seed: int, mesh: jax.sharding.Mesh, *, plainly: bool = False
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """A program and its arguments; `plainly` without constraints."""

    def make(seed: int) -> Builder:
        builder = _Constrained(seed)
        builder.mesh, builder.plainly = mesh, plainly
        return builder

    return build(seed, make)
