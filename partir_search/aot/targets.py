"""Targets for ahead-of-time compilation: TPU and GPU compilers, without the hardware.

A target is a machine and a topology: ``tpu_v5e:4x4``, or ``gpu_h100:8`` for eight GPUs; more GPUs
are on hosts of eight. `libtpu` and `jax-cuda13-plugin` on PyPI contain the compilers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from partir_search.ir.mesh import MeshShape
from partir_search.messages.wording import did_you_mean, shown
from partir_search.simulator.target.machine import MACHINES, Machine

# Without these libtpu queries the cloud's metadata server and refuses to load in a second process.
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Without it jax refuses the plugin if CUDA's libraries are missing, unless JAX_PLATFORMS=cpu. jax
# reads both variables once, when it first initializes its backends.
_CUDA = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
TPUS = ("tpu_v3", "tpu_v5e", "tpu_v5p", "tpu_v6e")  # v4 topologies come without megacores

# Slices by number of devices, as sold: https://docs.cloud.google.com/tpu/docs (v5e, v5p, v6e).
_SQUARE = dict(
    zip(
        (1, 4, 8, 16, 32, 64, 128, 256),
        ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
        strict=True,
    )
)
_CUBE = dict(
    zip(
        (4, 8, 16, 32, 64, 128, 256, 512),
        ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
        strict=True,
    )
)
TOPOLOGIES: Mapping[str, Mapping[int, str]] = {
    "tpu_v5e": _SQUARE,
    "tpu_v6e": _SQUARE,
    "tpu_v5p": _CUBE,
}

GPUS_PER_HOST = 8
# `GpuTargetConfigProto`, device properties for XLA:GPU. Sources: NVIDIA's H100 SXM datasheet; CUDA
# programming guide, table of compute capability 9.0.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 85899345920
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
GPUS: Mapping[str, tuple[str, str]] = {"gpu_h100": ("h100", _H100)}  # machine, description


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A machine and the topology of its slice, e.g. ``4x4``, or a number of GPUs.

    Attributes:
      name: ``tpu_v5e``, ``gpu_h100`` ...
      machine: figures of the simulator.
    """

    name: str
    machine: Machine
    topology: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Target of a text such as ``tpu_v5e:4x4``; a ValueError lists the machines."""
        if not isinstance(text, str):
            raise TypeError(
                f"a target is a machine and its topology, 'tpu_v5e:4x4', not {shown(text)}"
            )
        name, _, topology = text.partition(":")
        if name in TPUS and topology:
            return cls(name, MACHINES[name], topology)
        if name in GPUS and topology.isdecimal() and _hosts(int(topology)):
            return cls(name, MACHINES[GPUS[name][0]], topology)
        raise ValueError(
            f"unknown target {text!r}: write a machine and its topology, as tpu_v5e:4x4, or a"
            f" number of GPUs (up to {GPUS_PER_HOST}, or hosts of as many), as gpu_h100:8; machines"
            f" with a compiler are {', '.join((*TPUS, *GPUS))}"
            + ("" if name in (*TPUS, *GPUS) else did_you_mean(name, (*TPUS, *GPUS)))
        )

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Options of XLA: no autotuning on GPUs, for lack of a device to time kernels on."""
        return {"xla_gpu_autotune_level": 0} if self.name in GPUS else {}

    @property
    def topology_arguments(self) -> dict[str, Any]:
        """Arguments of `topologies.get_topology_desc`."""
        if self.name in GPUS:
            hosts = _hosts(int(self.topology))
            shape = f"1x{hosts}x{int(self.topology) // hosts}"
            return {
                "topology_name": "",
                "platform": "cuda",
                "topology": shape,
                "target_config": GPUS[self.name][1],
            }
        name = f"{self.name.removeprefix('tpu_')}:{self.topology}"  # the compiler's, v5e:2x4
        return {"platform": "tpu", "topology_name": name}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that compiles, if unset."""
        return _CUDA if self.name in GPUS else LIBTPU

    def devices(self) -> list[Any]:
        """Device descriptions of the slice, to compile programs for.

        Raises:
          RuntimeError: the compiler is not installed, or has no such topology.
        """
        package = "jax-cuda13-plugin jax-cuda13-pjrt" if self.name in GPUS else "libtpu"
        try:
            return list(self._topology().devices)
        except Exception as error:
            raise RuntimeError(
                f"cannot compile for {self}: {error}; the compilers come with"
                f" (pip install {package}), and a topology must be one that is sold, e.g. v5e:4x4;"
                " set JAX_PLATFORMS=cpu on a machine without the hardware"
            ) from error

    def _topology(self) -> Any:
        with _environment(self.environment):
            return topologies.get_topology_desc(**self.topology_arguments)

    def mesh(self, shape: MeshShape) -> Mesh:
        """Mesh of a shape over the slice, laid out on the torus by `jax.make_mesh`.

        Raises:
          ValueError: the slice has a different number of devices.
        """
        devices = self.devices()
        if len(devices) != shape.devices:
            raise ValueError(
                f"mesh<{shape}> has {shape.devices} devices, {self} has {len(devices)}: compile"
                " for a slice of the mesh's size"
            )
        types = (AxisType.Auto,) * len(shape.device_names)
        return jax.make_mesh(
            shape.device_sizes, shape.device_names, axis_types=types, devices=devices
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.topology}"


def target_of(machine: str, devices: int) -> Target | None:
    """The usual slice of a TPU machine with a number of devices; None if there is none."""
    topology = TOPOLOGIES.get(machine, {}).get(devices)
    return None if topology is None else Target.parse(f"{machine}:{topology}")


def _hosts(gpus: int) -> int:
    """Number of hosts for a number of GPUs; 0 if the last host would not be full."""
    if 0 < gpus <= GPUS_PER_HOST:
        return 1
    return 0 if gpus % GPUS_PER_HOST else gpus // GPUS_PER_HOST


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Sets unset environment variables for the duration of the context."""
    added = [k for k in wanted if k not in os.environ]
    os.environ.update({k: wanted[k] for k in added})
    try:
        yield
    finally:
        for k in added:
            del os.environ[k]
