"""Prints a partition in PartIR's loop form. Deterministic; the language of all goldens."""

from __future__ import annotations

from partir_search.ir.partition import Partition
from partir_search.ir.printing.blocks import print_blocks
from partir_search.ir.printing.full import Keep, print_full


def print_partition(partition: Partition, keep: Keep | None = None, *, full: bool = False) -> str:
    """The module under `partition` as loops.

    Args:
      keep: accepts the ops of the body that are printed; all if None.
      full: every op with all attributes, instead of blocks of scopes with runs of elementwise ops
        as one line.
    """
    return print_full(partition, keep) if full else print_blocks(partition, keep)
