"""Fully sharded data parallelism: when the collectives of the weights hide behind products.

A group of devices (one device, or those of tensor parallelism) holds a share of every weight,
gathers a layer's weights while the layer before runs, and scatters gradients in the backward pass.
A layer of n parameters and a group of T tokens: the collectives of a pass move `bytes` n bytes, its
products take `flops` n T operations.
"""

from __future__ import annotations

import dataclasses
import math

from partir_search.theory.links import Link, all_gather_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a layer, per parameter.

    Attributes:
      name: the pass, and types other than bf16.
      gathered / scattered: bytes gathered and scattered per parameter.
      flops: operations per parameter and token.
    """

    name: str
    gathered: float
    scattered: float
    flops: float


FORWARD = Pass("forward", 2, 0, 2)
FORWARD_F32 = Pass("forward, f32 weights", 4, 0, 2)
BACKWARD = Pass("backward", 2, 2, 4)
BACKWARD_F32 = Pass("backward, f32 gradients", 2, 4, 4)
BACKWARD_REMAT = Pass("backward, recomputed", 2, 2, 6)
PASSES = (FORWARD, FORWARD_F32, BACKWARD, BACKWARD_F32, BACKWARD_REMAT)


def product_seconds(
    parameters: float, tokens: float, flops_per_s: float, of: Pass = FORWARD
) -> float:
    """Seconds of a pass's products.

    Lecture, "Computation vs communication overlaps": B S n / C, which counts a multiplication and
    an addition as one operation. Exactly 2 B S n / C forward, 4 B S n / C backward.

    Args:
      parameters: n, of the layer on one device.
      tokens: B S, of one group.
      flops_per_s: C, operations per second of one device.
    """
    return of.flops * parameters * tokens / flops_per_s


def weight_seconds(parameters: float, groups: int, link: Link, of: Pass = FORWARD) -> float:
    """Seconds of a pass's collectives over the groups.

    Args:
      parameters: of the layer on one device.
      groups: p, devices along the axis of data parallelism.
    """
    sizes = (of.gathered * parameters, of.scattered * parameters)
    return sum(all_gather_seconds(nbytes, groups, link) for nbytes in sizes if nbytes)


def excess_seconds(
    parameters: float,
    tokens: float,
    groups: int,
    link: Link,
    flops_per_s: float,
    of: Pass = FORWARD,
) -> float:
    """Seconds of a layer's collectives beyond those of its products; link-bound above 0.

    Lecture, "Computation vs communication overlaps": alpha log p <= (B S / C - 1 / beta) n. It
    holds with n parameters of two bytes: the 2 of the bytes cancels the 2 of the operations.
    """
    products = product_seconds(parameters, tokens, flops_per_s, of)
    return weight_seconds(parameters, groups, link, of) - products


def tokens_needed(
    link: Link,
    flops_per_s: float,
    of: Pass = FORWARD,
    *,
    groups: float = math.inf,
    parameters: float = math.inf,
) -> float:
    """Tokens of a group from which a pass's collectives hide behind its products.

    Lecture, "Numbers for inter and intranode": B = O(10) sequences between nodes. It is bytes /
    flops C / beta: the same forward and backward with bf16 gradients, 1.5 times as many with f32
    gradients, 2/3 with recomputation, twice as many with f32 gathers. A group of t devices with
    tensor parallelism has the same threshold as one device: it computes and gathers 1/t each.

    Args:
      groups: p, for the share (p - 1) / p and the latency; many without.
      parameters: n, of the layer on one device, for the latency; large without.
    """
    nbytes = of.gathered + of.scattered
    share = 1.0 if math.isinf(groups) else (groups - 1) / groups
    tokens = share * nbytes * flops_per_s / (of.flops * link.bytes_per_s)
    if math.isinf(groups) or math.isinf(parameters):
        return tokens
    collectives = (of.gathered > 0) + (of.scattered > 0)
    latency = collectives * link.hops(int(groups)) * link.hop_seconds
    return tokens + latency * flops_per_s / (of.flops * parameters)


def groups_at_most(
    batch_tokens: float, link: Link, flops_per_s: float, of: Pass = FORWARD
) -> float:
    """Groups beyond which a batch has too few tokens for each: where FSDP breaks.

    Lecture, "Scaling FSDP: where does it break?", left open there: p can be large while the right
    side is positive. It breaks by the batch: tokens / `tokens_needed` groups.

    Args:
      batch_tokens: tokens of a step on all groups.
    """
    return batch_tokens / tokens_needed(link, flops_per_s, of)
