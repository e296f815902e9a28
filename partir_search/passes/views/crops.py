"""Crops of convolutions and poolings: windows read by no op are not computed.

The gradient of an array padded with zeros is a slice of a convolution as long as the padded array.
With less padding, the convolution computes the slice alone, on the tiles of the array. Further
slices of a few elements at an end, as in the gradient of mirrored padding, become convolutions of
the few elements that they depend on.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping

from partir_search.ir.analysis.readers import readers_of
from partir_search.ir.boundaries import Run, runs_of
from partir_search.ir.core import Op, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.views.view import View, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import added, like, padded, sliced, zero
from partir_search.rules.pooling import window_monoid
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import FEW, LITTLE

MAX_RUNS = 9  # convolutions that replace one
Cut = tuple[int, int]  # start, size
WINDOWED = (Role.CONVOLUTION, Role.POOLING)


@dataclasses.dataclass(frozen=True, slots=True)
class _SlidingWindow:
    """A window that slides with stride 1 over one dim of an image.

    Attributes:
      result_dim: dim of the result.
      image_dim: dim of the image.
      param: index of the dim in the op's params.
      image: extent of the image's dim.
      dilation: of the image.
      reach: extent of the dilated window less one.
      low: padding before the image.
    """

    result_dim: int
    image_dim: int
    param: int
    image: int
    dilation: int
    reach: int
    low: int


class Crops:
    """Values of one region made by summing windows and read by slices only."""

    def __init__(self, makers: Mapping[Value, Op], region: Region) -> None:
        """Crops of a region.

        Args:
          makers: op that makes each value; filled while the region is rewritten.
        """
        self._makers, self._region = makers, region

    @functools.cached_property
    def _users(self) -> dict[Value, list[Op | None]]:
        """Readers of each value; None stands for the results of the region."""
        return readers_of(self._region)

    def maker(self, base: Value | None) -> Op | None:
        """Returns the op that makes a value, if it sums windows and only slices read the value."""
        made = self._makers.get(base) if base is not None else None
        if made is None or not _is_linear(made) or not isinstance(made.operands[0], Value):
            return None
        users = self._users.get(made.results[0], ())
        return made if users and all(_cuts(user) is not None for user in users) else None

    def write(self, writer: Writer, op: Op, view: View, into: Value | None = None) -> Value | None:
        """Writes a view of a cropped value: a smaller convolution for each run of elements.

        Args:
          into: value to write; a fresh one if None.

        Returns:
          the value written; None, with no op written, if the view cannot be cropped.
        """
        made = self.maker(view.base)
        windows = _windows(made) if made is not None else {}
        changed = [d for d, m in enumerate(view.maps) if m is not None]
        if made is None or not changed or not set(changed) <= set(windows):
            return None
        if not zeros_only(view):
            return None
        shape = made.results[0].type.shape
        found: list[list[Run]] = []
        for d in changed:
            sources = view.maps[d]
            assert sources is not None
            found.append(list(runs_of(sources)))
            if any(FEW < n < (1 - LITTLE) * shape[d] for _, _, n in found[-1]):
                return None
        combinations = list(itertools.product(*found))
        if not 1 <= len(combinations) <= MAX_RUNS:
            return None
        crops = []
        for runs in combinations:
            cut = {d: (at, n) for d, (_, at, n) in zip(changed, runs, strict=True)}
            crop = _crop(made, windows, cut)
            if crop is None:
                return None
            crops.append(crop)
        size = op.results[0].type.shape
        total: Value | None = None
        for i, (runs, crop) in enumerate(zip(combinations, crops, strict=True)):
            ends = {d: (to, size[d] - to - n) for d, (to, _, n) in zip(changed, runs, strict=True)}
            inside = all(e == (0, 0) for e in ends.values())
            last = into if i == len(combinations) - 1 else None
            alone = last if len(combinations) == 1 else None
            piece = _write_crop(writer, op, made, crop, alone if inside else None)
            if not inside:
                config = tuple((*ends.get(d, (0, 0)), 0) for d in range(len(size)))
                piece = writer.put(op, padded(piece, zero(piece.type), config), alone)
            total = piece if total is None else writer.put(op, added(total, piece), last)
        return total


@dataclasses.dataclass(frozen=True, slots=True)
class _Crop:
    """Arguments of a smaller convolution.

    Attributes:
      starts: by dim of the image, the first element read.
      ends: by dim of the image, the element after the last read.
      padding: in the order of the op's params.
      shape: of the result.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]


