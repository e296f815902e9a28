"""Measures the devices and links at hand, as a profile or as a machine to plan with.

    python -m experiments.calibrate --mesh=batch:2,model:4 --profile=here.json --out=machine.json
    ... auto_partition(mesh, profile="here.json"), or machine="machine.json"

All devices work at once, as in a step. Measured are all kinds of collectives on all groups of the
mesh's axes at several sizes, each with its line alpha + beta B; products of matrices by shape and
type; a long elementwise pass and a chain of small kernels. A profile (`ps.Profile`) keeps all of
it beside what the file has already; a machine has one bandwidth and latency per axis, fitted to
all_reduce, all_gather and reduce_scatter. Runs on 8 CPU devices if there is no accelerator
(`--platform=cpu`, the default; `--platform=` takes what jax finds), by CPU seconds there.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from experiments.devices import use_cpu_devices

if not any(arg.startswith("--platform") and arg != "--platform=cpu" for arg in sys.argv):
    use_cpu_devices()

import jax
import numpy as np
from absl import app, flags
from jax.sharding import AxisType
from rich.console import Console
from rich.progress import track

import partir_search as ps
from experiments import planning_flags
from partir_search.profiling import machine as measure
from partir_search.profiling.clocks import clock_of
from partir_search.simulator.target.device_kinds import machine_name
from partir_search.simulator.target.machine import machine_of_kind
from partir_search.simulator.time.collectives import grouping, hops

FLAGS = flags.FLAGS
planning_flags.define(mesh="batch:2,model:4")
flags.DEFINE_string("platform", "cpu", "cpu for virtual devices; empty for what jax finds.")
flags.DEFINE_list("kib", [str(k) for k in measure.KIBIBYTES], "Payloads of the collectives.")
flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Types of the products.")
flags.DEFINE_integer("repeats", 7, "Runs of each; their median counts.")
flags.DEFINE_string("profile", None, "File of a profile, read and added to.")
flags.DEFINE_string("out", None, "File for the machine.")

ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # of a ring


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One measured collective; `payload` in bytes on a device, the larger side."""

    kind: str
    axis: str
    n: int
    payload: int
    seconds: float


def link_samples(profile: ps.Profile, mesh: ps.MeshShape) -> list[Sample]:
    """Samples along single axes."""
    axes = {grouping([a], mesh): a for a, n in enumerate(mesh.sizes) if n > 1}
    return [
        Sample(c.kind, mesh.names[axes[c.group]], c.devices, nbytes, seconds)
        for c in profile.collectives
        if c.group in axes and c.kind in ROUNDS
        for nbytes, seconds in zip(c.nbytes, c.seconds, strict=True)
    ]


def fit_link(samples: list[Sample], torus: bool = False) -> tuple[float, float]:
    """(bytes/s, seconds per hop) that give the smallest relative errors.

    Args:
      torus: whether devices are linked to their neighbours, and not by a switch.
    """
    rows, ones = [], []
    for s in samples:
        rounds = ROUNDS[s.kind]
        row = rounds * np.array([(s.n - 1) / s.n * s.payload, hops([s.n], torus)])
        rows.append(row / s.seconds)
        ones.append(1.0)
    (beta, alpha), *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    if alpha <= 0 or beta <= 0:  # all latency or all bandwidth: fit the one that is there
        column = 0 if alpha <= 0 else 1
        a = np.array(rows)[:, column]
        value = float(a.sum() / (a * a).sum())
        beta, alpha = (value, 0.0) if column == 0 else (1e-15, value)
    return 1.0 / float(beta), float(alpha)


def known(kind: str) -> ps.Machine:
    """The machine of a device kind, for what cannot be measured: what its compiler fuses, stores
    and overlaps, and how devices are linked; of unknown kinds nothing of it is assumed.
    """
    try:
        return machine_of_kind(kind)
    except ValueError:
        return dataclasses.replace(ps.MACHINES["cpu"], traits=ps.XlaTraits())


