"""Targets for ahead-of-time compilation: real TPU compilers, without the hardware.

A target is a machine and a topology, ``tpu_v5e:4x4``. `libtpu` (from PyPI) holds the compilers; no
TPU is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from partir_search.ir.mesh import MeshShape
from partir_search.machine import MACHINES, Machine

# Without these libtpu asks the cloud's metadata server who it is, and refuses a second process.
_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
TPUS = ("tpu_v3", "tpu_v5e", "tpu_v5p", "tpu_v6e")  # v4 topologies come without megacores


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A machine and the topology of its slice, e.g. ``4x4``."""

    machine: Machine
    topology: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """``tpu_v5e:4x4`` to a target; a ValueError lists the machines."""
        name, _, topology = text.partition(":")
        if name not in TPUS or not topology:
            raise ValueError(
                f"unknown target {text!r}: write a machine and its topology, as tpu_v5e:4x4;"
                f" machines with a compiler are {', '.join(TPUS)}"
            )
        return cls(MACHINES[name], topology)

    def devices(self) -> list[Any]:
        """Descriptions of the slice's devices, which programs can be compiled for."""
        with _environment(_LIBTPU):
            try:
                found = topologies.get_topology_desc(
                    platform="tpu",
                    topology_name=f"{self.machine.name.removeprefix('tpu_')}:{self.topology}",
                )
            except Exception as error:
                raise RuntimeError(
                    f"cannot compile for {self}: {error}; the compilers are in the package libtpu"
                    " (pip install libtpu), and a topology must be one that is sold, e.g. v5e:4x4"
                ) from error
        return list(found.devices)

    def mesh(self, shape: MeshShape) -> Mesh:
        """A mesh of that shape over the slice, laid out on its torus as `jax.make_mesh` does."""
        devices = self.devices()
        if len(devices) != shape.devices:
            raise ValueError(
                f"mesh<{shape}> has {shape.devices} devices, {self} has {len(devices)}: verify on"
                " a slice of the mesh's size"
            )
        types = (AxisType.Auto,) * len(shape.names)
        return jax.make_mesh(shape.sizes, shape.names, axis_types=types, devices=devices)

    def __str__(self) -> str:
        return f"{self.machine.name}:{self.topology}"


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Sets what is not set yet, for as long as the context lasts."""
    added = [k for k in wanted if k not in os.environ]
    os.environ.update({k: wanted[k] for k in added})
    try:
        yield
    finally:
        for k in added:
            del os.environ[k]
