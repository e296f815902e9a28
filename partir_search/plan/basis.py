"""Choice of a base plan for another shape, and the cost of the new plan beside it."""

from __future__ import annotations

import dataclasses
import math

from partir_search.ir.core import Module, Shape, Value


@dataclasses.dataclass(frozen=True)
class Basis:
    """The plan from which another one was made without a search of its own.

    Attributes:
      changed: (path, shape of the base plan, shape of this one) of arguments that differ.
      seconds: of a step by the base plan.
      left_out: decisions of the base plan that do not hold for these shapes.
      episodes: of a search over what they left open; 0 if there was none.
    """

    changed: tuple[tuple[str, Shape, Shape], ...]
    seconds: float
    left_out: tuple[str, ...] = ()
    episodes: int = 0

    @property
    def work(self) -> float:
        """Elements of the largest argument that differs, against the base plan's."""
        _, before, now = max(self.changed, key=lambda c: math.prod(c[1]), default=("", (), ()))
        return math.prod(now) / max(math.prod(before), 1)

    def pace(self, seconds: float) -> float:
        """Seconds of a step for the same work, against the base plan's."""
        return seconds / self.seconds / self.work if self.work and self.seconds else 1.0

    def describe(self, seconds: float) -> str:
        """The comparison in words, of a plan whose step takes `seconds`."""
        if not self.changed:
            return "made from the plan of the same shapes in other types"
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
    """Tells whether `base` decides for a program: all train state is equal, or else some argument.

    Types are compared, not weakness of types; scalars decide nothing.
    """
    ours, theirs = module.body.args, base.body.args
    if module.arg_paths != base.arg_paths:
        return False
    kept = {a for a, _ in module.ties} | {a for a, _ in base.ties}
    if any(not _alike(ours[i], theirs[i]) for i in kept if ours[i].type.shape):
        return False
    return any(a.type.shape and _alike(a, b) for a, b in zip(ours, theirs, strict=True))


def changed_arguments(base: Module, module: Module) -> tuple[tuple[str, Shape, Shape], ...]:
    """(path, shape in `base`, shape here) of the arguments whose types differ."""
    pairs = zip(module.arg_paths, base.body.args, module.body.args, strict=True)
    return tuple((p, a.type.shape, b.type.shape) for p, a, b in pairs if not _alike(a, b))


def _alike(one: Value, other: Value) -> bool:
    return one.type == other.type
