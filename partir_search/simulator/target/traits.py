"""Traits of XLA by target: behaviour not determined by the program, as data with evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax

from partir_search.lowering.traits import LoweringTraits, described, trait
from partir_search.messages import validators
from partir_search.simulator.target.device_kinds import machine_name

AsyncAllGather = Literal["never", "arguments", "since_source"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class XlaTraits(LoweringTraits):
    """Behaviour of XLA on one kind of device, for choices left open by the program.

    Defaults describe an unknown target. The metadata of each field gives meaning, unit and
    evidence, printed in docs/evidence/traits.md.
    """

    f32_dot_operand_bytes: int = trait(
        4,
        "bytes per element",
        "Width in which f32 values that only dots read are stored and gathered.",
        "XLA:TPU multiplies f32 in bf16 at default precision. The all_gathers of such values move"
        " bf16 in all compiled programs of transformers for v5e.",
    )
    keeps_dots_wide: bool = trait(
        False,
        "flag",
        "Stores bf16 results of dots in f32 where they are masked for a softmax or widened.",
        "XLA:TPU leaves out the rounding (excess precision). LLaMA's memory was predicted 8 to 22 %"
        " too high and T5's 12 to 14 % too low without the distinction.",
    )
    fuses_one_hot_updates: bool = trait(
        False,
        "flag",
        "Recomputes one-hot updates of zeros in their consumers and never stores them.",
        "Peak memory of programs compiled for v5e: +22 % in the median without.",
    )
    fuses_weight_casts: bool = trait(
        False,
        "flag",
        "Converts parameters inside of the dots that read them.",
        "113 compiled transformers and mixtures for v5e and v5p. Median error of peak memory"
        " without: 6.6 % for mixtures on v5e, 3.1 % on v5p.",
    )
    materializes_dot_operands: bool = trait(
        False,
        "flag",
        "Stores elementwise operands of dots.",
        "XLA:GPU: a transformer of 4 layers in f32 on 16 H100 is predicted 0 to 15 % too low with,"
        " 31 to 45 % without.",
    )
    fuses_dot_epilogues: bool = trait(
        True,
        "flag",
        "Fuses elementwise ops and reductions into the dot or scatter whose result they read.",
        "XLA:GPU's dots and scatters are library calls or kernels of their own; XLA:TPU fuses.",
    )
    recomputes_dot_operands: bool = trait(
        False,
        "flag",
        "Recomputes elementwise values inside of the dots that read them where that moves fewer"
        " bytes.",
        "Gradients of attention scores compiled for v5e, where two dots read them.",
    )
    in_place_elementwise: bool = trait(
        True,
        "flag",
        "Lets elementwise kernels write into the buffer of an operand that dies.",
        "XLA:TPU gives them buffers of their own: U-Net on v5p -31 % without the distinction, +0.3"
        " % with. v5e computes them inside of dots instead, which takes as much.",
    )
    materializes_softmax: bool = trait(
        False,
        "flag",
        "Stores the softmax of masked f32 scores for the dot that reads it.",
        "v5p was 3 to 9 % too low without. v4, v5e and v6e do not store it.",
    )
    async_all_gather: AsyncAllGather = dataclasses.field(
        default="never",
        metadata=described(
            "start of the gather",
            "Earliest start of asynchronous all_gathers: never before their use, early for"
            " arguments alone, or when the source is there.",
            "XLA:TPU on v5e and v6e hides nearly all gathers of the backward pass: sequence"
            " parallelism 1.02..1.11 of the judged seconds without, 0.94..1.04 with. XLA:GPU starts"
            " gathers of arguments early.",
        ),
    )
    defers_weight_gradients: bool = trait(
        False,
        "flag",
        "Runs dots off the critical path beside collectives.",
        "XLA:GPU's latency-hiding scheduler pairs about one such dot with each collective; figures"
        " for H100 in docs/evidence/simulator.md.",
    )
    regather_overlap_ratio: float = trait(
        2.0,
        "seconds per second",
        "Seconds of deferred dots beside one regather, per second of the gather.",
        "Peak memory of graph networks with tensor parallelism: -29 to -41 % without, -19 to -27 %"
        " with.",
    )
    collective_copy_factors: Mapping[str, float] = dataclasses.field(
        default_factory=dict,
        metadata=described(
            "bytes per payload byte, by kind of collective",
            "Bytes read and written to pack and unpack the payload of a collective.",
            "XLA:TPU transposes the tiles of an all_to_all before and after, each at half of the"
            " bandwidth: expert parallelism 0.93 to 1.03 of the judged seconds on v5e.",
        ),
    )
    copies_gather_into_donated: bool = trait(
        False,
        "flag",
        "Copies a value gathered for a donated argument into the argument's buffer.",
        "ZeRO-2 of LLaMA on v5e: 0.92..0.95 of the judged seconds without, 0.95..0.98 with.",
    )
    vmem_resident_fraction: float = trait(
        0.5,
        "fraction of Machine.vmem_bytes",
        "Largest value that is in the memory on the chip before a kernel reads it.",
        "v5e reads at 1.1 TB/s instead of 0.66 up to there; gathers of up to 65.5 MB land there,"
        " those of 67 MB do not (VMEM of 128 MiB).",
    )
    vmem_value_fraction: float = trait(
        0.25,
        "fraction of Machine.vmem_bytes",
        "Largest short-lived value that stays in the memory on the chip.",
        "v5e keeps whole intermediates in its VMEM of 128 MiB: programs below 1.3 GB were predicted"
        " 20 to 120 MB too high without.",
    )
    vmem_lifetime_kernels: int = trait(
        6,
        "kernels",
        "Longest life of a value that stays in the memory on the chip.",
        "See `vmem_value_fraction`.",
    )
    materialize_ratio: float = trait(
        1.5,
        "bytes of sources per byte of the value",
        "Least ratio for an elementwise value with several consumers to be stored.",
        "31 programs compiled for v5e: any ratio of 1.1 to 1.9 predicts the same peaks; without,"
        " tensor parallelism is predicted 40 to 50 % too high.",
    )
    max_fused_inputs: int = trait(
        8,
        "values",
        "Most stored inputs of a chain of elementwise ops that is recomputed in its consumers.",
        "A bound on recomputation; no measurement isolates the number.",
    )
    min_softmax_contraction_elements: int = trait(
        16,
        "elements",
        "Least contraction length of a dot whose kernel computes the softmax of its result.",
        "Attention with heads of 8 to 1,024 numbers compiled for v5e and v5p: below 16 a second"
        " kernel stores the exponentials. U-Net on v5p: 0.75..0.87 to 0.84..0.96.",
    )
    max_reduction_accumulator_bytes: int = trait(
        1 << 22,
        "bytes",
        "Largest accumulator of a reduction over outer dimensions inside of another kernel.",
        "The gradient of T5's relative bias is a kernel of its own; biases' gradients are not. Seen"
        " on TPUs alone.",
    )
    memory_fragmentation_fraction: float = trait(
        0.05,
        "fraction of the memory limit",
        "Memory lost between buffers and to code, kept free when segments are rematerialized.",
        "XLA:TPU loses 1 to 5 %.",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(f"XlaTraits: {field.name}", getattr(self, field.name), field.metadata["unit"])
        validators.choice(
            "XlaTraits: async_all_gather", self.async_all_gather, get_args(AsyncAllGather)
        )

    @property
    def narrows_dot_operands(self) -> bool:
        """True if f32 values read by dots alone are stored in fewer than 4 bytes."""
        return self.f32_dot_operand_bytes < 4

    @property
    def dot_operand_width(self) -> float:
        """Stored bytes of an f32 value read by dots alone, as a multiple of 4."""
        return self.f32_dot_operand_bytes / 4

    def __str__(self) -> str:
        rows = [
            f"  {f.name:<33} {value_text(getattr(self, f.name))}  [{f.metadata['unit']}]"
            for f in dataclasses.fields(self)
        ]
        return "\n".join(["XlaTraits", *rows])


def value_text(value: Any) -> str:
    """Text of a trait's value: yes or no for a flag, grouped digits for a whole number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{kind} {factor:g}" for kind, factor in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _check(name: str, value: Any, unit: str) -> None:
    if unit == "flag":
        validators.flag(name, value)
    elif isinstance(value, Mapping):
        validators.rates(name, value)
    elif not isinstance(value, str):
        validators.number(name, value)
        if unit.startswith("fraction") and value > 1:
            raise ValueError(f"{name} is a fraction, at most 1, not {value}")


