"""Bound of the theory that a plan sits on: the least seconds if everything overlapped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partir_search.lowering.reshard_steps import Permute
from partir_search.messages.wording import milliseconds
from partir_search.plan.facts import PlanFacts
from partir_search.plan.step_seconds import MATRIX, TRAFFIC, VECTOR
from partir_search.strategies.argument_roles import find_roles

SMALL = 0.02  # of a step; less seconds of weights' collectives are not named
MOSTLY = 0.5  # of a link's seconds, from which they are called by their cause


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSeconds:
    """Seconds of the collectives along some mesh axes, hidden or not.

    Attributes:
      total: of all.
      weights: of gathers of weights and sums of their gradients, which do not grow with the batch.
      latency: of hops, which do not grow with the bytes.
    """

    total: float = 0.0
    weights: float = 0.0
    latency: float = 0.0

    def plus(self, seconds: float, weights: float, latency: float) -> LinkSeconds:
        return LinkSeconds(self.total + seconds, self.weights + weights, self.latency + latency)


@dataclasses.dataclass(frozen=True, slots=True)
class TheoryBound:
    """Seconds of a step on each resource of a device alone.

    Attributes:
      step: simulated seconds of the step.
      compute: seconds of matrix units, of vector units and of memory traffic.
      links: seconds of collectives by mesh axes.
    """

    step: float
    compute: Mapping[str, float]
    links: Mapping[str, LinkSeconds]

    @property
    def link(self) -> str | None:
        """Axes with more seconds than each unit of a device; None if there are none."""
        axes = max(self.links, key=lambda a: self.links[a].total, default=None)
        if axes is None or self.links[axes].total <= max(self.compute.values()):
            return None
        return axes

    @property
    def seconds(self) -> float:
        """Seconds of the slowest resource: the least step, if everything overlapped."""
        return self.links[self.link].total if self.link else max(self.compute.values())

    def batch_that_hides(self, axes: str) -> float | None:
        """Multiple of the batch from which computation hides the collectives along `axes`.

        FSDP's bound (`theory.fsdp.tokens_needed`) for the tokens of this plan; None if the
        collectives that grow with the batch exceed the computation.
        """
        link = self.links[axes]
        spare = max(self.compute.values()) - (link.total - link.weights)
        return link.weights / spare if spare > 0 else None

    def __str__(self) -> str:
        least = f"{milliseconds(self.seconds)} if everything overlapped, set by"
        if self.link:
            return f"{least} links of {self.link!r}{self._of_link(self.link)}"
        slowest = max(self.compute, key=lambda name: self.compute[name])
        axes = max(self.links, key=lambda a: self.links[a].weights, default=None)
        if axes is None or self.links[axes].weights < SMALL * self.step:
            return f"{least} {slowest}"
        hidden = self.batch_that_hides(axes)
        return f"{least} {slowest}" + (_fsdp(axes, hidden) if hidden is not None else "")

    def _of_link(self, axes: str) -> str:
        """Words on the cause of the seconds of a link, and on the change that hides them.

        Args:
          axes: mesh axes of the link.
        """
        link, hidden = self.links[axes], self.batch_that_hides(axes)
        if link.latency > MOSTLY * link.total:
            return ": latency of its collectives, whatever their bytes"
        if hidden is not None and link.weights > MOSTLY * link.total:
            return _fsdp(axes, hidden)
        return f": activations, which wider layers or fewer devices on {axes!r} would hide"


def _fsdp(axes: str, hidden: float) -> str:
    number = f"{hidden:,.0f}" if hidden >= 100 else f"{hidden:.2g}"
    text = f"{number} times the batch" if hidden > 1 else f"{number} of the batch"
    return f"; computation hides the collectives of weights along {axes!r} from {text} on"


def theory_bound(plan: PlanFacts) -> TheoryBound:
    """Seconds of a plan's step on each resource."""
    roofline = plan.simulation.load.roofline
    parts, total = roofline.components, float(roofline.seconds.sum())
    # Attention skips kernels (`step_seconds`).
    share = min(1.0, plan.cost.compute_seconds / total) if total else 1.0
    columns = {MATRIX: parts.dots, VECTOR: parts.vectors, TRAFFIC: parts.moves}
    compute = {name: share * float(column.sum()) for name, column in columns.items()}
    mesh = plan.program.partition.mesh
    costs = plan.planned.model.costs(mesh)
    whole = dict(zip(mesh.names, mesh.whole, strict=True))
    shapes = _weight_shapes(plan)
    links: dict[str, LinkSeconds] = {}

    def add(axes: str, seconds: float, weights: float, latency: float) -> None:
        joined = "+".join(dict.fromkeys(whole[a] for a in axes.split(",")))
        links[joined] = links.get(joined, LinkSeconds()).plus(seconds, weights, latency)

    for reshard, runs in plan.program.reshards():
        step = reshard.step
        if not step.communicates:
            continue
        cost = costs.cost(reshard)
        seconds = cost.seconds * runs
        pairs = step.pairs if isinstance(step, Permute) else None
        latency = costs.transfer(step.kind, step.axes, 0.0, pairs)[0] * runs
        weights = seconds if reshard.source.value.type.shape in shapes else 0.0
        add(cost.axes, seconds, weights, latency)
    for own, _, runs in plan.program.own_collectives():
        seconds, _, axes = costs.of_own(own)
        add(axes, seconds * runs, 0.0, 0.0)
    return TheoryBound(plan.cost.seconds, compute, links)


def _weight_shapes(plan: PlanFacts) -> set[tuple[int, ...]]:
    """Shapes of parameters, their casts and gradients, and of their slices in loops over layers."""
    parameters = frozenset(find_roles(plan.module).parameters)
    shapes = {v.type.shape for v in plan.module.body.args if v.id in parameters}
    return shapes | {shape[1:] for shape in shapes if len(shape) > 1}
