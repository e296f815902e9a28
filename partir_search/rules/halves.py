"""Convolutions of a tile and of its halos, added up.

A convolution is linear in its image: without its halos a tile lacks their contributions to the
outermost elements. Adding these saves copying the tile into an array with its halos, and the
product of the tile does not wait for the halos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from partir_search.ir.halos import HaloedTile

Convolve = Callable[[Mapping[str, Any], Any, Any], Any]  # of params, image and window


def in_halves(convolve: Convolve, params: Mapping[str, Any], image: HaloedTile, window: Any) -> Any:
    """Convolution of a window in pieces; `params` are for the whole window."""
    dn = params["dimension_numbers"]
    i = dn.lhs_spec[2:].index(image.dim)
    k, o = dn.rhs_spec[2 + i], dn.out_spec[2 + i]
    stride, spread = params["window_strides"][i], params["rhs_dilation"][i]
    holes, (low, high) = params["lhs_dilation"][i], params["padding"][i]
    sizes = [0 if x is None else x.shape[image.dim] for x in (image.low, image.tile, image.high)]
    before, own, after = sizes
    reach = (window.shape[k] - 1) * spread
    out = (low + (sum(sizes) - 1) * holes - reach + high) // stride + 1

    def run(x: Any, padding: tuple[int, int], taps: Any = window) -> Any:
        every = list(params["padding"])
        every[i] = padding
        return convolve({**params, "padding": tuple(every)}, x, taps)

    total = run(image.tile, (low + before * holes, high + after * holes))
    along = window.shape[k] > out
    extent, pace, other, step = (
        (window.shape[k], spread, out, stride) if along else (out, stride, window.shape[k], spread)
    )
    width = (other - 1) * step

    def add(x: Any, first: int, count: int, start: int) -> Any:
        """Adds the share of a halo that starts at `start` to `count` points from `first` on."""
        at = start - first * pace
        end = (count - 1) * pace + width - at - (x.shape[image.dim] - 1) * holes
        if along:
            return total + run(x, (at, end), lax.slice_in_dim(window, first, first + count, axis=k))
        old = lax.slice_in_dim(total, first, first + count, axis=o)
        return lax.dynamic_update_slice_in_dim(total, old + run(x, (at, end)), first, o)

    if image.low is not None:
        count = min(extent, (low + (before - 1) * holes) // pace + 1)
        if count > 0:
            total = add(image.low, 0, count, low)
    if image.high is not None:
        start = low + (before + own) * holes
        first = max(0, -((width - start) // pace))
        if first < extent:
            total = add(image.high, first, extent - first, start)
    return total
