"""Profiles with figures made up for tests."""

from __future__ import annotations

import itertools
import random

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.localize import localize
from partir_search.planning.game import PlanningGame
from partir_search.profile.entries import (
    CollectivePart,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredSegment,
)
from partir_search.profile.profile import Profile
from partir_search.simulator.parts import PartsOf
from partir_search.simulator.time.collectives import _ROUNDS as KINDS
from partir_search.simulator.time.collectives import grouping


def of_machine(machine: ps.Machine, mesh: MeshShape, seed: int = 0) -> Profile:
    """Profile with random lines of collectives, on all groups, and random rates of products."""
    draw = random.Random(seed)
    axes = range(len(mesh.device_names))
    groups = {
        grouping(chosen, mesh) for n in axes for chosen in itertools.combinations(axes, n + 1)
    }
    collectives = [
        MeasuredCollective(
            kind, group, (1,), (1.0,), draw.uniform(1, 30) * 1e-6, 10 ** -draw.uniform(9, 11)
        )
        for kind in KINDS
        for group in sorted(groups)
    ]
    rate = machine.matmul_flops_per_s("float32")
    products = [
        MeasuredProduct("float32", (1, m, n, k), rate * draw.uniform(0.1, 1.0))
        for m, n, k in itertools.product((64, 1024), repeat=3)
    ]
    empty = Profile.empty(machine.name)
    return Profile(empty.machine, empty.jax, empty.xla, {}, tuple(collectives), tuple(products))


def with_segments(
    profile: Profile, game: PlanningGame, partitions: list[Partition], seed: int = 0
) -> Profile:
    """Profile with a segment for each kernel of some partitions, and random ratios.

    Args:
      game: on the machine with the profile.
    """
    draw = random.Random(seed)
    found = {}
    for partition in partitions:
        program = localize(partition, game.cache, sparse=True)
        parts = PartsOf(game.model, program, game.model.simulate(program)).whole()
        for part in parts.kernels:
            key = str((part.content, part.sizes))
            ratio = 10 ** draw.uniform(-0.7, 0.7)
            found.setdefault(
                key, MeasuredSegment(part.seconds * ratio, "test", (part,), basis=profile.basis)
            )
        for link in parts.collectives:
            seconds = link.seconds * draw.uniform(0.5, 2.0)
            segment = MeasuredSegment(
                seconds, "test", (), (CollectivePart(*link_key(link)),), basis=profile.basis
            )
            found.setdefault(str(link_key(link)[:2]), segment)
    return Profile(
        profile.machine, profile.jax, profile.xla, {}, profile.collectives, profile.products, found
    )


def link_key(link: CollectivePart) -> tuple[str, tuple[tuple[int, int], ...], float]:
    """Fields of a part."""
    return link.kind, link.group, link.seconds
