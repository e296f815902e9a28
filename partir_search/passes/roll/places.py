"""Ops and their places in the user's program, for messages."""

from __future__ import annotations

from partir_search.ir.core import Op


def place_of(op: Op) -> str:
    """Scope and source line of an op."""
    return ", ".join(filter(None, (op.scope, op.source))) or "the top"


def named(op: Op) -> str:
    """Name and source line of an op."""
    return f"{op.prim} at {op.source or place_of(op)}"
