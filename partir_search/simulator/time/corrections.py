"""Measured figures of a profile for the kernels of a module: ratios, and rates of products.

A kernel's seconds are those of `time/roofline.py` times a ratio, that of its content and sizes on
one device if a measured segment had the kernel, else that of all that was measured
(`profile/ratios.py`). A matrix product runs at the rate of the most similar measured product.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.profile.profile import Profile
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.time.contents import KernelContents, kernel_contents
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.product_rates import ProductRates, product_rates

Hashes = npt.NDArray[np.uint64]

_ODD, _OTHER_ODD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # of SplitMix64


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Corrections:
    """Ratios and rates of a module's kernels.

    Attributes:
      contents: of the L leading kernels.
      products: rates of products; None if the profile has none.
      place: by number of a kernel, its place among the leading kernels.
    """

    contents: KernelContents
    products: ProductRates | None
    place: dict[int, int]
    _start: Hashes  # [L] hash of a content
    _unknown: Floats  # [L] ratio of unknown sizes
    _hashes: Hashes  # [known] ascending hashes of contents and sizes
    _ratios: Floats  # [known] their ratios

    def ratios(self, partition: Partition, kernels: int) -> Floats:
        """[K] ratio of each kernel under a partition, 1 for kernels that lead none."""
        found = np.ones(kernels)
        local = self.contents.sizes.local(partition)
        found[self.contents.kernel] = self._of(self._hashed(self._start, local), self._unknown)
        return found

    def measured(self, partition: Partition) -> Bools:
        """[L] True for kernels that a measured segment had at the same sizes."""
        hashes = self._hashed(self._start, self.contents.sizes.local(partition))
        found: Bools = np.isin(hashes, self._hashes)
        return found

    def ratios_at(self, kernel: int, loops: Ints, mesh_sizes: Sequence[int]) -> Floats:
        """[...] ratios of a leading kernel under [..., axes] loops of its op."""
        i = self.place[kernel]
        local = self.contents.sizes.at(i, loops, mesh_sizes)
        return self._of(self._hashed(self._start[i : i + 1], local), self._unknown[i])

    def _hashed(self, start: Hashes, local: Ints) -> Hashes:
        found: Hashes = _hashed_sizes(local) + start
        return found

    def _of(self, hashes: Hashes, unknown: Floats) -> Floats:
        if not len(self._hashes):
            return np.broadcast_to(unknown, hashes.shape)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[at] == hashes, self._ratios[at], unknown)


def corrections(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, profile: Profile | None
) -> Corrections | None:
    """Corrections of a module's kernels; None without a profile.

    Args:
      rules: per op id.
    """
    if profile is None:
        return None
    contents = kernel_contents(module, rules, kernels)
    ratios = profile.ratios
    pairs = zip(contents.kinds, contents.contents, strict=True)
    unknown = np.array([ratios.of_kernel(kind, content) for kind, content in pairs])
    known = ratios.of_sizes()
    sizes = np.zeros((len(known), max((len(s) for _, s in known), default=0)), dtype=np.int64)
    for row, (_, own) in zip(sizes, known, strict=True):
        row[: len(own)] = own
    hashes = _hashed_texts([content for content, _ in known]) + _hashed_sizes(sizes)
    order = np.argsort(hashes)
    return Corrections(
        contents,
        product_rates(module, rules, kernels, profile.products),
        {k: i for i, k in enumerate(contents.kernel.tolist())},
        _hashed_texts(contents.contents),
        unknown,
        hashes[order],
        np.array(list(known.values()))[order],
    )


def _hashed_texts(texts: Sequence[str]) -> Hashes:
    """Hashes of texts, the same in every process."""
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    return np.array([int.from_bytes(d, "big") for d in digests], dtype=np.uint64)


def _hashed_sizes(sizes: Ints) -> Hashes:
    """[...] hashes of [..., factors] sizes; zeros at the end change nothing."""
    found = np.zeros((*sizes.shape[:-1], 1), dtype=np.uint64)  # arrays overflow without a warning
    for f in range(sizes.shape[-1]):
        each = sizes[..., f : f + 1].astype(np.uint64) * np.uint64(_ODD * (2 * f + 3) % 2**64)
        found += (each ^ each >> np.uint64(29)) * np.uint64(_OTHER_ODD)
    hashed: Hashes = found[..., 0]
    return hashed
