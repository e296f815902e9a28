"""Scheduling: passes from a local program to the program simulated and emitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.cse import prevent_cse
from partir_search.lowering.scheduling.delay import (
    delay_gathers,
    delay_reductions,
    delay_rings,
    order_turns,
)
from partir_search.lowering.scheduling.early_products import delay_early_products
from partir_search.lowering.scheduling.early_reads import hoist_early_reads
from partir_search.lowering.scheduling.ends import scatter_tiles_first, write_donated_last
from partir_search.lowering.scheduling.gradients import compute_gradients_first
from partir_search.lowering.scheduling.layouts import pin_lookup_layouts, pin_update_layouts
from partir_search.lowering.scheduling.lone_rows import pin_lone_rows
from partir_search.lowering.scheduling.marks import unscheduled
from partir_search.lowering.scheduling.scanned_rows import pin_scanned_rows
from partir_search.lowering.traits import LoweringTraits

SchedulingPass = Callable[[LocalProgram, LoweringTraits], LocalProgram]

SCHEDULING: dict[str, SchedulingPass] = {
    each.__name__: each
    for each in (
        delay_rings,
        order_turns,
        delay_gathers,
        delay_reductions,
        delay_early_products,
        compute_gradients_first,
        hoist_early_reads,
        prevent_cse,
        pin_update_layouts,
        pin_lookup_layouts,
        pin_lone_rows,
        pin_scanned_rows,
        write_donated_last,
        scatter_tiles_first,
    )
}
"""Passes by name, in order."""


def schedule_for(
    program: LocalProgram,
    traits: LoweringTraits,
    observe: Callable[[str, LocalProgram], None] | None = None,
) -> LocalProgram:
    """Program scheduled for a compiler; `program` itself if already scheduled with equal traits.

    Args:
      observe: called with name and result of each pass.
    """
    if program.traits == traits:
        return program
    if program.traits is not None:
        program = unscheduled(program)
    for name, run in SCHEDULING.items():
        program = run(program, traits)
        if observe:
            observe(name, program)
    return dataclasses.replace(program, traits=traits)
