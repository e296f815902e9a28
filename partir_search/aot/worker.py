"""Process that compiles an exported program ahead of time.

Runs as a script with a file as its argument: a pickled dict, read from a file that the parent
process wrote. Only jax is imported, so that the start takes about a second.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh

# Files beside the request, of a complete compilation. The second is written last.
TEXT, FIGURES = "compiled.txt", "figures.json"


def main(file: str) -> None:
    """Compiles the program of a request, and writes its text and figures.

    Args:
      file: a pickled dict with `exported` (a `jax.export.Exported`), `topology` (arguments of
        `topologies.get_topology_desc`), `axes` (names of the mesh), `devices` (ids in an array of
        the mesh's shape), `donated` (positions of arguments), `free` (positions of arguments, and
        of results, with layouts in memory chosen by the compiler), and `options` of the compiler.
    """
    request = pickle.loads(pathlib.Path(file).read_bytes())
    found = topologies.get_topology_desc(**request["topology"])
    by_id: dict[int, Any] = {device.id: device for device in list[Any](found.devices)}
    mesh = Mesh(np.vectorize(by_id.__getitem__)(request["devices"]), request["axes"])
    program = request["exported"]

    def run(*args: Any) -> Any:
        return tuple(jax.tree.leaves(program.call(*args)))

    jitted = jax.jit(
        run,
        donate_argnums=request["donated"],
        keep_unused=True,
        in_shardings=_formats(program.in_shardings_jax(mesh), request["free"][0]),
        out_shardings=_formats(program.out_shardings_jax(mesh), request["free"][1]),
    )
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
    compiled = jitted.lower(*structs).compile(compiler_options=request["options"])
    _write(pathlib.Path(file).parent, compiled)


def _formats(shardings: Any, free: tuple[int, ...]) -> tuple[Any, ...]:
    """Shardings, with the layouts of some positions chosen by the compiler."""
    chosen = set(free)
    return tuple(Format(Layout.AUTO, s) if i in chosen else s for i, s in enumerate(shardings))


def _write(folder: pathlib.Path, compiled: Any) -> None:
    """Writes the text of a compiled program, if jaxlib can print it, and its figures."""
    memory, analysis = compiled.memory_analysis(), compiled.cost_analysis() or {}
    figures = {
        "peak_bytes": memory.peak_memory_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "flops": analysis.get("flops"),
    }
    try:
        (folder / TEXT).write_text(compiled.as_text())
    except jax.errors.JaxRuntimeError:  # the parent reads the compiler's dump
        (folder / TEXT).unlink(missing_ok=True)
    (folder / f"{FIGURES}.part").write_text(json.dumps(figures))
    os.replace(folder / f"{FIGURES}.part", folder / FIGURES)


if __name__ == "__main__":
    main(sys.argv[1])
