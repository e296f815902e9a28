"""Machines: chip and network figures, each with its source. No constant without one."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping

GB = 1e9
GIB = 2**30
TERA = 1e12


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """One device and its links.

    Attributes:
      flops_per_s: peak dense matrix rate by dtype name; "default" for all others.
      hbm_bytes: memory that a program may use.
      hbm_bytes_per_s: peak memory bandwidth.
      link_bytes_per_s: bandwidth of one device into a ring along one mesh axis, both directions.
      hop_seconds: latency of one step of a collective (alpha).
      kernel_seconds: fixed cost of one kernel.
      matmul_efficiency / hbm_efficiency: attained share of the peaks.
      bf16_products: whether f32 operands of products are stored and gathered as bf16, and one-hot
        updates are never stored (XLA:TPU).
      fuses_operands: whether products make their elementwise operands themselves; else these are
        stored (XLA:GPU).
      reuses_buffers: whether elementwise kernels write over an operand that dies. XLA:TPU does not;
        for v5e it makes their results inside of the products that read them, which takes as much.
      stores_softmax: whether the softmax of masked scores is stored for the product that reads it
        (XLA:TPU for v5p).
      vector_bytes: width of the elements that vector units work on: kernels that make narrower
        ones, or reduce, take as long as if they moved one more of it for each point (see
        `cost/passes.py`); 0: none do.
      vmem_bytes: memory on the chip that holds what kernels soon use up (TPU's VMEM); 0: none.
      vmem_bytes_per_s: attained bandwidth of elementwise kernels there; 0: as from the main memory.
      torus: whether devices are linked to their neighbours along each axis, and not by a switch.
      puts_off: whether products that nothing waits for run beside collectives (XLA:GPU, see
        `cost/overlap.py`).
      prefetches: whether all_gathers overlap the compute since their source was there; where
        `puts_off` holds, only those of arguments.
      repacks: by kind of collective, bytes moved to pack what is sent and unpack what has come, as
        a multiple of its payload. XLA:TPU copies the tiles of an all_to_all before and after,
        transposed, each at half of the bandwidth.
      copies_gathered: whether what is gathered for a donated argument's buffer is copied to it
        (XLA:TPU), unless it fits in half of the memory on the chip: from there it leaves meanwhile.
      sources: where the figures come from.
      axis_bytes_per_s / axis_hop_seconds: overrides of `link_bytes_per_s` and `hop_seconds` by mesh
        axis name, e.g. for an axis that crosses hosts (see `with_axis`).
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
    prefetches: bool = False
    repacks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    copies_gathered: bool = False
    puts_off: bool = False
    bf16_products: bool = False
    fuses_operands: bool = True
    reuses_buffers: bool = True
    stores_softmax: bool = False
    vmem_bytes: float = 0.0
    vmem_bytes_per_s: float = 0.0
    torus: bool = False
    sources: tuple[str, ...] = ()
    axis_bytes_per_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    axis_hop_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Attained matrix rate for operands of `dtype` (a numpy dtype name)."""
        peak = self.flops_per_s.get(dtype, self.flops_per_s["default"])
        return peak * self.matmul_efficiency

    @property
    def attained_hbm_bytes_per_s(self) -> float:
        return self.hbm_bytes_per_s * self.hbm_efficiency

    def axis_bandwidth(self, axis: str) -> float:
        return self.axis_bytes_per_s.get(axis, self.link_bytes_per_s)

    def axis_hop(self, axis: str) -> float:
        return self.axis_hop_seconds.get(axis, self.hop_seconds)

    def with_axis(self, axis: str, bytes_per_s: float, hop_seconds: float) -> Machine:
        """The machine with a mesh axis on other links: DCN, InfiniBand, a slower torus dimension.

        Args:
          axis: its name in the mesh.
          bytes_per_s: bandwidth of one device into a ring along it (a host's, shared by its
            devices, divides by their number).
          hop_seconds: latency of one step of a collective.
        """
        return dataclasses.replace(
            self,
            axis_bytes_per_s={**self.axis_bytes_per_s, axis: bytes_per_s},
            axis_hop_seconds={**self.axis_hop_seconds, axis: hop_seconds},
        )

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the figures as JSON; `find_machine` reads them from a path."""
        pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


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
    bf16: float,
    hbm_gib: float,
    hbm_gb_per_s: float,
    link_one_way_gb_per_s: float,
    *,
    prefetches: bool = False,
    vector_bytes: int = 4,
    hbm_efficiency: float = 0.81,
    vmem_mib: float = 0.0,
    vmem_gb_per_s: float = 0.0,
    reuses_buffers: bool = False,
    stores_softmax: bool = False,
    note: str = "",
) -> Machine:
    # XLA:TPU multiplies f32 operands at the bf16 rate unless a higher precision is asked for.
    rates = {"default": bf16 * TERA}
    return Machine(
        name=name,
        flops_per_s=rates,
        hbm_bytes=int(hbm_gib * GIB),
        hbm_bytes_per_s=hbm_gb_per_s * GB,
        link_bytes_per_s=2 * link_one_way_gb_per_s * GB,
        prefetches=prefetches,
        vector_bytes=vector_bytes,
        hbm_efficiency=hbm_efficiency,
        bf16_products=True,
        vmem_bytes=vmem_mib * 2**20,
        vmem_bytes_per_s=vmem_gb_per_s * GB,
        reuses_buffers=reuses_buffers,
        stores_softmax=stores_softmax,
        torus=True,
        repacks={"all_to_all": 8.0},
        copies_gathered=True,
        sources=(_TPU_DOCS + name.removeprefix("tpu_"), _RING, *_EFFICIENCY, note),
    )


