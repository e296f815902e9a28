"""Traits of XLA about memory on the chip (VMEM of a TPU)."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.traits import LoweringTraits, trait


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChipTraits(LoweringTraits):
    """Values kept by XLA in memory on the chip; fields of `XlaTraits`."""

    vmem_resident_fraction: float = trait(
        0.5,
        "fraction of Machine.vmem_bytes",
        "Largest value that is prefetched into memory on the chip before a kernel reads the value,"
        " and largest array on the chip of an operand gathered again before its dot, and of a"
        " reduce_scatter's first step.",
        "v5e reads values of up to this size at 1.1 TB/s instead of 0.66. Gathers of up to 65.5 MB"
        " are written to the VMEM of 128 MiB, gathers of 67 MB to main memory. LLaMA's and T5's"
        " weights of the scores, of 65.5 MB, are not in main memory: peaks under"
        " BP(data+model)+Z3 +17.0 and +11.5 %, +2.9 and +2.3 with.",
    )
    vmem_value_fraction: float = trait(
        0.25,
        "fraction of Machine.vmem_bytes",
        "Largest short-lived value that stays in memory on the chip.",
        "v5e keeps whole intermediates in its VMEM of 128 MiB. Without the trait, programs below"
        " 1.3 GB are predicted 20 to 120 MB too high.",
    )
    vmem_lifetime_kernels: int = trait(
        6,
        "kernels",
        "Longest life of a value on the chip. A loop is one kernel, over microbatches several.",
        "As `vmem_value_fraction`. Pipelines of 0.3 GB: 17 to 27 % too low as one kernel.",
    )
    vmem_held_fraction: float = trait(
        0.4,
        "fraction of the memory on the chip that short-lived values leave",
        "Memory on the chip for operands and results of a loop over microbatches.",
        "Eight pipelines of 0.25 to 0.8 GB compiled for v5e hold 33 to 117 MB of them there, of up"
        " to a quarter of the memory on the chip each, and pipelines whose short-lived values fill"
        " that memory hold none. Mean error of 19 peaks 1.8 %, 2.5 with 0.5 and 2.8 with 0.2; of 21"
        " others 2.8, 2.9, 3.2; of 10 compiled afterwards 2.4 with 0.4 and 0.5, 3.3 with 1/3.",
    )
    vmem_carried_fraction: float = trait(
        0.7,
        "fraction of Machine.vmem_bytes",
        "As `vmem_held_fraction`, of a loop over microbatches without a loop inside.",
        "XLA:TPU writes a loop of one layer out, and a tick without a loop carries 67 to 106 MB of"
        " weights, totals and slots through the chip in nine of eleven pipelines compiled for v5e."
        " Mean error of 7 peaks 2.6 %, 6.8 by the rule of loops with a loop inside; of 10 others"
        " 3.8, 6.1; of 5 compiled afterwards 3.3.",
    )
    vmem_inner_fraction: float = trait(
        1 / 32,
        "fraction of Machine.vmem_bytes",
        "Largest value of loops inside of a loop over microbatches with which that loop carries"
        " `vmem_carried_fraction` of what short-lived values leave, if each carry may lie there.",
        "XLA:TPU holds 77 to 106 MB of carries there in loops over layers of d 512 to 1,024 whose"
        " rows and results are at most 4.2 MB, and 0 to 50 where these are larger, or a carry is"
        " beyond `vmem_value_fraction`. Main memory's peaks of two encoders and decoders compiled"
        " for v5e: 18 and 36 % too high without, -2 and +16 with; four compiled afterwards, one of"
        " them without a pipeline, 7 to 37 % too high without, -1 to +14 with.",
    )
    vmem_kernel_bytes: int = trait(
        1 << 22,
        "bytes",
        "Least bytes of a value of a kernel that counts in such a life, without partitions.",
        "Logits of a Conformer on v5e: 15 % too high without; 0.5 to 16 MB predict the same.",
    )
    vmem_kernel_fraction: float = trait(
        1 / 64,
        "fraction of the bytes of the largest value",
        "Least bytes of a value of such a kernel in a program of small values.",
        "40 plans of 14 tiny models of the catalog compiled for v5e, 0.2 to 12 MB: peaks are 54 %"
        " too low in the median with 0, 56 with 1/64, 59 with 1/16 and 1/4, 77 with 1. The rest is"
        " padding, and values on the chip, which the compiler's peak of such programs counts. Plans"
        " above 200 MB are predicted alike from 1/64 to 1/4.",
    )
