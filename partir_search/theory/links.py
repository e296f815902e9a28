"""Seconds of collectives on one kind of link."""

from __future__ import annotations

import dataclasses
import math

from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """Link of a device to the others of a group.

    Attributes:
      name: "inside a node" or "between nodes".
      bytes_per_s: beta, bytes per second of one device in a ring.
      hop_seconds: alpha, seconds of latency of one step of a collective.
      torus: True for a ring of neighbours, False for a switch.
    """

    name: str
    bytes_per_s: float
    hop_seconds: float
    torus: bool = False

    def hops(self, devices: int) -> int:
        """Sequential steps of an all_gather: p - 1 on a ring, ceil(log2 p) behind a switch."""
        return devices - 1 if self.torus else math.ceil(math.log2(devices))


def link_inside(machine: Machine) -> Link:
    """Link inside of a node, or of a slice of a TPU."""
    name = "inside a slice" if machine.torus else "inside a node"
    return Link(name, machine.link_bytes_per_s, machine.hop_seconds, machine.torus)


def link_between(machine: Machine) -> Link | None:
    """Host network, a switch for GPUs; None if the machine has no known one."""
    if not machine.dcn_bytes_per_s:
        return None
    name = "between slices" if machine.torus else "between nodes"
    return Link(name, machine.dcn_bytes_per_s, machine.dcn_hop_seconds, machine.torus)


def all_gather_seconds(nbytes: float, devices: int, link: Link) -> float:
    """Seconds of an all_gather or a reduce_scatter.

    Lecture, "All-gather Time": alpha log p + p N / beta. Exactly alpha hops + (p - 1) / p n / beta:
    a device has its own share, and on a ring the latency is linear in p.

    Args:
      nbytes: bytes of the gathered array.
      devices: p, devices of the group.
    """
    return link.hops(devices) * link.hop_seconds + (devices - 1) / devices * nbytes / (
        link.bytes_per_s
    )


def all_reduce_seconds(nbytes: float, devices: int, link: Link) -> float:
    """Seconds of an all_reduce: a reduce_scatter, then an all_gather.

    Lecture, "NCCL communication primitives", without a formula; Thakur et al. 2005, section 4.

    Args:
      nbytes: bytes of the array on every device.
      devices: devices of the group.
    """
    return 2 * all_gather_seconds(nbytes, devices, link)


def permute_seconds(nbytes: float, link: Link) -> float:
    """Seconds to send an array to a neighbour, alpha + n / beta.

    Lecture, "Scaling Considerations": d m numbers per step in the pipe.

    Args:
      nbytes: bytes of the array.
    """
    return link.hop_seconds + nbytes / link.bytes_per_s
