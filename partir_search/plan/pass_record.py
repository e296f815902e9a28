"""Records of the passes from the traced program to the device-local program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

PIPELINE = {
    "trace": "jaxpr of the call, read into the IR",
    "unread": "unread operands and results of loops, left out",
    "row_lookups": "look-ups and updates at the number of each row within rows",
    "early_lookups": "look-ups within rows before the elementwise functions of the array",
    "microbatches": "the batch on a time axis, and the loop over its parts",
    "pipeline": "the loop over microbatches as ticks of a pipeline over stages of layers",
    "loop_products": "products that no iteration of a scan waits for, before or after the scan",
    "loop_broadcasts": "broadcasts of values known before a scan inside of the scan",
    "views": "shifted reads as windows of one array",
    "group_arguments": "arguments that the user wants alike",
    "block_scans": "cumulative ops within blocks of a dim, and over blocks",
    "block_selections": "argmax and top_k within tiles of a dim, and from their best",
    "parallel_iterations": "independent iterations of scans in parts, for devices to share",
    "recognize_attention": "each attention as one op",
    "scan_layers": "equal layers as scans",
    "stack": "equal programs on several arrays, computed once on a stack of the arrays",
    "pad": "dims that do not divide, padded inside the program",
    "rematerialize": "segments of the forward pass, computed again",
    "fold": "equal layers as one, for the search",
    "search": "decisions on the folded program",
    "unfold": "decisions on the unfolded program",
    "local": "the program of one device, with its collectives",
    "delay_rings": "rings wait for earlier rings",
    "order_turns": "turns of a ring, one after the other",
    "delay_gathers": "regathers wait for gradients",
    "delay_reductions": "reductions of the backward pass wait for gradients",
    "delay_early_products": "products of early gradients wait for the backward pass",
    "compute_gradients_first": "gradients of weights, before the backward pass goes on",
    "hoist_early_reads": "reads of the loss, before the backward pass",
    "prevent_cse": "barriers that keep regathers apart from earlier gathers",
    "pin_update_layouts": "gradients in the layout of their state",
    "pin_lookup_layouts": "look-ups in rows, or narrow ones in columns",
    "pin_lone_rows": "single rows of sequences in the order of their dims",
    "pin_scanned_rows": "stacks that a scan reads row by row in the order of their dims",
    "write_donated_last": "results in donated buffers, after the last read",
    "scatter_tiles_first": "reduce_scatters along the leading dim",
    "emit": "one jax.shard_map",
}


@dataclasses.dataclass(frozen=True, slots=True)
class PassRecord:
    """Record of one pass.

    Attributes:
      name: a key of PIPELINE.
      seconds: wall time.
      ops_before, ops_after: number of ops, including regions; of the local program, instructions.
      text: function that prints the program after the pass.
    """

    name: str
    seconds: float
    ops_before: int
    ops_after: int
    text: Callable[[], str] = dataclasses.field(repr=False, compare=False)

    @property
    def file_name(self) -> str:
        """Name of the dump file: position in PIPELINE and pass name."""
        return f"{list(PIPELINE).index(self.name):02d}_{self.name}.ir"

    def __str__(self) -> str:
        ops = f"{self.ops_before} ops"
        if self.ops_after != self.ops_before:
            ops += f" to {self.ops_after}"
        return f"{self.name}: {ops}, {self.seconds:.3f} s"


class PassRecords(tuple[PassRecord, ...]):
    """Records of a plan's passes, in order; `print` shows a table."""

    def __str__(self) -> str:
        header = ("pass", "seconds", "ops before", "after", "")
        return "\n".join(_aligned([header, *map(_row, self)]))

    def __getitem__(self, key: Any) -> Any:
        """Record at a position or slice, or the last record of a pass by name."""
        if isinstance(key, str):
            found = [record for record in self if record.name == key]
            if not found:
                raise KeyError(f"{key!r} did not run; passes that did: {[r.name for r in self]}")
            return found[-1]
        return super().__getitem__(key)


def _row(record: PassRecord) -> tuple[str, ...]:
    counts = str(record.ops_before), str(record.ops_after)
    return record.name, f"{record.seconds:.3f}", *counts, PIPELINE[record.name]


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers, last in rows:
        cells = [first.ljust(widths[0])]
        cells += [n.rjust(w) for n, w in zip(numbers, widths[1:-1], strict=True)]
        yield "  ".join([*cells, last]).rstrip()
