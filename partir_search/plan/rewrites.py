"""Rewrites of a program before a plan's actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, Unpack, get_args, get_origin, get_type_hints

from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.messages.wording import shown
from partir_search.passes.pad_choice import Pad
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.remat import Range
from partir_search.passes.stacks import Stack
from partir_search.plan.json_entries import typed_entry


def _entry(default: Any, words: str) -> Any:
    """A field with a default, and the description of its JSON for messages."""
    return dataclasses.field(default=default, metadata={"words": words})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rewrites:
    """Rewrites of a traced program, in order of application.

    Attributes:
      microbatches: number of parts of the batch computed one after the other.
      pipeline: the layers as stages of a pipeline over the microbatches, at most one.
      parallel_iterations: number of parts, at most, of the iterations of scans whose iterations
        depend on no earlier one; devices may share parts.
      attention: True if each attention is one op and its scores are recomputed in the backward
        pass.
      scan_layers: True if equal layers are scans.
      stacks: equal programs (Newton-Schulz iterations of several matrices) computed once, on a
        stack.
      padding: dims padded inside the program, one per class of equal dims.
      remat: segments of the forward pass recomputed in the backward pass, with the ops whose
        results are stored (`passes.remat.Range`).
    """

    microbatches: int = _entry(1, "a whole number")
    pipeline: tuple[PipelineForm, ...] = _entry((), "a list of pipelines")
    parallel_iterations: int = _entry(1, "a whole number")
    attention: bool = _entry(False, "true or false")
    scan_layers: bool = _entry(False, "true or false")
    stacks: tuple[Stack, ...] = _entry((), "a list of stacks of programs")
    padding: tuple[Pad, ...] = _entry((), "a list of padded dims")
    remat: tuple[Range, ...] = _entry((), "lists of two positions or more")

    @property
    def loop(self) -> Rewrites:
        """Rewrites to a loop over microbatches, alone."""
        return Rewrites(microbatches=self.microbatches, pipeline=self.pipeline)

    def to_json(self) -> dict[str, Any]:
        """JSON values by field name, defaults omitted."""
        fields = dataclasses.fields(self)
        changed = {f.name for f in fields if getattr(self, f.name) != f.default}
        return {name: x for name, x in dataclasses.asdict(self).items() if name in changed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; entries of other names in `data` are ignored.

        Raises:
          KeyError or ValueError: an entry has a type that `to_json` never writes.
        """
        kinds, found = get_type_hints(cls), {}
        for field in dataclasses.fields(cls):
            if field.name in data:
                kind, words = kinds[field.name], field.metadata["words"]
                plain = list if get_origin(kind) is tuple else kind
                value = typed_entry(data, field.name, plain, words)
                try:
                    found[field.name] = _read(kind, value)
                except (TypeError, ValueError):
                    wrong = f"its {field.name!r} are {words}, not {shown(value)}"
                    raise ValueError(wrong) from None
        return cls(**found)


def _read(kind: Any, value: Any) -> Any:
    """A value of type `kind` from JSON; TypeError or ValueError for a value of another form."""
    if hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind).items()
        return kind(**{k: _read(inner, value[k]) for k, inner in hints if k in value})
    if get_origin(kind) is not tuple:
        return kind(value)
    inner, *others = get_args(kind)
    if others == [...]:
        return tuple(_read(inner, x) for x in value)
    if others and get_origin(others[-1]) is Unpack:  # of any number: tuple[int, *tuple[int, ...]]
        ((further, _),) = map(get_args, get_args(others.pop()))
        others += [further] * max(len(value) - len(others) - 1, 0)
    return tuple(_read(k, x) for k, x in zip((inner, *others), value, strict=True))


class Rewritten:
    """Mixin with the fields of `rewrites` as attributes."""

    __slots__ = ()
    rewrites: Rewrites

    @property
    def remat(self) -> tuple[Range, ...]:
        """Segments of the forward pass recomputed in the backward pass, as positions of ops: the
        first, the one after the last, and those whose results are stored.
        """
        return self.rewrites.remat

    @property
    def stored_results(self) -> int:
        """Number of ops of recomputed segments whose results are stored."""
        return sum(len(stored) for _, _, *stored in self.remat)

    @property
    def microbatches(self) -> int:
        """Number of microbatches, parts of the batch computed one after the other."""
        return self.rewrites.microbatches

    @property
    def pipeline(self) -> PipelineForm | None:
        """Layers as stages of a pipeline over the microbatches; None without a pipeline."""
        return next(iter(self.rewrites.pipeline), None)

    @property
    def timetable(self) -> PipelineSchedule | None:
        """Schedule of the pipeline; None without a pipeline."""
        return self.pipeline.timetable(self.microbatches) if self.pipeline else None

    @property
    def padding(self) -> tuple[Pad, ...]:
        """Dims padded inside the program, one per class of equal dims."""
        return self.rewrites.padding

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Equal programs on several matrices, computed once on a stack of the matrices."""
        return self.rewrites.stacks

    @property
    def parallel_iterations(self) -> int:
        """Number of parts, at most, of independent iterations of scans; 1 for one."""
        return self.rewrites.parallel_iterations

    @property
    def attention(self) -> bool:
        """True if each attention is one op and its scores are recomputed in the backward pass."""
        return self.rewrites.attention

    @property
    def scan_layers(self) -> bool:
        """True if equal layers are scans."""
        return self.rewrites.scan_layers
