"""Tensor parallelism: when the collectives of activations are shorter than the products."""

from __future__ import annotations

from partir_search.theory.links import Link, all_gather_seconds

FORWARD_COLLECTIVES = 4  # a gather and a reduce_scatter of attention and of its MLP
BACKWARD_COLLECTIVES = 6  # and the operands of both gathered again, instead of kept whole


def activation_seconds(
    tokens: float,
    width: int,
    devices: int,
    link: Link,
    *,
    collectives: int = FORWARD_COLLECTIVES,
    itemsize: int = 2,
) -> float:
    """Seconds of a block's collectives in one pass.

    Lecture, "Tensor Parallelism, simplified": all-reduce the y's, once per pair of matrices. With
    sequence parallelism it is a reduce_scatter and an all_gather of the same bytes (Korthikanti et
    al. 2022).

    Args:
      tokens: of one group.
      width: d, numbers per token.
      devices: t, of one group.
      collectives: of the pass.
      itemsize: bytes of a number.
    """
    return collectives * all_gather_seconds(itemsize * tokens * width, devices, link)


def devices_at_most(
    parameters: float, width: int, link: Link, flops_per_s: float, itemsize: int = 2
) -> float:
    """Devices of a group up to which a block's products take as long as its collectives.

    Lecture, "More general considerations and scalings": wider layers allow more devices, if the
    right side stays positive. 2 n T / (t C) >= 4 (t - 1) / t itemsize T d / beta forward, without
    latency: t - 1 <= n beta / (2 itemsize d C), independent of the tokens. The backward pass
    allows more: 4 n T against 6 collectives.

    Args:
      parameters: n, of the block on all devices.
      width: d, numbers per token.
      flops_per_s: C, operations per second of one device.
    """
    bytes_per_token = FORWARD_COLLECTIVES * itemsize * width
    return 1 + 2 * parameters * link.bytes_per_s / (bytes_per_token * flops_per_s)
