"""Ahead-of-time compilations in processes of their own, in full or up to the buffer assignment.

XLA:TPU dumps the scheduled program and the buffer assignment after a tenth of the compilation or
less; code generation, the rest, adds the cycles of kernels. A process ends as soon as what it is
for is there: peak memory before code generation, cycles after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
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

from partir_search.aot import worker
from partir_search.aot.buffers import BufferSizes, buffer_sizes
from partir_search.aot.targets import TPUS, Target

WORKER = str(worker.__file__)
# jax does not promise that these custom calls mean the same in another version. The process runs
# this one.
CUSTOM_CALLS = ("LayoutConstraint",)
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
TEXT = ".after_optimizations_after_buffer_assignment.txt"  # the last dump before code generation
BUFFERS = ".after_optimizations.hlo.pb"
AFTER_CODE = ".after_codegen.txt"
SECONDS_BETWEEN_LOOKS = 0.05
NOT_GIVEN = float("nan")
Free = tuple[tuple[int, ...], tuple[int, ...]]
NOTHING_FREE: Free = ((), ())
REASON_LENGTH = 400  # characters of a compiler's message


class NotCompiled(RuntimeError):
    """A program without a result of the compiler; the message has the compiler's reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledProgram:
    """Figures of a compiled program, on one device.

    Attributes:
      text: optimized and scheduled program.
      peak_bytes / argument_bytes: as of the compiler's memory analysis.
      flops: NaN if the compiler gives none.
      complete: code was generated; else the text has no cycles, and flops are not given.
      temp_bytes: without arguments and results; None before code generation.
      main_bytes: peak of main memory, by the buffer assignment; None if that was not read. The
        compiler's peak may be that of memory on the chip.
    """

    text: str
    peak_bytes: int
    argument_bytes: int
    flops: float
    complete: bool
    temp_bytes: int | None = None
    main_bytes: int | None = None


