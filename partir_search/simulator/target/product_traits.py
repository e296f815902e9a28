"""Traits of XLA about the operands and the sums of products."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.traits import trait
from partir_search.simulator.target.softmax_traits import SoftmaxTraits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProductTraits(SoftmaxTraits):
    """Storage of operands and sums of products; fields of `XlaTraits`."""

    stores_shared_operands: bool = trait(
        False,
        "flag",
        "Stores an elementwise value that three dots or more, and no others, read, if computing the"
        " value in each dot reads more bytes than storing the value once moves.",
        "Gates made of both halves of a product and read by two dots, and by two more in the"
        " backward pass, are arrays in programs compiled for v5e; gates read by one dot, and a GELU"
        " read by two, are not. WaveNet under tensor parallelism is 17 and 23 % too low on v5e and"
        " 22 on v5p without, 2 too high, 4 and 3 too low with.",
    )
    adds_products_in_place: bool = trait(
        False,
        "flag",
        "Adds a product to a sum of earlier products in the kernel of the product.",
        "Skip connections of layers, compiled for v5e: 73 and 108 % too high without, 8 and 11"
        " with. The gradients of three or more uses of a value are added so; sums of convolutions"
        " are not (a video classifier is 28 and 39 % too low with these).",
    )
