"""Rates of convolutions, as shares of the rate of a product.

- A convolution runs at n / (n + h) of the rate, with n the features of the input or of the result
  on one device, the fewer of both, and h `XlaTraits.half_rate_features`.
- With `XlaTraits.fills_dilated_windows` the holes of a window take as long as elements, if the ends
  of the image are padded differently, like the holes of an image, but in gradients.
- The gradient of a window that strides, or of an image with holes, runs as a convolution with few
  results of long sums, and n results take n / `XlaTraits.full_rate_results` of the rate.
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


def convolution_rates(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> LocalRates | None:
    """Shares of the rates of a module's convolutions; None without an effect on rates.

    Args:
      rules: per op id.
    """
    half, results, filled = (
        traits.half_rate_features,
        traits.full_rate_results,
        traits.fills_dilated_windows,
    )
    found = [k for k, op_id in enumerate(kernels.op.tolist()) if rules[op_id].features]
    if not (half or results or filled) or not found:
        return None
    # [convolutions, 5]: both features, elements of the window with and without holes, pixels of
    # each result of an unsplit sum or 0
    figures = np.ones((len(found), 5), dtype=np.int64)
    for row, op_id in zip(figures, kernels.op[found].tolist(), strict=True):
        rule, op = rules[op_id], module.ops[op_id]
        row[:2] = rule.features
        if filled:
            row[2:4] = rule.window_elements
            row[2] *= 1 if op.backward else rule.image_holes
        row[4] = rule.unsplit_pixels if results else 0

    def share(local: Ints, figures: Ints) -> Floats:
        of_features = extents(local, figures[..., :2])
        fewest, made = of_features.min(axis=-1), of_features.prod(axis=-1) * figures[..., 4]
        split = fewest / (fewest + half) * figures[..., 3] / figures[..., 2]
        shares: Floats = np.where(made > 0, np.minimum(made / max(results, 1), 1.0), split)
        return shares

    return LocalRates.of(module, rules, kernels, found, figures, share)
