"""Moves of residuals to and from the stacks of scans, in bytes moved per byte stacked."""

from __future__ import annotations

from collections import Counter

from partir_search.plan.planned import Planned
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.stack_copies import reduced_products


def kernels_reading(kernels: Kernels) -> Counter[int]:
    """Number of kernels that read each value, by value id."""
    leaders, found = kernels.leader.tolist(), Counter[int]()
    read = {(leader, v) for k, leader in enumerate(leaders) for v in kernels.values(k)}
    found.update(v for _, v in read)
    return found


def copied_results(planned: Planned) -> dict[int, float]:
    """Bytes to move for a copy into a stack per byte stacked, by id of the results of products with
    reductions (`time/stack_copies.py`).
    """
    model, module = planned.model, planned.graph.module
    machine, kernels = model.machine, model.time.kernels
    found = dict[int, float]()
    if machine.traits.copies_reduced_rows:
        for k in reduced_products(planned.graph.rules, kernels):
            for v in module.ops[int(kernels.op[k])].results:
                size = v.type.itemsize
                vectors = machine.vector_bytes / size if 0 < size < machine.vector_bytes else 0.0
                found[v.id] = 2.0 - slower_reads(machine) + vectors
    return found


def slower_reads(machine: Machine) -> float:
    """Share of the seconds of a read from main memory that memory on the chip saves."""
    if not machine.vmem_bytes_per_s:
        return 0.0
    return max(0.0, 1.0 - machine.attained_hbm_bytes_per_s / machine.vmem_bytes_per_s)
