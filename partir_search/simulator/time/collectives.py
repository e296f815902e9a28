"""Seconds of collectives by the alpha-beta model, or by a profile.

On n devices with payload B (bytes of the larger side on one device), bandwidth b and latency alpha:

- all_gather, reduce_scatter, all_to_all: (n - 1) / n * B / b + hops * alpha.
- all_reduce: twice as much (Thakur et al. 2005, sections 3 and 4).
- collective_permute: B / b + alpha.

`hops` is n - 1 per axis on a torus, with one ring per axis, and ceil(log2 n) behind a switch, where
the data of a device double or halve with each hop. Over several axes the slowest links count.

A profile that has the kind of collective on a group of as many devices goes before the model, with
its line in B. Either is multiplied by the ratio of the profile's segments (`profile/ratios.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.profile.entries import CollectiveKey, Group, MeasuredCollective, group_of
from partir_search.simulator.target.machine import Machine

_ROUNDS = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "collective_permute": 1,
    "all_reduce": 2,
}


def collective_seconds(
    kind: str, payload_bytes: float, axes: Sequence[int], mesh: MeshShape, machine: Machine
) -> float:
    """Seconds of one collective over `axes` jointly; 0 for kinds without communication.

    Args:
      payload_bytes: bytes of the larger side on one device.
    """
    rounds = _ROUNDS.get(kind, 0)
    n = 1
    bandwidth, hop = float("inf"), 0.0
    for axis in axes:
        n *= mesh.sizes[axis]
        bandwidth = min(bandwidth, machine.axis_bandwidth(mesh.whole[axis]))
        hop = max(hop, machine.axis_hop(mesh.whole[axis]))
    if not rounds or n == 1:
        return 0.0
    ratio = collective_ratio(kind, axes, mesh, machine)
    found = measured_collective(kind, axes, mesh, machine)
    if found is not None:
        return ratio * (found.alpha + found.beta * payload_bytes)
    if kind == "collective_permute":
        return ratio * (payload_bytes / bandwidth + hop)
    share = (n - 1) / n
    latency = hops([mesh.sizes[axis] for axis in axes], machine.torus) * hop
    return ratio * (rounds * (share * payload_bytes / bandwidth + latency))


def collective_ratio(kind: str, axes: Sequence[int], mesh: MeshShape, machine: Machine) -> float:
    """Ratio of a collective by measured segments; 1 without any."""
    key = collective_key(kind, axes, mesh, machine)
    return 1.0 if key is None or machine.profile is None else machine.profile.ratios.of_links(key)


def collective_key(
    kind: str, axes: Sequence[int], mesh: MeshShape, machine: Machine
) -> CollectiveKey | None:
    """Kind and group under which segments of the machine's profile correct a collective.

    None without a profile, and for links of their own (`Machine.with_axis`), diagonals, time axes,
    and permutes that are priced by the loads of a torus's links.
    """
    found = measured_collective(kind, axes, mesh, machine)
    if found is not None:
        return found.key
    by_loads = kind == "collective_permute" and machine.torus
    if by_loads or not _is_profiled(axes, mesh, machine):
        return None
    return kind, grouping(axes, mesh)


def measured_collective(
    kind: str, axes: Sequence[int], mesh: MeshShape, machine: Machine
) -> MeasuredCollective | None:
    """Entry of the machine's profile for a collective; None without one."""
    if machine.profile is None or not _is_profiled(axes, mesh, machine):
        return None
    return machine.profile.collective(kind, grouping(axes, mesh))


def _is_profiled(axes: Sequence[int], mesh: MeshShape, machine: Machine) -> bool:
    """True for axes with a grouping pattern and without links of their own, under a profile."""
    if machine.profile is None or any(a >= len(mesh.device_names) for a in axes):
        return False
    own = machine.axis_bytes_per_s.keys() | machine.axis_hop_seconds.keys()
    return not own & {mesh.whole[a] for a in axes}


def grouping(axes: Sequence[int], mesh: MeshShape) -> Group:
    """Grouping pattern of axes of the mesh's devices (`profile/entries.py`)."""
    sizes = mesh.device_sizes
    return group_of([(sizes[a], math.prod(sizes[a + 1 :])) for a in axes])


def same_links(one: int, other: int, mesh: MeshShape, machine: Machine) -> bool:
    """True if every collective costs the same with two axes of equal size exchanged."""
    names = [mesh.names[a] for a in (one, other)]
    if not (
        machine.axis_bandwidth(names[0]) == machine.axis_bandwidth(names[1])
        and machine.axis_hop(names[0]) == machine.axis_hop(names[1])
    ):
        return False
    if machine.profile is None:
        return True
    others = [a for a in range(len(mesh.device_names)) if a not in (one, other)]
    return all(
        collective_seconds(kind, nbytes, (*rest, one), mesh, machine)
        == collective_seconds(kind, nbytes, (*rest, other), mesh, machine)
        for n in range(len(others) + 1)
        for rest in itertools.combinations(others, n)
        for kind in _ROUNDS
        for nbytes in (0.0, 2.0**20)  # two points of a line
    )


def hops(sizes: Sequence[int], torus: bool) -> int:
    """Sequential steps of an all_gather along axes of the given sizes."""
    return sum(n - 1 for n in sizes) if torus else math.ceil(math.log2(math.prod(sizes)))


def sent_bytes(kind: str, payload_bytes: float, n: int) -> float:
    """Bytes sent by one device in a collective over `n` devices."""
    if kind == "collective_permute":
        return payload_bytes
    return _ROUNDS.get(kind, 0) * (n - 1) / n * payload_bytes