def _crop(made: Op, windows: Mapping[int, _SlidingWindow], cuts: Mapping[int, Cut]) -> _Crop | None:
    """Returns the smaller convolution for some (start, size) by dim of the result, or None."""
    image, shape = made.operands[0].type.shape, list(made.results[0].type.shape)
    starts, ends, padding = [0] * len(image), list(image), list(made.params["padding"])
    for d, (start, size) in cuts.items():
        s, shape[d] = windows[d], size
        first = start - s.low  # position in the dilated image of the first window
        if size <= FEW:
            starts[s.image_dim] = min(max(-(-first // s.dilation), 0), s.image - 1)
            last = (first + size + s.reach - 1) // s.dilation
            ends[s.image_dim] = max(min(last + 1, s.image), starts[s.image_dim] + 1)
        low = starts[s.image_dim] * s.dilation - first
        taken = (ends[s.image_dim] - starts[s.image_dim] - 1) * s.dilation + 1
        padding[s.param] = (low, size + s.reach - low - taken)
        if min(padding[s.param]) < 0:
            return None
    return _Crop(tuple(starts), tuple(ends), tuple(padding), tuple(shape))


def _write_crop(writer: Writer, op: Op, made: Op, crop: _Crop, into: Value | None) -> Value:
    """Writes the smaller convolution."""
    image = made.operands[0]
    assert isinstance(image, Value)
    few = tuple(e - s for s, e in zip(crop.starts, crop.ends, strict=True))
    if few != image.type.shape:
        image = writer.put(op, sliced(image, crop.starts, crop.ends))
    ins = (image, *made.operands[1:])
    return writer.put(op, like(made, ins, crop.shape, padding=crop.padding), into)


def _is_linear(op: Op) -> bool:
    """True if an op sums its windows: results over fewer elements add up."""
    role = role_of(op)
    return role is Role.CONVOLUTION or (role is Role.POOLING and window_monoid(op) == "sum")


def _cuts(op: Op | None) -> dict[int, Cut] | None:
    """Returns (start, size) by dim shortened by a slice or a negative pad; None for further ops."""
    role = None if op is None else role_of(op)
    if op is None or role not in (Role.SLICE, Role.PADDING):
        return None
    before, after = op.operands[0].type.shape, op.results[0].type.shape
    if role is Role.SLICE:
        starts, strides = op.params["start_indices"], op.params["strides"]
        if strides is not None and any(s != 1 for s in strides):
            return None
    else:
        config = op.params["padding_config"]
        if any(low > 0 or high > 0 or inner for low, high, inner in config):
            return None
        starts = [-low for low, _, _ in config]
    pairs = enumerate(zip(before, after, strict=True))
    return {d: (int(starts[d]), m) for d, (n, m) in pairs if n != m}


def _windows(made: Op) -> dict[int, _SlidingWindow]:
    """Returns the windows that slide with stride 1, by dim of the result."""
    p, image = made.params, made.operands[0].type.shape
    found: dict[int, _SlidingWindow] = {}
    if role_of(made) is Role.CONVOLUTION:
        dn, window = p["dimension_numbers"], made.operands[1].type.shape
        for i, (d, k, o) in enumerate(
            zip(dn.lhs_spec[2:], dn.rhs_spec[2:], dn.out_spec[2:], strict=True)
        ):
            ends = p.get("ends")
            if p["window_strides"][i] == 1 and not (ends and ends[i] != ("", "")):
                reach = (window[k] - 1) * p["rhs_dilation"][i]
                dilation = p["lhs_dilation"][i]
                found[o] = _SlidingWindow(
                    result_dim=o,
                    image_dim=d,
                    param=i,
                    image=image[d],
                    dilation=dilation,
                    reach=reach,
                    low=p["padding"][i][0],
                )
        return found
    for d, n in enumerate(image):
        if p["window_strides"][d] == p["base_dilation"][d] == 1:
            reach = (p["window_dimensions"][d] - 1) * p["window_dilation"][d]
            found[d] = _SlidingWindow(
                result_dim=d,
                image_dim=d,
                param=d,
                image=n,
                dilation=1,
                reach=reach,
                low=p["padding"][d][0],
            )
    return found
