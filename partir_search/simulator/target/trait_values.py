"""Values of traits: their text and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partir_search.messages import validators


def value_text(value: Any) -> str:
    """Text of a trait's value: yes or no for a flag, grouped digits for a whole number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{kind} {factor:g}" for kind, factor in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def check_value(name: str, value: Any, unit: str) -> None:
    """Raises a ValueError or TypeError for a value unfit for the unit of a trait."""
    if unit == "flag":
        validators.flag(name, value)
    elif isinstance(value, Mapping):
        validators.rates(name, value)
    elif not isinstance(value, str):
        validators.number(name, value)
        if unit.startswith("fraction") and value > 1:
            raise ValueError(f"{name} is a fraction, at most 1, not {value}")
