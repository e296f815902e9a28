"""Spectra of real numbers, stored whole (`XlaTraits.stores_whole_spectra`).

XLA:TPU computes Fourier transforms by products, and keeps real and imaginary part of all n
frequencies of n real numbers in two arrays, where the program has n // 2 + 1 complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Value
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule


def whole_spectra(module: Module, rules: Sequence[OpRule]) -> Mapping[int, float]:
    """By id of a transform's result, stored bytes as a multiple of the result's.

    Args:
      rules: per op id.
    """
    found: dict[int, float] = {}
    for op in module.ops:
        if rules[op.id].kind is not Kind.DECOMPOSITION or len(op.results) != 1:
            continue
        real, (spectrum,) = op.operands[0], op.results
        kinds = real.type.dtype.kind, spectrum.type.dtype.kind
        if isinstance(real, Value) and kinds == ("f", "c") and spectrum.type.nbytes:
            found[spectrum.id] = math.prod(real.type.shape) / math.prod(spectrum.type.shape)
    return found
