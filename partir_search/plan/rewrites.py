"""Rewrites of a program before a plan's actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, get_args, get_origin, get_type_hints

from partir_search.passes.pad_choice import Pad
from partir_search.passes.remat import Range


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rewrites:
    """Rewrites of a traced program, in order of application.

    Attributes:
      microbatches: number of parts of the batch; gradients are accumulated over the parts.
      attention: True if each attention is one op and its scores are recomputed in the backward
        pass.
      padding: dims padded inside the program, one per class of equal dims.
      remat: segments of the forward pass (positions of ops) recomputed in the backward pass.
    """

    microbatches: int = 1
    attention: bool = False
    padding: tuple[Pad, ...] = ()
    remat: tuple[Range, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Fields by name as values of JSON, without those that have their default."""
        fields = dataclasses.fields(self)
        changed = {f.name for f in fields if getattr(self, f.name) != f.default}
        return {name: x for name, x in dataclasses.asdict(self).items() if name in changed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; entries of other names in `data` are ignored."""
        kinds = get_type_hints(cls)
        return cls(
            **{name: _read(kind, data[name]) for name, kind in kinds.items() if name in data}
        )


def _read(kind: Any, value: Any) -> Any:
    """A value of type `kind` from JSON."""
    if hasattr(kind, "__dataclass_fields__"):
        return kind(**{k: _read(inner, value[k]) for k, inner in get_type_hints(kind).items()})
    if get_origin(kind) is not tuple:
        return kind(value)
    inner, *others = get_args(kind)
    if others == [...]:
        return tuple(_read(inner, x) for x in value)
    return tuple(_read(k, x) for k, x in zip((inner, *others), value, strict=True))


class Rewritten:
    """Mixin with the fields of `rewrites` as attributes."""

    __slots__ = ()
    rewrites: Rewrites

    @property
    def remat(self) -> tuple[Range, ...]:
        """Segments of the forward pass (positions of ops) recomputed in the backward pass."""
        return self.rewrites.remat

    @property
    def microbatches(self) -> int:
        """Number of parts of the batch; gradients are accumulated over the parts."""
        return self.rewrites.microbatches

    @property
    def padding(self) -> tuple[Pad, ...]:
        """Dims padded inside the program, one per class of equal dims."""
        return self.rewrites.padding

    @property
    def attention(self) -> bool:
        """True if each attention is one op and its scores are recomputed in the backward pass."""
        return self.rewrites.attention
