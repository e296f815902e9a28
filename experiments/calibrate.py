"""Measures the devices and links at hand, and writes them as a machine to plan with.

    python -m experiments.calibrate --mesh=batch:2,model:4 --out=here.json
    ... auto_partition(mesh, machine="here.json")

All devices work at once, as in a step. Rates: a large matrix product, a long elementwise pass, a
chain of small kernels. Links: all_reduce, all_gather and reduce_scatter along each axis at several
sizes, to which alpha (seconds per hop) and bandwidth are fitted. Runs on 8 CPU devices if there is
no accelerator (`--platform=cpu`, the default; `--platform=` takes what jax finds).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from experiments.devices import use_cpu_devices

if not any(arg.startswith("--platform") and arg != "--platform=cpu" for arg in sys.argv):
    use_cpu_devices()

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from partir_search.simulator.target.machine import machine_of_kind
from partir_search.simulator.time.collectives import collective_seconds, hops

FLAGS = flags.FLAGS
planning_flags.define(mesh="batch:2,model:4")
flags.DEFINE_string("platform", "cpu", "cpu for virtual devices; empty for what jax finds.")
flags.DEFINE_integer("width", 1024, "Side of the matrix product.")
flags.DEFINE_list("kib", ["64", "256", "1024", "4096"], "Payloads of the collectives.")
flags.DEFINE_integer("repeats", 7, "Runs of each; their median counts.")
flags.DEFINE_string("out", None, "File for the machine.")

KINDS: dict[str, tuple[int, Callable[[Any, str], Any]]] = {  # rounds of a ring, what runs
    "all_reduce": (2, lax.psum),
    "all_gather": (1, lambda x, a: lax.all_gather(x, a, tiled=True)),
    "reduce_scatter": (1, lambda x, a: lax.psum_scatter(x, a, tiled=True)),
}
CHAIN = 200  # small kernels one after the other
ROW = 8  # runs of anything else one after the other: starting a program is not what is measured


def seconds(body: Callable[[Any], Any], shape: tuple[int, ...], mesh: Any, dtype: Any) -> float:
    """Median seconds of `body` on a local array of that shape, on all devices at once."""
    spec = PartitionSpec(mesh.axis_names)

    def row(*xs: Any) -> list[Any]:
        out, last = [], None
        for x in xs:
            if last is not None:
                x, last = lax.optimization_barrier((x, last))
            last = body(x)
            out.append(last)
        return out

    run = jax.jit(jax.shard_map(row, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    whole = (shape[0] * mesh.size, *shape[1:])
    xs = [
        jax.device_put(jnp.full(whole, i + 1, dtype), NamedSharding(mesh, spec)) for i in range(ROW)
    ]
    jax.block_until_ready(run(*xs))
    times = []
    for _ in range(FLAGS.repeats):
        begin = time.perf_counter()
        jax.block_until_ready(run(*xs))
        times.append((time.perf_counter() - begin) / ROW)
    return statistics.median(times)


def chain(x: Any) -> Any:
    return lax.fori_loop(0, CHAIN, lambda _, v: jnp.sin(v), x)


def rates(mesh: Any) -> dict[str, Any]:
    """Attained rates, which the machine then states as peaks with an efficiency of 1."""
    n = FLAGS.width
    products = {
        name: 2 * n**3 / seconds(lambda x: x @ x, (n, n), mesh, dtype)
        for name, dtype in (("float32", jnp.float32), ("bfloat16", jnp.bfloat16))
    }
    elements = 4 * n * n
    spent = seconds(lambda x: x * 2 + 1, (elements,), mesh, jnp.float32)
    small = seconds(chain, (8,), mesh, jnp.float32)
    return {
        "flops_per_s": {"default": products["bfloat16"], "float32": products["float32"]},
        "hbm_bytes_per_s": 8 * elements / spent,
        "kernel_seconds": small / CHAIN,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One measured collective; `payload` in bytes on a device, the larger side."""

    kind: str
    axis: str
    n: int
    payload: int
    seconds: float


