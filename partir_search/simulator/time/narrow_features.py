"""Rates of convolutions with few features.

A convolution runs at n / (n + h) of the rate of a product, with n the features of the input or of
the result on one device, the fewer of both, and h `XlaTraits.half_rate_features`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_rates import LocalRates, extents


def narrow_features(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> LocalRates | None:
    """Shares of the rates of a module's convolutions; None without an effect on rates.

    Args:
      rules: per op id.
    """
    half = traits.half_rate_features
    found = [k for k, op_id in enumerate(kernels.op.tolist()) if rules[op_id].features]
    if not half or not found:
        return None
    features = np.array([rules[op_id].features for op_id in kernels.op[found].tolist()])

    def share(local: Ints, features: Ints) -> Floats:
        fewest = extents(local, features).min(axis=-1)
        shares: Floats = fewest / (fewest + half)
        return shares

    return LocalRates.of(module, rules, kernels, found, features, share)