def profiled(mesh: Any) -> ps.Profile:
    """Profile of the mesh's devices."""
    device = mesh.devices.flat[0]
    like = known(device.device_kind)
    compiler = "libtpu" if device.platform == "tpu" else "jaxlib"
    shape = ps.MeshShape(tuple(mesh.axis_names), tuple(mesh.axis_sizes))
    kib = [int(k) for k in FLAGS.kib]
    links = measure.measured_collectives(mesh, kibibytes=kib, repeats=FLAGS.repeats)
    total = len(measure.groups_of(shape)) * len(measure.COLLECTIVES)
    collectives = tuple(track(links, "collectives", total=total))
    products = measure.measured_products(mesh, FLAGS.dtypes, repeats=FLAGS.repeats)
    total = len(measure.product_shapes(clock_of(mesh))) * len(FLAGS.dtypes)
    return dataclasses.replace(
        ps.Profile.empty(like.name, compiler),
        rates=measure.measured_rates(mesh, repeats=FLAGS.repeats),
        collectives=collectives,
        products=tuple(track(products, "products", total=total)),
    )


def machine_of(profile: ps.Profile, mesh: Any) -> ps.Machine:
    """Machine with a bandwidth and a latency per axis, and the rate of the largest product."""
    kind = mesh.devices.flat[0].device_kind
    like = known(kind)
    shape = ps.MeshShape(tuple(mesh.axis_names), tuple(mesh.axis_sizes))
    axes_text = ",".join(f"{n}:{size}" for n, size in zip(shape.names, shape.sizes, strict=True))
    samples = link_samples(profile, shape)
    axes = {s.axis for s in samples}
    links = {a: fit_link([s for s in samples if s.axis == a], like.torus) for a in axes}
    is_known = machine_name(kind) not in ("", "cpu")
    stats = {} if is_known else mesh.devices.flat[0].memory_stats() or {}
    slowest = min(links.values(), default=(1e12, 1e-6))
    largest = {p.dtype: p.flops_per_s for p in profile.products if min(p.shape[1:]) >= 1024}
    narrow = largest.get("bfloat16", largest["float32"])
    rates: dict[str, Any] = dict(profile.rates)
    return dataclasses.replace(
        like,
        name=f"calibrated {kind}",
        flops_per_s={**largest, "default": narrow},
        hbm_bytes=like.hbm_bytes if is_known else int(stats.get("bytes_limit", 2 * 2**30)),
        link_bytes_per_s=slowest[0],
        hop_seconds=slowest[1],
        matmul_efficiency=1.0,
        matmul_efficiencies={},
        hbm_efficiency=1.0,
        axis_bytes_per_s={a: b for a, (b, _) in links.items()},
        axis_hop_seconds={a: h for a, (_, h) in links.items()},
        sources=(f"experiments.calibrate, jax {jax.__version__}, mesh {axes_text}",),
        **rates,
    )


def main(argv: list[str]) -> None:
    del argv
    shape = ps.MeshShape.parse(FLAGS.mesh)
    types = (AxisType.Auto,) * len(shape.device_names)
    mesh = jax.make_mesh(shape.device_sizes, shape.device_names, axis_types=types)
    profile = profiled(mesh)
    width = min(110, os.get_terminal_size().columns) if sys.stdout.isatty() else 110
    console = Console(width=width)
    console.print(profile)
    machine = machine_of(profile, mesh)
    for axis, bandwidth in machine.axis_bytes_per_s.items():
        hop = machine.axis_hop(axis)
        console.print(f"{axis}: {bandwidth / 1e9:.3g} GB/s, {hop * 1e6:.3g} us per hop")
    if FLAGS.profile:
        profile.save(FLAGS.profile)
    if FLAGS.out:
        machine.save(FLAGS.out)


if __name__ == "__main__":
    app.run(main)
