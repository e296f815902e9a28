"""Figures of a chip and its networks."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from partir_search.messages import validators
from partir_search.messages.files import write_text
from partir_search.messages.wording import shown
from partir_search.profile.profile import Profile
from partir_search.simulator.target import moved_traits
from partir_search.simulator.target.known_traits import UNKNOWN
from partir_search.simulator.target.traits import XlaTraits

GB = 1e9
GIB = 2**30
TERA = 1e12


@moved_traits.accept_former_fields
@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Figures of one device and its links, and the traits of its compiler.

    Former fields that are traits now remain as deprecated arguments and properties.

    Attributes:
      flops_per_s: peak dense matrix rate by dtype name; "default" for dtypes without an entry.
      hbm_bytes: memory available to a program.
      hbm_bytes_per_s: peak memory bandwidth.
      link_bytes_per_s: bandwidth of one device in a ring along one mesh axis, both directions.
      hop_seconds: latency (alpha) of one step of a collective.
      kernel_seconds: fixed seconds of one kernel.
      matmul_efficiency / hbm_efficiency: attained fraction of the peaks.
      matmul_efficiencies: attained fraction of the peak by dtype name, where it is another.
      vector_bytes: bytes of a vector unit's element (docs/simulator.md); 0 if memory alone limits
        elementwise kernels.
      vmem_bytes: memory on the chip for short-lived values (TPU's VMEM); 0 if none.
      vmem_bytes_per_s: attained bandwidth of elementwise kernels from memory on the chip; 0 for
        the bandwidth of main memory.
      torus: True for links between neighbours along each axis, False for a switch.
      sources: datasheets and measurements of the figures.
      axis_bytes_per_s / axis_hop_seconds: overrides of `link_bytes_per_s` and `hop_seconds` by mesh
        axis name, e.g. for an axis across hosts (see `with_axis`).
      traits: behaviour of the compiler.
      dcn_bytes_per_s: bandwidth of one device's share of its host's network, one way; 0 if none is
        known (see `across_hosts`).
      dcn_hop_seconds: latency of one step of a collective on the host's network.
      profile: measured figures, which go before the others (see `with_profile`); None without.
    """

    name: str
    flops_per_s: Mapping[str, float]
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    hop_seconds: float = 1e-6
    kernel_seconds: float = 2e-6
    matmul_efficiency: float = 0.9
    hbm_efficiency: float = 0.75
    vector_bytes: int = 0
    vmem_bytes: float = 0.0
    vmem_bytes_per_s: float = 0.0
    torus: bool = False
    sources: tuple[str, ...] = ()
    axis_bytes_per_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    axis_hop_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    traits: XlaTraits = UNKNOWN
    dcn_bytes_per_s: float = 0.0
    dcn_hop_seconds: float = 2e-5
    profile: Profile | None = None
    matmul_efficiencies: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        def named(field: str) -> str:
            return f"Machine({self.name!r}): {field}"

        validators.text("Machine: name", self.name, "'my_chip'")
        for field in ("flops_per_s", "axis_bytes_per_s", "matmul_efficiencies"):
            validators.rates(named(field), getattr(self, field))
        if "default" not in self.flops_per_s:
            raise ValueError(
                f"{named('flops_per_s')} has no 'default' rate, for types without one of their own:"
                f" it has {sorted(self.flops_per_s)}"
            )
        for field in _ABOVE_ZERO:
            validators.number(named(field), getattr(self, field), above=0)
        for field in _NOT_NEGATIVE:
            validators.number(named(field), getattr(self, field))
        for field in ("matmul_efficiency", "hbm_efficiency"):
            if getattr(self, field) > 1:
                raise ValueError(
                    f"{named(field)} is a share of the peak, at most 1, not {getattr(self, field)}"
                )
        for dtype, share in self.matmul_efficiencies.items():
            if share > 1:
                field = f"matmul_efficiencies[{dtype!r}]"
                raise ValueError(f"{named(field)} is a share of the peak, at most 1, not {share}")
        validators.names(named("sources"), self.sources, "('a datasheet',)")
        if not isinstance(self.axis_hop_seconds, Mapping):
            raise TypeError(f"{named('axis_hop_seconds')} maps axes to seconds")
        for axis, seconds in self.axis_hop_seconds.items():
            validators.number(named(f"axis_hop_seconds[{axis!r}]"), seconds)
        validators.flag(named("torus"), self.torus)
        if not isinstance(self.traits, XlaTraits):
            raise TypeError(f"{named('traits')} is an XlaTraits, not {shown(self.traits)}")

    def __getattr__(self, name: str) -> Any:
        return moved_traits.read_former_field(self, name)

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Attained matrix rate for operands of `dtype` (a numpy dtype name)."""
        peak = self.flops_per_s.get(dtype, self.flops_per_s["default"])
        return peak * self.matmul_efficiencies.get(dtype, self.matmul_efficiency)

    @property
    def attained_hbm_bytes_per_s(self) -> float:
        """Attained memory bandwidth."""
        return self.hbm_bytes_per_s * self.hbm_efficiency

    def axis_bandwidth(self, axis: str) -> float:
        """Bytes per second of one device in a ring along a mesh axis."""
        return self.axis_bytes_per_s.get(axis, self.link_bytes_per_s)

    def axis_hop(self, axis: str) -> float:
        """Seconds of latency of one step of a collective along a mesh axis."""
        return self.axis_hop_seconds.get(axis, self.hop_seconds)

    def with_axis(self, axis: str, bytes_per_s: float, hop_seconds: float) -> Machine:
        """Machine with a mesh axis on links of its own: DCN, InfiniBand, a slower torus dimension.

        Args:
          axis: name of the mesh axis.
          bytes_per_s: bandwidth of one device in a ring along the axis; a host's bandwidth divided
            by the number of devices that share the host's link.
          hop_seconds: latency of one step of a collective.
        """
        validators.text("with_axis: axis", axis, "'hosts'")
        validators.number("with_axis: bytes_per_s", bytes_per_s, above=0)
        validators.number("with_axis: hop_seconds", hop_seconds)
        return dataclasses.replace(
            self,
            axis_bytes_per_s={**self.axis_bytes_per_s, axis: bytes_per_s},
            axis_hop_seconds={**self.axis_hop_seconds, axis: hop_seconds},
        )

    def across_hosts(self, *axes: str) -> Machine:
        """Machine with mesh axes that cross hosts, on the host network (`dcn_bytes_per_s`).

        Raises:
          ValueError: no host network is known for the machine.
        """
        if not self.dcn_bytes_per_s:
            raise ValueError(
                f"across_hosts: no host network is known for {self.name}; give its figures:"
                " machine.with_axis(axis, bytes_per_s=, hop_seconds=)"
            )
        machine = self
        for axis in axes:
            machine = machine.with_axis(axis, self.dcn_bytes_per_s, self.dcn_hop_seconds)
        return machine

    def with_traits(self, **changes: Any) -> Machine:
        """Machine with some traits of its compiler replaced, by name of the `XlaTraits` field."""
        return dataclasses.replace(self, traits=dataclasses.replace(self.traits, **changes))

    def with_profile(self, profile: Profile) -> Machine:
        """Machine with measured figures.

        Rates of the profile replace the machine's, attained in full. Collectives, products and
        kernels that the profile names take its seconds (`simulator/time/`).

        Raises:
          ValueError: the profile is of another machine, or of another version of jax or XLA.
        """
        profile.check(self.name)
        rates: dict[str, Any] = dict(profile.rates)
        if "hbm_bytes_per_s" in rates:
            rates["hbm_efficiency"] = 1.0
        return dataclasses.replace(self, profile=profile, **rates)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the figures as JSON, without a profile; `find_machine` reads them from a path."""
        figures = dataclasses.asdict(dataclasses.replace(self, profile=None))
        del figures["profile"]
        write_text(path, json.dumps(figures, indent=1) + "\n")


_ABOVE_ZERO = (
    *("hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s"),
    *("matmul_efficiency", "hbm_efficiency"),
)
_NOT_NEGATIVE = (
    *("hop_seconds", "kernel_seconds", "vector_bytes", "vmem_bytes", "vmem_bytes_per_s"),
    *("dcn_bytes_per_s", "dcn_hop_seconds"),
)
