"""Deprecated names of traits: former fields of `Machine`, now fields of `XlaTraits`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from partir_search.simulator.target.traits import XlaTraits

C = TypeVar("C", bound=type)

READERS: Mapping[str, Callable[[XlaTraits], Any]] = {
    "bf16_products": lambda t: t.narrows_dot_operands,
    "fuses_operands": lambda t: not t.materializes_dot_operands,
    "reuses_buffers": lambda t: t.in_place_elementwise,
    "stores_softmax": lambda t: t.materializes_softmax,
    "puts_off": lambda t: t.defers_weight_gradients,
    "prefetches": lambda t: t.async_all_gather != "never",
    "repacks": lambda t: t.collective_copy_factors,
    "copies_gathered": lambda t: t.copies_gather_into_donated,
}
"""Value of each former field."""


def accept_former_fields(machine: C) -> C:
    """Class decorator: `__init__` accepts former fields, with a DeprecationWarning."""
    init = machine.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def accepting(self: Any, *args: Any, **fields: Any) -> None:
        moved = {name: fields.pop(name) for name in READERS.keys() & fields.keys()}
        if moved:
            _warn(*moved)
            fields["traits"] = with_former_fields(fields.get("traits", XlaTraits()), moved)
        init(self, *args, **fields)

    machine.__init__ = accepting  # type: ignore[misc]
    return machine


def read_former_field(machine: Any, name: str) -> Any:
    """Value of a former field of a machine.

    Raises:
      AttributeError: `name` is no former field.
    """
    if name not in READERS:
        raise AttributeError(f"{type(machine).__name__!r} object has no attribute {name!r}")
    _warn(name)
    return READERS[name](machine.traits)


def rewrite_former_fields(data: dict[str, Any]) -> None:
    """Replaces former fields in a saved machine's data by traits, in place."""
    moved = {name: data.pop(name) for name in READERS.keys() & data.keys()}
    if moved:
        data["traits"] = dataclasses.asdict(with_former_fields(XlaTraits(), moved))


def with_former_fields(traits: XlaTraits, moved: Mapping[str, Any]) -> XlaTraits:
    """Traits after setting former fields; a former field may set several traits.

    Args:
      moved: values by name of a former field.
    """
    values = {name: read(traits) for name, read in READERS.items()} | dict(moved)
    changes: dict[str, Any] = {
        "in_place_elementwise": values["reuses_buffers"],
        "materializes_softmax": values["stores_softmax"],
        "defers_weight_gradients": values["puts_off"],
        "collective_copy_factors": values["repacks"],
        "copies_gather_into_donated": values["copies_gathered"],
    }
    if "bf16_products" in moved:
        narrow = bool(values["bf16_products"])
        changes["f32_dot_operand_bytes"] = 2 if narrow else 4
        for name in ("keeps_dots_wide", "fuses_one_hot_updates", "fuses_weight_casts"):
            changes[name] = narrow
    if "fuses_operands" in moved:
        changes["materializes_dot_operands"] = not values["fuses_operands"]
        changes["fuses_dot_epilogues"] = values["fuses_operands"]
    if {"bf16_products", "reuses_buffers"} & moved.keys():
        changes["recomputes_dot_operands"] = bool(
            values["bf16_products"] and values["reuses_buffers"]
        )
    if {"prefetches", "puts_off"} & moved.keys():
        start = "arguments" if values["puts_off"] else "since_source"
        changes["async_all_gather"] = start if values["prefetches"] else "never"
    return dataclasses.replace(traits, **changes)


def _warn(*names: str) -> None:
    listed = ", ".join(f"Machine.{name}" for name in sorted(names))
    warnings.warn(
        f"{listed}: traits of the compiler are now fields of Machine.traits, an XlaTraits",
        DeprecationWarning,
        stacklevel=4,
    )
