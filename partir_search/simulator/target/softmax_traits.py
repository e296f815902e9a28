"""Traits of XLA about the storage of softmaxes."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.traits import trait
from partir_search.simulator.target.chip_traits import ChipTraits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxTraits(ChipTraits):
    """Storage of softmaxes; fields of `XlaTraits`."""

    materializes_softmax: bool = trait(
        False,
        "flag",
        "Stores the softmax of masked f32 scores for the dot that reads it.",
        "Without the trait peak memory on v5p is predicted 3 to 9 % too low. v4, v5e and v6e do not"
        " store the softmax.",
    )
    min_stored_softmax_keys: int = trait(
        256,
        "elements",
        "Least keys of a softmax that `materializes_softmax` stores.",
        "Two layers of attention with a bias and their gradients, compiled for v5p: softmaxes of"
        " 134 MB over 256, 512 and 2,048 keys are stored, of 134 MB over 128 and of 59 over 49 are"
        " not. Windows of 49 positions: 20 to 25 % too high without the trait.",
    )
    min_softmax_contraction_elements: int = trait(
        16,
        "elements",
        "Least contraction length of a dot whose kernel computes the softmax of its result.",
        "Attention with heads of 8 to 1,024 numbers compiled for v5e and v5p: below 16 a second"
        " kernel stores the exponentials. Predicted over judged seconds of a U-Net on v5p are"
        " 0.75..0.87 without the trait, 0.84..0.96 with.",
    )