def _gpu(
    name: str, rates: Mapping[str, float], hbm_gb: float, hbm: float, link: float, source: str
) -> Machine:
    return Machine(
        name=name,
        flops_per_s={k: v * TERA for k, v in rates.items()},
        hbm_bytes=int(hbm_gb * GB),
        hbm_bytes_per_s=hbm * GB,
        link_bytes_per_s=link * GB,
        hop_seconds=2e-6,
        kernel_seconds=4e-6,
        matmul_efficiency=0.7,
        hbm_efficiency=0.8,
        prefetches=True,
        puts_off=True,
        fuses_operands=False,
        sources=(
            source,
            "NVLink one-way rate; XLA:GPU runs every collective as start/done",
            "matmul 0.7 of peak: the efficiency that AutoParallel assumes for H100 and A100",
        ),
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
            prefetches=True,
            vmem_mib=128,
            vmem_gb_per_s=1100,
            reuses_buffers=True,
            note="VMEM 1.1 TB/s: XLA:TPU's cycles of Adam's updates on arrays that are there",
        ),
        _tpu("tpu_v5p", 459, 94.75, 2765, 90, hbm_efficiency=0.69, stores_softmax=True),
        _tpu("tpu_v6e", 918, 31.75, 1640, 90, prefetches=True, vector_bytes=2),
        _gpu(
            "a100",
            {"default": 312, "float32": 156},
            80,
            2039,
            300,
            "https://www.nvidia.com/en-us/data-center/a100/ (80 GB SXM; f32 as TF32)",
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
        ),
    )
}


def find_machine(machine: Machine | str) -> Machine:
    """The machine itself, the one of that name, or the one saved at a path ending in `.json`.

    Raises:
      ValueError: nothing goes by that name (lists the names), or the file holds no machine.
    """
    if isinstance(machine, Machine):
        return machine
    if machine.endswith(".json"):
        try:
            return Machine(**json.loads(pathlib.Path(machine).read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{machine} holds no machine: {error}") from error
    if machine not in MACHINES:
        raise ValueError(f"unknown machine {machine!r}; known are {', '.join(sorted(MACHINES))}")
    return MACHINES[machine]


_KINDS = (
    ("v5 lite", "tpu_v5e"),
    ("v5litepod", "tpu_v5e"),
    ("v5e", "tpu_v5e"),
    ("v6 lite", "tpu_v6e"),
    ("v6e", "tpu_v6e"),
    ("v5p", "tpu_v5p"),
    ("tpu v5", "tpu_v5p"),
    ("tpu v4", "tpu_v4"),
    ("tpu v3", "tpu_v3"),
    ("h200", "h200"),
    ("h100", "h100"),
    ("a100", "a100"),
    ("v100", "v100"),
    ("cpu", "cpu"),
)


def machine_of_kind(device_kind: str) -> Machine:
    """The machine of a jax device kind such as ``TPU v5 lite`` or ``NVIDIA H100 80GB HBM3``."""
    kind = device_kind.lower()
    for part, name in _KINDS:
        if part in kind:
            return MACHINES[name]
    raise ValueError(
        f"no figures for device kind {device_kind!r}; pass machine=, one of {sorted(MACHINES)}"
        " or a partir_search.Machine"
    )
