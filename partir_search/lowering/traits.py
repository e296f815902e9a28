"""Traits of a target's compiler used by lowering, each with unit, meaning and evidence."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

T = TypeVar("T")

CHOSEN_HERE = "Chosen for this package; no compiler prescribes the number."


def described(unit: str, meaning: str, evidence: str) -> dict[str, str]:
    """Metadata of a trait.

    Args:
      unit: unit of the value; "flag" for True and False.
      meaning: sentence that begins with a noun or a verb.
      evidence: observation behind the value.
    """
    return {"unit": unit, "meaning": meaning, "evidence": evidence}


def trait(default: T, unit: str, meaning: str, evidence: str) -> T:
    """Dataclass field with metadata; `default` is the value for an unknown target."""
    return dataclasses.field(default=default, metadata=described(unit, meaning, evidence))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoweringTraits:
    """Traits of a compiler for lowering a partition to a device-local program.

    Defaults are values for an unknown target. Meaning, unit and evidence of a field are metadata of
    the field, and a row of docs/evidence/traits.md.
    """

    regather_distance_ops: int = trait(
        64,
        "ops",
        "Distance between two uses of a redistributed copy beyond which the copy is made again.",
        "Longer distances keep gathered parameters alive from the forward pass of one layer into"
        " the next; shorter ones gather a parameter twice for one layer. " + CHOSEN_HERE,
    )
    attention_scratch_bytes: int = trait(
        256 * 2**20,
        "bytes",
        "Most bytes of attention scores that one turn of blockwise attention makes.",
        "Blocks of keys are halved until their scores fit. " + CHOSEN_HERE,
    )
    reduce_scatter_tiles_first: bool = trait(
        False,
        "flag",
        "Transposes the scattered dimension to the front before a reduce_scatter.",
        "XLA:CPU (jaxlib 0.10.2) runs eight reduce_scatters of 1 MB along the leading dimension in"
        " 9 ms and along a later one in 42 ms. TPUs and GPUs gain nothing from the transpose.",
    )
    pins_update_layouts: bool = trait(
        False,
        "flag",
        "Holds gradients to the row-major layout of the state that they update.",
        "XLA:TPU otherwise copies weight and moments to the layout of a transposed gradient and"
        " back. A mixture of experts under BP(data+model)+Z3(model) on v5e: 24.0 to 20.8 ms, 1.92"
        " to 1.51 GB; LLaMA under BP(data+model)+Z3(data): 19.7 to 17.8 ms, 1.85 to 1.59 GB.",
    )
    pins_lookup_layouts: bool = trait(
        False,
        "flag",
        "Holds results of row look-ups to the row-major layout, and of rows of few elements to the"
        " layout of columns.",
        "XLA:TPU otherwise lays out edges of a graph network by columns and transposes them at each"
        " look-up. BP(data) on v5e: 85.8 to 69.2 ms, 4.30 to 3.95 GB. Scores f32[524288,2] of graph"
        " attention take 64 times their bytes by rows: 3.56 to 1.58 GB under MP(data+model), and"
        " 1.15 to 0.63 GB, 30.0 to 27.3 ms under BP(model)+Z2.",
    )
    pins_lone_rows: bool = trait(
        False,
        "flag",
        "Holds a single row of each sequence, put into an array of many rows or cut out of one, to"
        " the order of its dims.",
        "XLA:TPU otherwise lays out all rows in the single row's order. A U-shaped ViT with a token"
        " of time on v5e: bf16[16,264,512] with 16 sequences in the lanes, 1.20 to 0.38 GB and 26.3"
        " to 7.0 ms under the plan found; with sequences before lanes, 0.51 to 0.39 GB and 8.0 to"
        " 7.2 ms under BP(data+model)+Z3.",
    )
    pins_scanned_rows: bool = trait(
        False,
        "flag",
        "Holds the stack [t, b, d] of a product or a transposition, read by a scan row by row, to"
        " the order of its dims.",
        "XLA:TPU otherwise lays out some stacks with t in the lanes: f32[128,8,6000] of an LSTM's"
        " projected inputs on v5e is read in 76.7 us an iteration, in 5.5 us with rows in order;"
        " the step takes 44.6 and 21.4 ms.",
    )
    row_major_sublane_elements: int = trait(
        8,
        "elements",
        "Divisor of the second-to-last dimension of arrays that the compiler lays out row by row.",
        "All 4,224 arguments of the compiled programs whose last two dimensions fill tiles of"
        " 8 by 128 are row-major; heads of 64 are turned.",
    )
    row_major_lane_elements: int = trait(
        128,
        "elements",
        "Divisor of the last dimension of arrays that the compiler lays out row by row.",
        "See `row_major_sublane_elements`.",
    )
    delays_regathers: bool = trait(
        False,
        "flag",
        "Makes regathers of the backward pass wait for gradients that read much and make little.",
        "XLA:TPU otherwise defers such gradients and keeps their operands. A graph network with all"
        " parameters sharded on v5e: 17.96 to 17.64 ms, 1.37 to 0.98 GB.",
    )
    delays_reductions: bool = trait(
        False,
        "flag",
        "Makes reductions of the backward pass wait for gradients that read much and make little.",
        "XLA:TPU's latency-hiding scheduler, in programs with an asynchronous collective, otherwise"
        " computes such gradients at the end of the step. Graph networks with tensor parallelism on"
        " v5e: 2.41 to 1.87 GB in 46.3 ms, 3.98 to 2.98 GB in 97.5 ms; a detector 5.22 to 4.30 GB,"
        " 123.9 to 125.6 ms; a radiance field, with waiting regathers, 1.03 to 0.79 GB, 11.5 to"
        " 11.3 ms. On H100 the wait costs 6 % of a graph network's step.",
    )
    delays_early_products: bool = trait(
        False,
        "flag",
        "Makes products of the backward pass wait that could precede `delay_lag_collectives`"
        " collectives of the chain.",
        "XLA:TPU otherwise computes all products of one early gradient at once. WaveNet's gradients"
        " of skipped outputs on v5e: 3.65 to 3.55 GB under MP(data+model), 1.01 to 0.89 GB under"
        " BP(model)+MP(data, head)+SP, in 22.49 and 22.65 ms.",
    )
    computes_gradients_first: bool = trait(
        False,
        "flag",
        "Computes gradients that read much and make little before the chain of the backward pass"
        " goes on, unless a collective of the chain could run meanwhile.",
        "XLA:GPU otherwise computes them at the end of the step. A graph network with data"
        " parallelism on 8 H100: 1.80 to 1.19 GB, 6.45 to 6.36 ms.",
    )
    delay_lag_collectives: int = trait(
        2,
        "collectives",
        "Number of regathers, or of rings, that may be under way before one waits; collectives of"
        " the chain that a product of the backward pass may precede, and one.",
        "Rings on v5e, one layer by XLA's cycles: 43.6 ms without order, 43.2 with a lag of two,"
        " 45.2 with a lag of one.",
    )
    delayed_reduction_ratio: int = trait(
        64,
        "bytes read per byte made",
        "Least ratio of a product's largest operand to its result for a collective to wait for it.",
        "Other gradients take no longer than a gather (LLaMA: 16.74 ms without, 16.81 with) or are"
        " copied when tied (experts': 20.69 and 22.44 ms).",
    )
    early_read_ratio: int = trait(
        64,
        "bytes read per byte made",
        "Least ratio of operand to result for an op of the loss to be scheduled early.",
        "XLA:TPU otherwise reads the labels' logits at the end of the step with the f32 logits"
        " alive. LLaMA's found plan on v5e: 1.47 to 1.20 GB.",
    )


NEUTRAL = LoweringTraits()
"""Traits of an unknown target."""
