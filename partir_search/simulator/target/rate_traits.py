"""Traits of the rates of GPU kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partir_search.lowering.traits import described, trait
from partir_search.simulator.target.schedule_traits import ScheduleTraits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RateTraits(ScheduleTraits):
    """Rates of kernels on a GPU; fields of `XlaTraits`."""

    atomic_update_bytes: Mapping[str, float] = dataclasses.field(
        default_factory=dict,
        metadata=described(
            "bytes by dtype",
            "Traffic that takes as long as the atomic addition of one element to indexed rows.",
            "Measured on an H200 (docs/evidence/gpu.md): gradients of embeddings of GPT-2, LLaMA,"
            " T5 and a mixture add 110 to 124 billion bf16 elements a second, a transformer's 215"
            " billion in f32. Messages of graph networks, on which the figure was not found: 76 to"
            " 123 billion. Repeated rows are slower.",
        ),
    )
    selection_bytes: float = trait(
        0.0,
        "bytes",
        "Traffic that takes as long as the search of one element for the largest of its row.",
        "Measured on an H100 (docs/evidence/gpu.md): the 16 largest of each of 65,536 rows of 1,024"
        " f32 elements take 6.05 ms in three kernels of a point cloud's step, 11 billion elements"
        " a second.",
    )
    product_alignment_bytes: int = trait(
        16,
        "bytes",
        "Multiple at which rows of aligned operands of products start.",
        "The fastest kernels of cuBLAS read operands in blocks of 16 bytes.",
    )
    misaligned_product_rate: float = trait(
        1.0,
        "fraction of the aligned rate",
        "Rate of products whose operands' or results' rows do not start at aligned addresses.",
        "Measured on an H200 (docs/evidence/gpu.md): products with GPT-2's 50,257 words in bf16 run"
        " at 299 TFLOP/s together, aligned ones at 730 to 780.",
    )
    half_rate_features: int = trait(
        0,
        "features",
        "Features of the input or of the result, the fewer of both, with which a convolution runs"
        " at half of the rate of a product; with n features n / (n + half_rate_features).",
        "Kernels of cuDNN on an H100 (docs/evidence/gpu.md), bf16: 17 TFLOP/s with 4 features, 176"
        " to 379 with 32, 303 to 412 with 64, 669 in a U-Net of 320 and more. Predicted over"
        " measured seconds of three programs with convolutions on an H200, on which the figure was"
        " not found, are 0.57 to 0.86 without, 0.81 to 1.03 with.",
    )
    transforms_in_passes: bool = trait(
        False,
        "flag",
        "Moves operand and result of a Fourier transform once per dim, and twice more for a real"
        " result.",
        "cuFFT on an H200 (docs/evidence/gpu.md): transforms of one dim move 2.7 to 4.1 TB/s, to"
        " real numbers 1.1 in a copy, the transform and a product; of two dims 1.7 and 0.8.",
    )
    copies_scan_rows: bool = trait(
        False,
        "flag",
        "Fills the stacks of a scan with zeros, copies rows that products read, and rows that"
        " products make or other kernels of the iteration read.",
        "Kernels of a scanned transformer on an H200 (docs/evidence/gpu.md). Predicted over"
        " measured seconds of programs on which the trait was not found: a differential equation"
        " 0.75 to 0.98, a transducer 0.61 to 0.85, an LSTM 0.66 to 0.75.",
    )
    copies_reduced_rows: bool = trait(
        False,
        "flag",
        "Copies results of products fused with reductions, and arguments, into the stacks of a scan"
        " by kernels of their own.",
        "Cycles of a scanned transformer on v5e: a row of 4 MB takes 20 to 26 us, and products"
        " without a reduction write rows themselves. Nine forms of seven scans on which the trait"
        " was not found, with stacks counted together: seconds of storing residuals over those of"
        " recomputing are 9 instead of 16 % off (docs/evidence/simulator.md).",
    )
    fills_dilated_windows: bool = trait(
        False,
        "flag",
        "Multiplies the holes of a convolution's dilated window as zeros, if the ends of the image"
        " are padded differently, and those of a dilated image of the forward pass.",
        "XLA:GPU pads images for cuDNN, and with uneven padding windows too. Compiled for an H200,"
        " windows of WaveNet of two elements 32 apart are windows of 33 (docs/evidence/gpu.md)."
        " Predicted over measured seconds of a speech codec on an H100, on which the trait was not"
        " found, are 0.69 without and 0.89 with.",
    )
    full_rate_results: int = trait(
        0,
        "elements",
        "Results with which the gradient of a convolution's window that strides, or of an image"
        " with holes, runs at the rate of a product; with n results n / full_rate_results.",
        "XLA:GPU runs these gradients as forward convolutions, whose kernels do not split sums"
        " (docs/evidence/gpu.md). On an H200 a sum over 16,384 pixels of 32 examples takes 4.1 ms"
        " for 16,384 results, over 8,192 2.0 ms for 16,384 to 262,144 results.",
    )
    grouped_convolution_bytes: float = trait(
        0.0,
        "bytes",
        "Traffic that takes as long as an element of the image or of the result, the more of both,"
        " of a convolution with groups.",
        "Depthwise convolutions on an H200 (docs/evidence/gpu.md): 1.31 ms for 16.8 million results"
        " of 31 products each, 3.22 for 100.7 million of 3; gradients of their windows 1.05 and"
        " 2.50.",
    )
    grouped_product_bytes: float = trait(
        0.0,
        "bytes",
        "Traffic that takes as long as a product of a convolution with groups.",
        "See `grouped_convolution_bytes`.",
    )
