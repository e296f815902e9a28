"""Share of a step's seconds that rests on the figures of a profile."""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.plan.facts import PlanFacts
from partir_search.simulator.time.collectives import collective_key


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredShare:
    """Fractions of a step's seconds, 0 to 1.

    Attributes:
      source: file or name of the profile.
      kernels: of kernels that a measured segment has at the same sizes.
      collectives: exposed seconds of collectives with a measured line, or in a measured segment.
      products: of further kernels led by a matrix product with a measured rate.
    """

    source: str
    kernels: float
    collectives: float
    products: float

    @property
    def total(self) -> float:
        """Fraction of all three."""
        return self.kernels + self.collectives + self.products

    def __str__(self) -> str:
        parts = {
            "kernels of measured segments": self.kernels,
            "collectives": self.collectives,
            "rates of products": self.products,
        }
        named = ", ".join(f"{name} {share:.0%}" for name, share in parts.items() if share)
        of = f" ({named})" if named else ""
        return f"{self.total:.0%} of the seconds rest on figures of {self.source}{of}"


def measured_share(plan: PlanFacts) -> MeasuredShare | None:
    """Share of a plan's seconds by the machine's profile; None without one."""
    profile, found = plan.machine.profile, plan.simulation
    model, partition = plan.planned.model, plan.partition
    corrections = model.time.corrections
    if profile is None or corrections is None or not found.cost.seconds:
        return None
    seconds = found.load.roofline.seconds.copy()
    for kernel, added in found.split.seconds.items():
        seconds[kernel] += added
    known = corrections.contents.kernel[corrections.measured(partition)]
    kernels = float(seconds[known].sum())
    seconds[known] = 0.0
    rated = corrections.products.kernel if corrections.products else np.zeros(0, dtype=np.int64)
    products = float(seconds[rated].sum())
    mesh, collectives = partition.mesh, 0.0
    for record in (each for records in found.overlap.records.values() for each in records):
        axes = [mesh.index(name) for name in record.axes.split(",") if name]
        key = collective_key(record.kind, axes, mesh, plan.machine) if axes else None
        if key and (profile.has_links(key) or profile.ratios.has_links(key)):
            collectives += record.exposed
    total = found.cost.seconds
    source = profile.path or f"a profile of {profile.machine}"
    return MeasuredShare(source, kernels / total, collectives / total, products / total)