class Compilation:
    """Compilation of a function for a target in a process of its own.

    A context manager: at the end the process is killed and its files are removed.
    """

    def __init__(
        self,
        jitted: Any,
        structs: Sequence[Any],
        donated: tuple[int, ...],
        target: Target,
        mesh: Mesh,
        *,
        cycles: bool,
        free: Free = NOTHING_FREE,
    ) -> None:
        """Exports the function and starts the process.

        Args:
          jitted: function under `jax.jit` with shardings on `mesh`.
          structs: shapes, types and shardings of the arguments.
          donated: positions of donated arguments.
          target: machine and topology.
          mesh: mesh of the target's devices.
          cycles: generate code; else TPU compilations are ready at the buffer assignment.
          free: positions of arguments, and of results, with layouts chosen by the compiler.

        Raises:
          NotCompiled: another process cannot take the function (callbacks, for example).
        """
        self._stops_early = target.name in TPUS and not cycles
        self._kept = tempfile.TemporaryDirectory(prefix="partir_search_")
        self._folder = pathlib.Path(self._kept.name)
        self._begin = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._peak: int | None = None
        try:
            self._start(jitted, structs, donated, target, mesh, free)
        except BaseException:
            self._kept.cleanup()
            raise

    def _start(
        self,
        jitted: Any,
        structs: Sequence[Any],
        donated: tuple[int, ...],
        target: Target,
        mesh: Mesh,
        free: Free,
    ) -> None:
        checks = [export.DisabledSafetyCheck.custom_call(name) for name in CUSTOM_CALLS]
        dumps = dump_options(self._folder) if target.name in TPUS else {}
        request = self._folder / "request"
        try:
            exported = export.export(
                jitted, platforms=[target.topology_arguments["platform"]], disabled_checks=checks
            )(*structs)
            data = {
                "exported": dataclasses.replace(exported, _get_vjp=None),  # a function
                "topology": target.topology_arguments,
                "axes": mesh.axis_names,
                "devices": np.vectorize(lambda device: device.id)(mesh.devices),
                "donated": donated,
                "free": free,
                "options": target.compiler_options | dumps,
            }
            request.write_bytes(pickle.dumps(data))
        except (
            *(NotImplementedError, ValueError, TypeError, AttributeError),
            pickle.PicklingError,
        ) as error:
            raise NotCompiled(f"the program cannot be exported: {error}") from error
        with (self._folder / "messages").open("wb") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-P", WORKER, str(request)],
                env=target.environment | os.environ | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
            )

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the process and removes its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._kept.cleanup()

    @property
    def seconds(self) -> float:
        """Wall seconds since the export began."""
        return time.monotonic() - self._begin

    @property
    def ready(self) -> bool:
        """True if the result is there, or never will be: the process has ended."""
        assert self._process is not None
        return self._process.poll() is not None or (self._stops_early and self._scheduled)

    @property
    def _scheduled(self) -> bool:
        """True if both dumps are complete: the text is written last, up to its closing brace."""
        text = self._file(TEXT)
        return (
            self._file(BUFFERS) is not None
            and text is not None
            and text.read_bytes()[-8:].rstrip().endswith(b"\n}")
        )

    @functools.cached_property
    def _sizes(self) -> BufferSizes:
        buffers = self._file(BUFFERS)
        assert buffers is not None
        return buffer_sizes(buffers.read_bytes())

    def peak_bytes(self) -> int | None:
        """Peak bytes by the buffer assignment; None before it, or if the compiler dumps none."""
        if self._peak is None and self._scheduled:
            with contextlib.suppress(ValueError, KeyError):
                self._peak = self._sizes.peak
        return self._peak

    def result(self) -> CompiledProgram:
        """The compiled program, once `ready`.

        Raises:
          NotCompiled: the process has failed, or the compiler writes other dumps.
        """
        figures = self._folder / worker.FIGURES
        if figures.exists():
            data = json.loads(figures.read_text())
            flops = NOT_GIVEN if data["flops"] is None else data["flops"]
            peak, arguments, temp = (
                data[name] for name in ("peak_bytes", "argument_bytes", "temp_bytes")
            )
            return CompiledProgram(self._text(), peak, arguments, flops, True, temp)
        if not (self._stops_early and self._scheduled):
            raise NotCompiled(self._reason())
        text = self._file(TEXT)
        assert text is not None
        try:
            sizes = self._sizes
        except (ValueError, KeyError) as error:
            raise NotCompiled(f"the buffer assignment cannot be read: {error}") from error
        return CompiledProgram(
            text=text.read_text(),
            peak_bytes=sizes.peak,
            argument_bytes=sizes.arguments,
            flops=NOT_GIVEN,
            complete=False,
            main_bytes=sizes.main,
        )

    def _text(self) -> str:
        """Text of the complete program.

        jaxlib cannot print some programs of libtpu for v5p (gathers on the SparseCore); their text
        is read from the compiler's dump.
        """
        for file in (self._folder / worker.TEXT, self._file(AFTER_CODE)):
            if file is not None and file.exists():
                return file.read_text()
        raise NotCompiled("the compiler's program cannot be printed")

    def _file(self, name: str) -> pathlib.Path | None:
        return next(iter(sorted(self._folder.glob(f"*.jit_run.*{name}"))), None)

    def _reason(self) -> str:
        """Last line of an error among the process's messages."""
        assert self._process is not None
        lines = (self._folder / "messages").read_text(errors="replace").splitlines()
        errors = [line.strip() for line in lines if "Error" in line or "flag" in line]
        found = (errors or [line.strip() for line in lines if line.strip()] or ["no message"])[-1]
        return f"exit status {self._process.returncode}: {found[:REASON_LENGTH]}"


def dump_options(folder: pathlib.Path) -> dict[str, Any]:
    """Options of XLA for dumps as text and as protobufs."""
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_as_proto": True,
    }


def scheduled(
    jitted: Any, structs: Sequence[Any], donated: tuple[int, ...], target: Target, mesh: Mesh
) -> CompiledProgram | None:
    """Program up to the buffer assignment; arguments are those of `Compilation`.

    None if another process cannot take the function, the compiler refuses it, or writes other
    dumps. The full compilation tells.
    """
    try:
        with Compilation(jitted, structs, donated, target, mesh, cycles=False) as running:
            while not running.ready:
                time.sleep(SECONDS_BETWEEN_LOOKS)
            return running.result()
    except NotCompiled:
        return None