def _collective(kind: str, axis: str, x: Any) -> Any:
    return KINDS[kind][1](x, axis)


def link_samples(mesh: Any) -> list[Sample]:
    wanted = [
        (kind, axis, n, int(kib) * 1024)
        for axis, n in mesh.shape.items()
        if n > 1
        for kind in KINDS
        for kib in FLAGS.kib
    ]
    out = []
    for kind, axis, n, payload in track(wanted, "collectives"):
        elements = payload // 4 // (n if kind == "all_gather" else 1)
        body = functools.partial(_collective, kind, axis)
        out.append(Sample(kind, axis, n, payload, seconds(body, (elements,), mesh, jnp.float32)))
    return out


def fit_link(samples: list[Sample], torus: bool = False) -> tuple[float, float]:
    """(bytes/s, seconds per hop) that give the smallest relative errors.

    Args:
      torus: whether devices are linked to their neighbours, and not by a switch.
    """
    rows, ones = [], []
    for s in samples:
        rounds = KINDS[s.kind][0]
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


def calibrate(mesh: Any) -> tuple[ps.Machine, list[Sample]]:
    """The machine of the mesh's devices, and what it was fitted to."""
    kind = mesh.devices.flat[0].device_kind
    samples = link_samples(mesh)
    like = known(kind)
    axes = {s.axis for s in samples}
    links = {a: fit_link([s for s in samples if s.axis == a], like.torus) for a in axes}
    stats = mesh.devices.flat[0].memory_stats() or {}
    slowest = min(links.values(), default=(1e12, 1e-6))
    machine = dataclasses.replace(
        like,
        name=f"calibrated {kind}",
        hbm_bytes=int(stats.get("bytes_limit", 2 * 2**30)),
        link_bytes_per_s=slowest[0],
        hop_seconds=slowest[1],
        matmul_efficiency=1.0,
        hbm_efficiency=1.0,
        axis_bytes_per_s={a: b for a, (b, _) in links.items()},
        axis_hop_seconds={a: h for a, (_, h) in links.items()},
        sources=(f"experiments.calibrate, jax {jax.__version__}, mesh {FLAGS.mesh}",),
        **rates(mesh),
    )
    return machine, samples


def main(argv: list[str]) -> None:
    del argv
    shape = ps.MeshShape.parse(FLAGS.mesh)
    types = (AxisType.Auto,) * len(shape.device_names)
    mesh = jax.make_mesh(shape.device_sizes, shape.device_names, axis_types=types)
    machine, samples = calibrate(mesh)
    console = Console(
        width=min(110, os.get_terminal_size().columns) if sys.stdout.isatty() else 110
    )
    table = Table(title=f"{machine.name}: collectives, milliseconds", title_justify="left")
    for column in ("axis", "kind", "KiB", "measured", "fitted", "ratio"):
        table.add_column(column, justify="right")
    for s in samples:
        fitted = collective_seconds(s.kind, s.payload, shape.axes(s.axis), shape, machine)
        times = (f"{s.seconds * 1e3:.3f}", f"{fitted * 1e3:.3f}", f"{fitted / s.seconds:.2f}")
        table.add_row(s.axis, s.kind, f"{s.payload // 1024}", *times)
    console.print(table)
    for axis, bandwidth in machine.axis_bytes_per_s.items():
        hop = machine.axis_hop(axis)
        console.print(f"{axis}: {bandwidth / 1e9:.3g} GB/s, {hop * 1e6:.3g} us per hop")
    flops = ", ".join(f"{k} {v / 1e12:.3g}" for k, v in machine.flops_per_s.items())
    console.print(f"products, TFLOP/s: {flops}; memory {machine.hbm_bytes_per_s / 1e9:.3g} GB/s;")
    console.print(f"{machine.kernel_seconds * 1e6:.3g} us per kernel")
    if FLAGS.out:
        machine.save(FLAGS.out)


if __name__ == "__main__":
    app.run(main)
