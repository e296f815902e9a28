"""Seconds of the kernels of layers, for closed forms of pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Region, walk_regions
from partir_search.passes.attention import with_attention
from partir_search.passes.kept_values import without_kept
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.roll import layer_scans
from partir_search.rules.registry import RuleTable
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, slots=True)
class LayerKernels:
    """Seconds of the kernels of all layers, spread evenly over devices."""

    forward: float = 0.0
    backward: float = 0.0


def layer_kernels(module: Module, machine: Machine, devices: int) -> LayerKernels:
    """Lower bound of the kernels of scanned layers, each attention as one op."""
    rules = RuleTable()
    pairs = [pair for pair in layer_scans(module.body) if pair.backward is not None]
    positions = {p.forward.position: False for p in pairs}
    positions |= {p.backward.position: True for p in pairs if p.backward is not None}
    order = sorted(positions)
    alone = _LayersAlone(module, order).run()
    found, _ = with_attention(alone, rules)
    alone = without_kept(found, rules)
    model = CostModel(alone, [rules(op) for op in alone.ops], machine)
    backward = np.zeros(len(alone.ops), np.bool_)
    for op, position in zip(alone.body.ops, order, strict=True):
        for region in op.regions:
            backward[[o.id for r in walk_regions(region) for o in r.ops]] = positions[position]
    seconds, op_of = model.least_kernel_seconds(devices), model.time.kernels.op
    whole, late = float(seconds.sum()), float(seconds[backward[op_of]].sum())
    return LayerKernels(whole - late, late)


class _LayersAlone(Rewriter):
    """Copy of some ops of a module's body, as a program of their own."""

    def __init__(self, module: Module, positions: Sequence[int]) -> None:
        super().__init__(dataclasses.replace(module, ties=(), donated=frozenset()))
        self._ops = [module.body.ops[i] for i in positions]

    def region(self, old: Region) -> Region:
        if old is not self.module.body:
            return super().region(old)
        known = {r for op in self._ops for r in op.results}
        known |= {self.module.values[i] for i in self.module.constants}
        read = dict.fromkeys(x for op in self._ops for _, x in op.inputs() if x not in known)
        results = [self.value(r) for op in self._ops for r in op.results]
        ops = tuple(map(self.op, self._ops))
        return Region(tuple(map(self.value, read)), ops, tuple(results))
