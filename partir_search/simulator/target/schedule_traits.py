"""Traits of XLA about the order of a step's updates."""

from __future__ import annotations

import dataclasses

from partir_search.lowering.traits import trait
from partir_search.simulator.target.scatter_traits import ScatterTraits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleTraits(ScatterTraits):
    """Order of updates, and reductions awaited; fields of `XlaTraits`."""

    updates_early: bool = trait(
        False,
        "flag",
        "Runs updates of donated state as soon as their gradients are there, in programs without"
        " asynchronous collectives.",
        "Steps with more parameters than activations, compiled for v5e and v5p: five plans of MLPs"
        " and of a language model of 1,024 tokens are 16 to 25 % too high under data parallelism"
        " without, 5 too low to 0.3 too high with. Of plans of programs written afterwards two go"
        " from +14 and +12 to -4 and -6 %, one from -14 to -20.",
    )
    combined_reduction_bytes: int = trait(
        0,
        "bytes",
        "Most bytes of gradients whose all_reduces are combined, and wait for one another.",
        "All 15 combined all_reduces of gradients over 70 MB in these programs have 80 to 123.8 MB;"
        " pairs of 67.1 MB are not combined.",
    )
    gathers_donated_last: bool = trait(
        False,
        "flag",
        "Keeps values gathered for donated arguments until the end of the step, in programs with"
        " asynchronous collectives.",
        "ZeRO-2 on v5e: 10 of 12 gathered parameters of an MLP, 67 MB each, are live at the end of"
        " the step. Five plans are 21 to 32 % too low without, 0 to 6 too high with; the mean error"
        " of eight plans of programs written afterwards is 19 % without and 14 with. On v5p, where"
        " no gather is asynchronous, one is copied after the other.",
    )
    reorders_kernels: bool = trait(
        False,
        "flag",
        "Runs kernels in an order of its own: for least memory in programs without asynchronous"
        " collectives, else to hide these.",
        "XLA's latency-hiding scheduler, written anew, gives the peak of XLA's schedule from XLA's"
        " kernels within 0.5 % in 13 of 24 plans on v5e and within 5 % in 19. Of 159 held-out plans"
        " 17 are beyond 20 % with, 22 without.",
    )
    min_async_gather_bytes: int = trait(
        16_384,
        "bytes",
        "Fewest bytes of an all_gather that runs asynchronously, for the order of kernels.",
        "Gathers of biases of 1 KB and of 768 bytes are synchronous or combined on v5e, of 32 KB"
        " asynchronous. Of 157 held-out plans 18 are beyond 20 % with, 22 without.",
    )
