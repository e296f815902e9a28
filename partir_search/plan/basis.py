"""Choice of a base plan for new argument shapes, and cost of the new plan relative to the base."""

from __future__ import annotations

import dataclasses
import math

from partir_search.ir.core import Module, Shape, Value


@dataclasses.dataclass(frozen=True)
class Basis:
    """Origin of a plan derived from an earlier plan of the same function, without a full search.

    Attributes:
      changed: (path, base shape, new shape) of each argument with a new type.
      seconds: simulated seconds per step of the base plan.
      left_out: actions of the base plan that cannot be applied at the new shapes.
      episodes: episodes of the short search that followed; 0 if none ran.
    """

    changed: tuple[tuple[str, Shape, Shape], ...]
    seconds: float
    left_out: tuple[str, ...] = ()
    episodes: int = 0

    @property
    def work(self) -> float:
        """Elements of the largest changed argument, relative to the base plan."""
        _, before, now = max(self.changed, key=lambda c: math.prod(c[1]), default=("", (), ()))
        return math.prod(now) / max(math.prod(before), 1)

    def pace(self, seconds: float) -> float:
        """Seconds per unit of work, relative to the base plan.

        Args:
          seconds: simulated seconds per step of the new plan.
        """
        return seconds / self.seconds / self.work if self.work and self.seconds else 1.0

    def describe(self, seconds: float) -> str:
        """Sentence that compares the new plan with its base.

        Args:
          seconds: simulated seconds per step of the new plan.
        """
        if not self.changed:
            return "made from the plan of the same shapes"
        path, before, now = max(self.changed, key=lambda c: math.prod(c[1]))
        unit = "example" if before[1:] == now[1:] else "element"
        text = (
            f"made from the plan of {path} {list(before)}: {self.pace(seconds):.2f} of its seconds"
            f" per {unit}"
        )
        if self.left_out:
            text += f"; {len(self.left_out)} of its decisions do not hold"
        if self.episodes:
            text += f", {self.episodes} episodes looked for others"
        return f"{text}; step.free_plan(...) searches without it"


def serves(base: Module, module: Module) -> bool:
    """True if the plan of `base` can be adapted to `module`.

    The argument paths must be equal. If the program has train state, every state array must have
    the same type in both programs; otherwise at least one array must. Weak types and scalars are
    ignored.
    """
    new_args, base_args = module.body.args, base.body.args
    if module.arg_paths != base.arg_paths:
        return False
    state = {a for a, _ in module.ties} | {a for a, _ in base.ties}
    if any(not _alike(new_args[i], base_args[i]) for i in state if new_args[i].type.shape):
        return False
    return any(a.type.shape and _alike(a, b) for a, b in zip(new_args, base_args, strict=True))


def changed_arguments(base: Module, module: Module) -> tuple[tuple[str, Shape, Shape], ...]:
    """(path, shape in `base`, shape in `module`) of each argument whose type differs."""
    pairs = zip(module.arg_paths, base.body.args, module.body.args, strict=True)
    return tuple((p, a.type.shape, b.type.shape) for p, a, b in pairs if not _alike(a, b))


def _alike(one: Value, other: Value) -> bool:
    return one.type == other.type
