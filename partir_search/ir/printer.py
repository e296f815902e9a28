"""Printer of partitions in PartIR's loop form. Deterministic; the language of all goldens."""

from __future__ import annotations

from partir_search.ir.partition import Partition
from partir_search.ir.printing.blocks import print_blocks
from partir_search.ir.printing.full import Keep, print_full


def print_partition(partition: Partition, keep: Keep | None = None, *, full: bool = False) -> str:
    """Text of the module under `partition` as loops.

    Args:
      keep: predicate that selects the ops of the body to print; None for all.
      full: print every op with all attributes, instead of blocks of scopes with runs of elementwise
        ops as one line.
    """
    return print_full(partition, keep) if full else print_blocks(partition, keep)
