"""Machines: figures of chips and networks, each with its source."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from partir_search.messages import validators
from partir_search.messages.files import read_text, write_text
from partir_search.messages.wording import did_you_mean, shown
from partir_search.simulator.target import moved_traits
from partir_search.simulator.target.device_kinds import machine_name, memory_of, nearest_names
from partir_search.simulator.target.traits import UNKNOWN, XlaTraits, traits_named

GB = 1e9
GIB = 2**30
TERA = 1e12


@moved_traits.accept_former_fields
@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Figures of one device and its links, and the traits of its compiler.

    Former fields that are traits now remain as deprecated arguments and properties.

    Attributes:
      flops_per_s: peak dense matrix rate by dtype name; "default" for dtypes without an entry.
      hbm_bytes: memory available to a program.
      hbm_bytes_per_s: peak memory bandwidth.
      link_bytes_per_s: bandwidth of one device in a ring along one mesh axis, both directions.
      hop_seconds: latency (alpha) of one step of a collective.
      kernel_seconds: fixed seconds of one kernel.
      matmul_efficiency / hbm_efficiency: attained fraction of the peaks.
      vector_bytes: bytes of a vector unit's element (docs/simulator.md); 0 if memory alone limits
        elementwise kernels.
      vmem_bytes: memory on the chip for short-lived values (TPU's VMEM); 0 if none.
      vmem_bytes_per_s: attained bandwidth of elementwise kernels from memory on the chip; 0 for
        the bandwidth of main memory.
      torus: True for links between neighbours along each axis, False for a switch.
      sources: datasheets and measurements of the figures.
      axis_bytes_per_s / axis_hop_seconds: overrides of `link_bytes_per_s` and `hop_seconds` by mesh
        axis name, e.g. for an axis across hosts (see `with_axis`).
      traits: behaviour of the compiler.
    """

    name: str
    flops_per_s: Mapping[str, float]
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    hop_seconds: float = 1e-6
    kernel_seconds: float = 2e-6
    matmul_efficiency: float = 0.9
    hbm_efficiency: float = 0.75
    vector_bytes: int = 0
    vmem_bytes: float = 0.0
    vmem_bytes_per_s: float = 0.0
    torus: bool = False
    sources: tuple[str, ...] = ()
    axis_bytes_per_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    axis_hop_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    traits: XlaTraits = UNKNOWN

    def __post_init__(self) -> None:
        def named(field: str) -> str:
            return f"Machine({self.name!r}): {field}"

        validators.text("Machine: name", self.name, "'my_chip'")
        for field in ("flops_per_s", "axis_bytes_per_s"):
            validators.rates(named(field), getattr(self, field))
        if "default" not in self.flops_per_s:
            raise ValueError(
                f"{named('flops_per_s')} has no 'default' rate, for types without one of their own:"
                f" it has {sorted(self.flops_per_s)}"
            )
        for field in _ABOVE_ZERO:
            validators.number(named(field), getattr(self, field), above=0)
        for field in _NOT_NEGATIVE:
            validators.number(named(field), getattr(self, field))
        for field in ("matmul_efficiency", "hbm_efficiency"):
            if getattr(self, field) > 1:
                raise ValueError(
                    f"{named(field)} is a share of the peak, at most 1, not {getattr(self, field)}"
                )
        validators.names(named("sources"), self.sources, "('a datasheet',)")
        if not isinstance(self.axis_hop_seconds, Mapping):
            raise TypeError(f"{named('axis_hop_seconds')} maps axes to seconds")
        for axis, seconds in self.axis_hop_seconds.items():
            validators.number(named(f"axis_hop_seconds[{axis!r}]"), seconds)
        validators.flag(named("torus"), self.torus)
        if not isinstance(self.traits, XlaTraits):
            raise TypeError(f"{named('traits')} is an XlaTraits, not {shown(self.traits)}")

    def __getattr__(self, name: str) -> Any:
        return moved_traits.read_former_field(self, name)

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Attained matrix rate for operands of `dtype` (a numpy dtype name)."""
        peak = self.flops_per_s.get(dtype, self.flops_per_s["default"])
        return peak * self.matmul_efficiency

    @property
    def attained_hbm_bytes_per_s(self) -> float:
        """Attained memory bandwidth."""
        return self.hbm_bytes_per_s * self.hbm_efficiency

    def axis_bandwidth(self, axis: str) -> float:
        """Bytes per second of one device in a ring along a mesh axis."""
        return self.axis_bytes_per_s.get(axis, self.link_bytes_per_s)

    def axis_hop(self, axis: str) -> float:
        """Seconds of latency of one step of a collective along a mesh axis."""
        return self.axis_hop_seconds.get(axis, self.hop_seconds)

    def with_axis(self, axis: str, bytes_per_s: float, hop_seconds: float) -> Machine:
        """Machine with a mesh axis on links of its own: DCN, InfiniBand, a slower torus dimension.

        Args:
          axis: name of the mesh axis.
          bytes_per_s: bandwidth of one device in a ring along the axis; a host's bandwidth divided
            by the number of devices that share the host's link.
          hop_seconds: latency of one step of a collective.
        """
        validators.text("with_axis: axis", axis, "'hosts'")
        validators.number("with_axis: bytes_per_s", bytes_per_s, above=0)
        validators.number("with_axis: hop_seconds", hop_seconds)
        return dataclasses.replace(
            self,
            axis_bytes_per_s={**self.axis_bytes_per_s, axis: bytes_per_s},
            axis_hop_seconds={**self.axis_hop_seconds, axis: hop_seconds},
        )

    def with_traits(self, **changes: Any) -> Machine:
        """Machine with some traits of its compiler replaced, by name of the `XlaTraits` field."""
        return dataclasses.replace(self, traits=dataclasses.replace(self.traits, **changes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the figures as JSON; `find_machine` reads them from a path."""
        write_text(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")


_ABOVE_ZERO = (
    *("hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s"),
    *("matmul_efficiency", "hbm_efficiency"),
)
_NOT_NEGATIVE = ("hop_seconds", "kernel_seconds", "vector_bytes", "vmem_bytes", "vmem_bytes_per_s")


_EFFICIENCY = (
    "matmul 0.9, HBM 0.81 of peak (v5p 0.69), 2 us per kernel: XLA:TPU's own cycle estimates",
)
_TPU_DOCS = "https://cloud.google.com/tpu/docs/"
_RING = (
    "one-way link rates: https://jax-ml.github.io/scaling-book (chapter 2);"
    " a ring along one axis uses one link each way, so twice that"
)


def _tpu(
    name: str,
    bf16_tflops: float,
    hbm_gib: float,
    hbm_gb_per_s: float,
    link_one_way_gb_per_s: float,
    *,
    vector_bytes: int = 4,
    hbm_efficiency: float = 0.81,
    vmem_mib: float = 0.0,
    vmem_gb_per_s: float = 0.0,
    note: str = "",
) -> Machine:
    # XLA:TPU multiplies f32 operands at the bf16 rate unless a higher precision is asked for.
    rates = {"default": bf16_tflops * TERA}
    return Machine(
        name=name,
        flops_per_s=rates,
        hbm_bytes=int(hbm_gib * GIB),
        hbm_bytes_per_s=hbm_gb_per_s * GB,
        link_bytes_per_s=2 * link_one_way_gb_per_s * GB,
        vector_bytes=vector_bytes,
        hbm_efficiency=hbm_efficiency,
        vmem_bytes=vmem_mib * 2**20,
        vmem_bytes_per_s=vmem_gb_per_s * GB,
        torus=True,
        sources=(_TPU_DOCS + name.removeprefix("tpu_"), _RING, *_EFFICIENCY, note),
        traits=traits_named(name),
    )


def _gpu(
    name: str,
    tflops: Mapping[str, float],
    hbm_gb: float,
    hbm_gb_per_s: float,
    link_gb_per_s: float,
    source: str,
) -> Machine:
    return Machine(
        name=name,
        flops_per_s={dtype: rate * TERA for dtype, rate in tflops.items()},
        hbm_bytes=int(hbm_gb * GB),
        hbm_bytes_per_s=hbm_gb_per_s * GB,
        link_bytes_per_s=link_gb_per_s * GB,
        hop_seconds=2e-6,
        kernel_seconds=4e-6,
        matmul_efficiency=0.7,
        hbm_efficiency=0.8,
        sources=(
            source,
            "NVLink one-way rate; XLA:GPU runs every collective as start/done",
            "matmul 0.7 of peak: the efficiency that AutoParallel assumes for H100 and A100",
        ),
        traits=traits_named(name),
    )


# 15.75 of 16 GiB are usable on v5e (XLA's own out-of-memory message); the same margin elsewhere.
MACHINES: Mapping[str, Machine] = {
    m.name: m
    for m in (
        _tpu("tpu_v3", 61.5, 15.75, 450, 50, note="a core: half of a chip's flops, HBM and links"),
        _tpu("tpu_v4", 275, 31.75, 1228, 45),
        _tpu(
            "tpu_v5e",
            *(197, 15.75, 819, 45),
            vmem_mib=128,
            vmem_gb_per_s=1100,
            note="VMEM 1.1 TB/s: XLA:TPU's cycles of Adam's updates on arrays that are there",
        ),
        _tpu("tpu_v5p", 459, 94.75, 2765, 90, hbm_efficiency=0.69),
        _tpu("tpu_v6e", 918, 31.75, 1640, 90, vector_bytes=2),
        _gpu(
            "a100",
            {"default": 312, "float32": 156},
            80,
            2039,
            300,
            "https://www.nvidia.com/en-us/data-center/a100/ (80 GB SXM; f32 as TF32)",
        ),
        _gpu(
            "a100_40gb",
            {"default": 312, "float32": 156},
            40,
            1555,
            300,
            "NVIDIA A100 Tensor Core GPU datasheet of 2021 (40 GB SXM, HBM2; f32 as TF32)",
        ),
        _gpu(
            "h100",
            {"default": 989, "float32": 494},
            80,
            3350,
            450,
            "https://www.nvidia.com/en-us/data-center/h100/ (SXM; dense; f32 as TF32)",
        ),
        _gpu(
            "h200",
            {"default": 989, "float32": 494},
            141,
            4800,
            450,
            "https://www.nvidia.com/en-us/data-center/h200/ (SXM; dense; f32 as TF32)",
        ),
        _gpu(
            "v100",
            {"default": 125, "float32": 15.7},
            32,
            900,
            150,
            "https://www.nvidia.com/en-us/data-center/v100/ (SXM2 32 GB; bf16 runs as f16)",
        ),
        _gpu(
            "v100_16gb",
            {"default": 125, "float32": 15.7},
            16,
            900,
            150,
            "https://www.nvidia.com/en-us/data-center/v100/ (SXM2 16 GB; bf16 runs as f16)",
        ),
        Machine(
            name="cpu",
            flops_per_s={"default": 50e9},
            hbm_bytes=int(2 * GIB),
            hbm_bytes_per_s=10 * GB,
            link_bytes_per_s=1 * GB,
            hop_seconds=1e-4,
            kernel_seconds=1e-5,
            sources=(
                "a virtual CPU device: a share of two cores and 24 GB, order of magnitude only;",
                "0.2 ms per collective and 8 MB all_gather x8 in 0.5 s, measured on jaxlib 0.10.2",
            ),
            traits=traits_named("cpu"),
        ),
    )
}


def find_machine(machine: Machine | str | os.PathLike[str]) -> Machine:
    """Machine of a name, or of a saved machine's path; returns a `Machine` unchanged.

    A string that ends in ".json" is a path.

    Raises:
      ValueError: the name is unknown (the message lists all names), or the file holds no machine.
      TypeError: `machine` is neither a machine, a name nor a path.
    """
    if isinstance(machine, Machine):
        return machine
    if not isinstance(machine, str | os.PathLike):
        raise TypeError(
            "machine is a partir_search.Machine, a name such as 'tpu_v5e' or the path of a"
            f" machine's JSON file, not {shown(machine)}"
        )
    name = os.fspath(machine)
    if name.endswith(".json") or not isinstance(machine, str):
        return _saved_machine(name)
    if name not in MACHINES:
        near = did_you_mean(name, MACHINES) or did_you_mean(machine_name(name), MACHINES)
        known = ", ".join(sorted(MACHINES))
        raise ValueError(f"unknown machine {name!r}; known are {known}{near}")
    return MACHINES[name]


def _saved_machine(path: str) -> Machine:
    """Machine in a file written by `Machine.save`."""
    try:
        data = json.loads(read_text(path, "machine"))
        if not isinstance(data, dict):
            raise TypeError(f"it holds a {type(data).__name__}, and no object of figures")
        if "actions" in data:
            raise TypeError("it holds a plan: pass it as schedule=partir_search.load_plan(...)")
        moved_traits.rewrite_former_fields(data)
        fields = {f.name for f in dataclasses.fields(Machine)}
        for name in data:
            if name not in fields:
                raise TypeError(f"it has a figure {name!r}{did_you_mean(name, fields)}")
        missing = [
            repr(f.name)
            for f in dataclasses.fields(Machine)
            if f.default is f.default_factory is dataclasses.MISSING and f.name not in data
        ]
        if missing:
            raise TypeError(f"figures are missing: {', '.join(missing)}")
        data["traits"] = _saved_traits(data.get("traits", {}))
        if isinstance(data.get("sources"), list):
            data["sources"] = tuple(data["sources"])
        return Machine(**data)
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no machine: {error}") from error


def _saved_traits(data: Any) -> XlaTraits:
    """Traits of a saved machine."""
    if not isinstance(data, dict):
        raise TypeError(f"its traits are a {type(data).__name__}, and no object")
    names = {f.name for f in dataclasses.fields(XlaTraits)}
    for name in data:
        if name not in names:
            raise TypeError(f"it has a trait {name!r}{did_you_mean(name, names)}")
    return XlaTraits(**data)


def machine_of_kind(device_kind: str) -> Machine:
    """Machine of a jax device kind such as ``TPU v5 lite`` or ``NVIDIA H100 80GB HBM3``.

    The machine has the memory named in the kind, if any: an A100 of 40 GB or of 80.

    Raises:
      ValueError: no known machine matches; the message lists the nearest.
    """
    name = machine_name(device_kind)
    if not name:
        near = ", ".join(nearest_names(device_kind, MACHINES))
        raise ValueError(
            f"no figures for device kind {device_kind!r}; the nearest are of {near}:"
            f" pass machine=, one of {sorted(MACHINES)}, or a partir_search.Machine"
        )
    machine, gigabytes = MACHINES[name], memory_of(device_kind)
    if not gigabytes or gigabytes * GB >= machine.hbm_bytes:
        return machine
    smaller = f"{name}_{gigabytes}gb"
    return MACHINES.get(smaller) or dataclasses.replace(
        machine, name=smaller, hbm_bytes=gigabytes * int(GB)
    )
