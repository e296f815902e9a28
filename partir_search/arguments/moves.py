"""Warning about arguments that every call moves between devices."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, SingleDeviceSharding

from partir_search.arguments.abstract_values import is_array


class Moves:
    """Arguments of one function moved by its calls."""

    def __init__(self, name: str) -> None:
        """Record for the function `name`, with at most one warning."""
        self._name, self._warned = name, False
        self._before: dict[int, dict[int, Any]] = {}

    def note(
        self, entry: int, leaves: Sequence[Any], placed: Sequence[Any], paths: Sequence[str]
    ) -> None:
        """Warns if two consecutive calls move an argument from the same committed placement.

        A single move is no cause for a warning: a restored or loaded state moves once.

        Args:
          entry: identity of the executable.
          leaves, placed: the call's arguments before and after placement by the plan.
          paths: path of each leaf.
        """
        if self._warned:
            return
        changed = [i for i, stays in enumerate(map(operator.is_, leaves, placed)) if not stays]
        if not changed and entry not in self._before:
            return
        now = {i: leaves[i].sharding for i in changed if moves(leaves[i], placed[i])}
        repeated = sorted(dict(now.items() & self._before.pop(entry, {}).items()))
        if now:
            self._before[entry] = now
        if repeated:
            self._warned = True
            i = repeated[0]
            others = f" ({len(repeated)} arguments are)" if len(repeated) > 1 else ""
            warnings.warn(
                f"{self._name}: {paths[i]} lives on {_place(leaves[i])}, and the plan has it on"
                f" {_place(placed[i])}: it is moved in every call{others}; place it once"
                " (jax.device_put with plan.in_shardings), make it by step.init, or pass what the"
                " step returned",
                stacklevel=4,
            )


def moves(x: Any, placed: Any) -> bool:
    """True if placement moves bytes of an array committed by the user."""
    if not is_array(x) or not x.committed:
        return False
    return not x.sharding.is_equivalent_to(placed.sharding, x.ndim)


def _place(x: Any) -> str:
    """Text of an array's devices and sharding."""
    sharding = x.sharding
    if isinstance(sharding, SingleDeviceSharding):
        text = str(next(iter(sharding.device_set)))
    elif isinstance(sharding, NamedSharding):
        axes = ", ".join(f"{n}:{s}" for n, s in sharding.mesh.shape.items())
        text = f"mesh<{axes}> as {sharding.spec}"
    else:
        text = str(sharding)
    default = next(iter(sharding.device_set)).default_memory().kind
    kind = sharding.memory_kind
    return text if kind in (None, default) else f"{text} in {kind} memory"
