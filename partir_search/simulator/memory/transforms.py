"""Memory of discrete Fourier transforms made of products (`XlaTraits.transform_arrays`).

XLA:TPU transforms a dim by products with matrices of sines and cosines. Real and imaginary parts
lie apart, at the full length: a transform of n real numbers is stored as n complex ones, of which
consumers read the first n / 2 + 1. Of a transform of several dims the last dim is cut before the
products along the other dims. While a transform runs, several complex arrays of full length are
live, with the result among these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class Transforms:
    """Sizes around transforms, by id of the result, as multiples of the result's bytes.

    Attributes:
      stored: bytes of the stored result, where other than 1.
      workspace: bytes beside the stored result while the transform runs.
    """

    stored: Mapping[int, float]
    workspace: Mapping[int, float]


def transforms(module: Module, rules: Sequence[OpRule], arrays: float) -> Transforms:
    """Sizes around a module's transforms.

    Args:
      rules: per op id.
      arrays: complex arrays of full length that are live while a transform runs; 0 for transforms
        that are no products.
    """
    stored, workspace = dict[int, float](), dict[int, float]()
    for op in module.ops if arrays else ():
        lengths = rules[op.id].transform
        if not lengths or not op.results[0].type.nbytes:
            continue
        (result,) = op.results
        whole = math.prod(lengths) / math.prod(result.type.shape[-len(lengths) :])
        to_complex = np.issubdtype(result.type.dtype, np.complexfloating)
        kept = whole if to_complex and len(lengths) == 1 else 1.0
        if kept != 1.0:
            stored[result.id] = kept
        live = arrays * whole * (1 if to_complex else 2)
        workspace[result.id] = max(0.0, live - kept)
    return Transforms(stored, workspace)
