"""A profile: measured figures of one machine under one version of the compiler."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partir_search.messages.console import grouped, text_of
from partir_search.messages.files import read_text
from partir_search.messages.wording import shown
from partir_search.profile import entries
from partir_search.profile.entries import (
    CollectiveKey,
    Group,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredSegment,
)
from partir_search.profile.merged_files import locked, replace_text
from partir_search.profile.ratios import Ratios, fit
from partir_search.profile.table import tables
from partir_search.profile.versions import check_versions, versions_here

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = 1
RATES = ("hbm_bytes_per_s", "kernel_seconds", "link_bytes_per_s", "hop_seconds")
REMEDY = "measure again: python -m experiments.calibrate --profile={path}"


@dataclasses.dataclass(frozen=True, repr=False)
class Profile:
    """Measured figures of a machine; pure data, in one file that serves all programs.

    Attributes:
      machine: name of the machine, as `Machine.name`.
      jax / xla: versions, ``0.10.2`` and ``jaxlib 0.10.2`` (or ``libtpu 0.0.51``).
      rates: attained rates and latencies by name of the field of `Machine`, some of `RATES`.
      collectives / products: of the machine.
      segments: of programs, by content key.
      path: file of the profile, for messages; "" if none.
    """

    machine: str
    jax: str
    xla: str
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    collectives: tuple[MeasuredCollective, ...] = ()
    products: tuple[MeasuredProduct, ...] = ()
    segments: Mapping[str, MeasuredSegment] = dataclasses.field(default_factory=dict)
    path: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        for field in ("collectives", "products"):
            object.__setattr__(self, field, tuple(sorted(getattr(self, field), key=_key)))

    @classmethod
    def empty(cls, machine: str, compiler: str = "jaxlib") -> Profile:
        """Profile without measurements, of the versions of this process.

        Args:
          machine: name of the machine.
          compiler: package of the compiler: jaxlib, or libtpu.
        """
        return cls(machine, *versions_here(compiler))

    @functools.cached_property
    def digest(self) -> str:
        """Hash of all figures."""
        return _digest(self.to_json())

    @functools.cached_property
    def basis(self) -> str:
        """Hash of the machine's figures, without the segments."""
        return _digest(dataclasses.replace(self, segments={}).to_json())

    @functools.cached_property
    def ratios(self) -> Ratios:
        """Ratios of the segments that were simulated with the machine's figures of this profile."""
        return fit([s for s in self.segments.values() if s.basis in ("", self.basis)])

    @functools.cached_property
    def _by_key(self) -> dict[CollectiveKey, MeasuredCollective]:
        return {c.key: c for c in self.collectives}

    def has_links(self, key: CollectiveKey) -> bool:
        """True if the profile has a line of a kind on a group."""
        return key in self._by_key

    def collective(self, kind: str, group: Group) -> MeasuredCollective | None:
        """Entry of a kind and grouping pattern, or of the most similar group of as many devices."""
        found = self._by_key.get((kind, group))
        if found is None:
            devices = math.prod(size for size, _ in group)
            alike = [c for c in self.collectives if c.kind == kind and c.devices == devices]
            found = min(alike, key=lambda c: _unlike(c.group, group), default=None)
        return found

    def merged(self, newer: Profile) -> Profile:
        """This profile with the entries of a newer one, in place of entries of equal keys.

        Raises:
          ValueError: the profiles are of different machines or versions.
        """
        for field in ("machine", "jax", "xla"):
            ours, theirs = getattr(self, field), getattr(newer, field)
            if ours != theirs:
                raise ValueError(
                    f"profiles of {field} {ours!r} and {theirs!r} cannot be merged; write each to a"
                    " file of its own"
                )
        return dataclasses.replace(
            newer,
            rates={**self.rates, **newer.rates},
            collectives=_joined(self.collectives, newer.collectives),
            products=_joined(self.products, newer.products),
            segments={**self.segments, **newer.segments},
        )

    def check(self, machine: str) -> None:
        """Checks machine and versions against a machine and this process.

        Raises:
          ValueError: neither holds; the message has the remedy.
        """
        where = self.path or "the profile"
        if self.machine != machine:
            raise ValueError(
                f"profile: {where} was measured on {self.machine!r}, and the plan is for"
                f" {machine!r}: pass machine={self.machine!r}, or a profile of {machine!r}"
            )
        check_versions(self.jax, self.xla, where, REMEDY.format(path=self.path or "here.json"))

    def to_json(self) -> dict[str, Any]:
        """JSON object of the profile."""
        return {
            "format": FORMAT,
            "machine": self.machine,
            "jax": self.jax,
            "xla": self.xla,
            "rates": dict(sorted(self.rates.items())),
            "collectives": [entries.to_json(c) for c in self.collectives],
            "products": [entries.to_json(p) for p in self.products],
            "segments": {k: entries.to_json(s) for k, s in sorted(self.segments.items())},
        }

    def save(self, path: str | os.PathLike[str]) -> Profile:
        """Adds the entries to a file, atomically, and returns all of the file's entries.

        A file of another machine or version is replaced.
        """
        file = pathlib.Path(path)
        with locked(file):
            merged = self
            if file.exists():
                old = _read(file)
                if (old.machine, old.jax, old.xla) == (self.machine, self.jax, self.xla):
                    merged = old.merged(self)
            replace_text(file, json.dumps(merged.to_json(), indent=1) + "\n")
        return dataclasses.replace(merged, path=str(file))

    def __rich__(self) -> RenderableType:
        head = f"{self.machine}, jax {self.jax}, {self.xla}"
        figures = self.rates, self.collectives, self.products, self.segments
        return grouped(head, *tables(*figures))

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"Profile({self.machine!r}, {self.digest})"


def load_profile(profile: Profile | str | os.PathLike[str]) -> Profile:
    """Profile of a file; returns a `Profile` unchanged.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file holds no profile.
      TypeError: the argument is neither a profile nor a path.
    """
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str | os.PathLike):
        raise TypeError(
            f"profile is a partir_search.Profile or the path of its file, not {shown(profile)}"
        )
    return _read(pathlib.Path(profile))


def _read(path: pathlib.Path) -> Profile:
    text = read_text(path, "profile")
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or "segments" not in data:
            hint = ": pass it as machine=" if "flops_per_s" in data else ""
            raise ValueError(f"it has no segments{hint}")
        if data.get("format") != FORMAT:
            raise ValueError(f"format {data.get('format')!r}; this version reads {FORMAT}")
        rates = {str(k): float(v) for k, v in data["rates"].items()}
        unknown = sorted(set(rates) - set(RATES))
        if unknown:
            raise ValueError(f"rates {unknown} are none of {RATES}")
        return Profile(
            machine=str(data["machine"]),
            jax=str(data["jax"]),
            xla=str(data["xla"]),
            rates=rates,
            collectives=tuple(map(entries.collective, data["collectives"])),
            products=tuple(map(entries.product, data["products"])),
            segments={k: entries.segment(v) for k, v in data["segments"].items()},
            path=str(path),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        remedy = REMEDY.format(path=path)
        raise ValueError(f"{path} holds no profile: {what}; {remedy}") from error


def _joined(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(({e.key: e for e in old} | {e.key: e for e in new}).values())


def _key(entry: Any) -> Any:
    return entry.key


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _unlike(one: Group, other: Group) -> float:
    """Difference of two groups of as many devices, by the strides of their last axes."""
    return abs(math.log2(one[-1][1] / other[-1][1])) + abs(len(one) - len(other))
