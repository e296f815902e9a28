"""Compilation for TPUs that ends at the buffer assignment, before code generation.

XLA:TPU dumps the scheduled program and the buffer assignment after a tenth of the compilation or
less; code generation, the rest, adds the cycles of kernels. A separate process compiles, and is
ended as soon as the dumps are there.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import export
from jax.sharding import Mesh

from partir_search.aot import early_worker
from partir_search.aot.buffers import BufferSizes, buffer_sizes
from partir_search.aot.targets import LIBTPU, Target

WORKER = str(early_worker.__file__)
# jax does not promise that these custom calls mean the same in another version. The process runs
# this one.
CUSTOM_CALLS = ("LayoutConstraint",)
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
TEXT = ".after_optimizations_after_buffer_assignment.txt"  # the last dump before code generation
BUFFERS = ".after_optimizations.hlo.pb"
SECONDS_BETWEEN_LOOKS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduled:
    """A program up to the buffer assignment.

    Attributes:
      text: optimized and scheduled program, without cycles.
      sizes: bytes of buffers.
    """

    text: str
    sizes: BufferSizes


def scheduled(
    jitted: Any, structs: Sequence[Any], donated: tuple[int, ...], target: Target, mesh: Mesh
) -> Scheduled | None:
    """The scheduled program of a function for a TPU.

    Args:
      jitted: function under `jax.jit` with shardings on `mesh`.
      structs: shapes, types and shardings of the arguments.
      donated: positions of donated arguments.

    Returns:
      The program; None if another process cannot take the function (callbacks, for example), the
      compiler refuses it, or writes other dumps. The full compilation tells.
    """
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in CUSTOM_CALLS]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            exported = export.export(jitted, platforms=["tpu"], disabled_checks=checks)(*structs)
            request = {
                "exported": dataclasses.replace(exported, _get_vjp=None),  # a function
                "topology": target.topology_name,
                "axes": mesh.axis_names,
                "devices": np.vectorize(lambda device: device.id)(mesh.devices),
                "donated": donated,
                "options": target.compiler_options | dump_options(folder),
            }
            (folder / "request").write_bytes(pickle.dumps(request))
        except (NotImplementedError, ValueError, TypeError, AttributeError, pickle.PicklingError):
            return None
        process = subprocess.Popen(
            [sys.executable, "-P", WORKER, str(folder / "request")],
            env=LIBTPU | os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while process.poll() is None and not _written(folder):
                time.sleep(SECONDS_BETWEEN_LOOKS)
            return _read(folder)
        finally:
            process.kill()
            process.wait()


def dump_options(folder: pathlib.Path) -> dict[str, Any]:
    """Options of XLA for dumps as text and as protobufs."""
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_proto": True,
    }


def _file(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    return next(iter(sorted(folder.glob(f"*.jit_run.*{name}"))), None)


def _written(folder: pathlib.Path) -> bool:
    """True if both dumps are complete: the text is written last, up to its closing brace."""
    text = _file(folder, TEXT)
    return (
        _file(folder, BUFFERS) is not None
        and text is not None
        and text.read_bytes()[-8:].rstrip().endswith(b"\n}")
    )


def _read(folder: pathlib.Path) -> Scheduled | None:
    text, buffers = _file(folder, TEXT), _file(folder, BUFFERS)
    if text is None or buffers is None:
        return None
    try:
        return Scheduled(text.read_text(), buffer_sizes(buffers.read_bytes()))
    except (ValueError, KeyError):
        return None