UNKNOWN = XlaTraits()
"""Traits of an unknown target."""

_TPU = XlaTraits(
    f32_dot_operand_bytes=2,
    keeps_dots_wide=True,
    fuses_one_hot_updates=True,
    fuses_weight_casts=True,
    in_place_elementwise=False,
    collective_copy_factors={"all_to_all": 8.0},
    copies_gather_into_donated=True,
    pins_update_layouts=True,
    pins_lookup_layouts=True,
    delays_regathers=True,
)
_GPU = XlaTraits(
    materializes_dot_operands=True,
    fuses_dot_epilogues=False,
    async_all_gather="arguments",
    defers_weight_gradients=True,
    pins_update_layouts=True,
)
_CPU = XlaTraits(reduce_scatter_tiles_first=True)
_V5E = dataclasses.replace(
    _TPU,
    in_place_elementwise=True,
    recomputes_dot_operands=True,
    async_all_gather="since_source",
)

TRAITS: Mapping[str, XlaTraits] = {
    "tpu_v3": _TPU,
    "tpu_v4": _TPU,
    "tpu_v5e": _V5E,
    "tpu_v5p": dataclasses.replace(_TPU, materializes_softmax=True),
    "tpu_v6e": dataclasses.replace(_TPU, async_all_gather="since_source"),
    "v100": _GPU,
    "a100": _GPU,
    "h100": _GPU,
    "h200": _GPU,
    "cpu": _CPU,
}
"""Traits by name of the machine."""

PLATFORMS: Mapping[str, XlaTraits] = {"tpu": _TPU, "gpu": _GPU, "cpu": _CPU}
"""Traits of devices of unknown machines, by jax's platform name."""


def traits_named(machine: str) -> XlaTraits:
    """Traits of a known machine; a memory suffix is ignored ("a100_40gb" as "a100")."""
    return TRAITS[machine] if machine in TRAITS else TRAITS[machine.rpartition("_")[0]]


def traits_of(mesh: Any) -> XlaTraits:
    """Traits of the compiler for a mesh's devices; `UNKNOWN` for an `AbstractMesh`."""
    if not isinstance(mesh, jax.sharding.Mesh):
        return UNKNOWN
    device = mesh.devices.flat[0]
    known = machine_name(str(device.device_kind))
    return TRAITS[known] if known else PLATFORMS.get(str(device.platform), UNKNOWN)
