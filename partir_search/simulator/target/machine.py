"""Known machines, each with the sources of its figures, and machines by name, file or device."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from partir_search.messages.files import read_text
from partir_search.messages.wording import did_you_mean, shown
from partir_search.simulator.target import moved_traits
from partir_search.simulator.target.device_kinds import machine_name, memory_of, nearest_names
from partir_search.simulator.target.figures import GB, GIB, TERA
from partir_search.simulator.target.figures import Machine as Machine
from partir_search.simulator.target.known_traits import traits_named
from partir_search.simulator.target.traits import XlaTraits

_EFFICIENCY = (
    "matmul 0.9, HBM 0.81 of peak (v5p 0.69), 2 us per kernel: XLA:TPU's own cycle estimates",
)
_FP8 = ("float8_e4m3fn", "float8_e5m2")
_TPU_DOCS = "https://cloud.google.com/tpu/docs/"
_RING = (
    "one-way link rates: https://jax-ml.github.io/scaling-book (chapter 2);"
    " a ring along one axis uses one link each way, so twice that"
)


_DGX = "host network: one adapter per GPU of a DGX {}, {} Gb/s"
_AS_H100 = "Not confirmed: efficiencies and traits (those of H100)"
_QUOTED = "Not confirmed: figures of the datasheet as other pages quote them"
_PCIE = "no NVLink: PCIe Gen4 x16 one-way rate, with no other device on the way to the switch"


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
    dcn_gbit_per_s: float = 0.0,
    fp8_tflops: float = 0.0,
    note: str = "",
) -> Machine:
    # XLA:TPU multiplies f32 operands at the bf16 rate unless a higher precision is asked for.
    rates = {"default": bf16_tflops * TERA}
    rates |= dict.fromkeys(_FP8, fp8_tflops * TERA) if fp8_tflops else {}
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
        sources=(
            _TPU_DOCS + name.removeprefix("tpu_"),
            _RING,
            *_EFFICIENCY,
            *filter(None, (note,)),
        ),
        traits=traits_named(name),
        dcn_bytes_per_s=dcn_gbit_per_s / 8 * GB,
    )


def _gpu(
    name: str,
    tflops: Mapping[str, float],
    hbm_gb: float,
    hbm_gb_per_s: float,
    link_gb_per_s: float,
    source: str,
    *,
    dcn_gbit_per_s: float = 0.0,
    link: str = "NVLink one-way rate",
    fp8_tflops: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Machine:
    tflops = {**tflops, **(dict.fromkeys(_FP8, fp8_tflops) if fp8_tflops else {})}
    return Machine(
        name=name,
        flops_per_s={dtype: rate * TERA for dtype, rate in tflops.items()},
        hbm_bytes=int(hbm_gb * GB),
        hbm_bytes_per_s=hbm_gb_per_s * GB,
        link_bytes_per_s=link_gb_per_s * GB,
        hop_seconds=2e-6,
        kernel_seconds=3e-6,
        matmul_efficiency=0.77,
        hbm_efficiency=0.66,
        matmul_efficiencies={"float32": 0.65},
        sources=(
            source,
            f"{link}; XLA:GPU runs every collective as start/done",
            "matmul 0.77 of peak (TF32 0.65), HBM 0.66, 3 us per kernel: steps measured on an H200"
            " (docs/evidence/gpu.md); not confirmed on other GPUs",
            *notes,
        ),
        traits=traits_named(name),
        dcn_bytes_per_s=dcn_gbit_per_s / 8 * GB,
        dcn_hop_seconds=5e-6,
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
            dcn_gbit_per_s=25,
            note="VMEM 1.1 TB/s: XLA:TPU's cycles of Adam's updates on arrays that are there",
        ),
        _tpu("tpu_v5p", 459, 94.75, 2765, 90, hbm_efficiency=0.69, dcn_gbit_per_s=50),
        _tpu("tpu_v6e", 918, 31.75, 1640, 90, vector_bytes=2, dcn_gbit_per_s=100),
        _tpu(
            "tpu_v7x",
            *(2307 / 2, 95.75, 7380 / 2, 50),
            vector_bytes=2,
            fp8_tflops=4614 / 2,
            dcn_gbit_per_s=50,
            note="Ironwood: https://docs.cloud.google.com/tpu/docs/tpu7x (2026); a device is one of"
            " a chip's two TensorCores, with half of its figures; links: 1200 GB/s per chip over 3"
            " axes, both ways. Not confirmed: efficiencies, vector unit and traits (those of v6e)",
        ),
        _gpu(
            "a100",
            {"default": 312, "float32": 156},
            80,
            2039,
            300,
            "https://www.nvidia.com/en-us/data-center/a100/ (80 GB SXM; f32 as TF32)",
            dcn_gbit_per_s=200,
            notes=(_DGX.format("A100", "200"),),
        ),
        _gpu(
            "a100_40gb",
            {"default": 312, "float32": 156},
            40,
            1555,
            300,
            "NVIDIA A100 Tensor Core GPU datasheet of 2021 (40 GB SXM, HBM2; f32 as TF32)",
            dcn_gbit_per_s=200,
            notes=(_DGX.format("A100", "200"),),
        ),
        _gpu(
            "h100",
            {"default": 989, "float32": 494},
            80,
            3350,
            450,
            "https://www.nvidia.com/en-us/data-center/h100/ (SXM; dense; f32 as TF32)",
            dcn_gbit_per_s=400,
            fp8_tflops=1979,
            notes=(_DGX.format("H100", "400"),),
        ),
        _gpu(
            "h200",
            {"default": 989, "float32": 494},
            141,
            4800,
            450,
            "https://www.nvidia.com/en-us/data-center/h200/ (SXM; dense; f32 as TF32)",
            dcn_gbit_per_s=400,
            fp8_tflops=1979,
            notes=(_DGX.format("H200", "400"),),
        ),
        _gpu(
            "b200",
            {"default": 2250, "float32": 1100},
            180,
            8000,
            900,
            "NVIDIA DGX B200 and HGX B200 datasheets (1,440 GB per 8; dense; f32 as TF32)",
            dcn_gbit_per_s=400,
            fp8_tflops=4500,
            notes=(_DGX.format("B200", "400"), _AS_H100, _QUOTED),
        ),
        _gpu(
            "gb200",
            {"default": 2500, "float32": 1250},
            186,
            8000,
            900,
            "NVIDIA GB200 NVL72 datasheet (per GPU of 72 in one NVLink domain; dense; f32 as TF32)",
            dcn_gbit_per_s=400,
            fp8_tflops=5000,
            notes=(
                "host network: one ConnectX-7 of 400 Gb/s per GPU, between racks",
                _AS_H100,
                _QUOTED,
            ),
        ),
        _gpu(
            "l4",
            {"default": 121, "float32": 60},
            24,
            300,
            32,
            "https://www.nvidia.com/en-us/data-center/l4/ (dense; f32 as TF32)",
            link=_PCIE,
            fp8_tflops=242.5,
            notes=(_AS_H100, _QUOTED),
        ),
        _gpu(
            "l40s",
            {"default": 362, "float32": 183},
            48,
            864,
            32,
            "https://www.nvidia.com/en-us/data-center/l40s/ (dense; f32 as TF32)",
            link=_PCIE,
            fp8_tflops=733,
            notes=(_AS_H100, _QUOTED),
        ),
        _gpu(
            "mi300x",
            {"default": 1307.4, "float32": 653.7},
            192,
            5300,
            448,
            "AMD Instinct MI300X data sheet (dense; f32 as TF32)",
            link="7 Infinity Fabric links of 64 GB/s one way, one to each of 7 devices: an axis of"
            " fewer than 8 devices has fewer of them",
            dcn_gbit_per_s=400,
            fp8_tflops=2614.9,
            notes=(
                "host network: one adapter of 400 Gb/s per device, as in usual servers of 8",
                _AS_H100,
                _QUOTED,
            ),
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
"""Machines by name, for `machine=`."""


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
