"""Process that compiles an exported program for a TPU topology, until it is ended from outside.

Runs as a script with a file as its argument: a pickled `Request`-like dict, read from a file that
the parent process wrote. Only jax is imported, so that the start takes about a second.
"""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh


def main(file: str) -> None:
    """Compiles the program of a request.

    Args:
      file: a pickled dict with `exported` (a `jax.export.Exported`), `topology` (``v5e:2x4``),
        `axes` (names of the mesh), `devices` (ids in an array of the mesh's shape), `donated`
        (positions of arguments), and `options` of the compiler.
    """
    request = pickle.loads(pathlib.Path(file).read_bytes())
    found = topologies.get_topology_desc(platform="tpu", topology_name=request["topology"])
    by_id: dict[int, Any] = {device.id: device for device in list[Any](found.devices)}
    mesh = Mesh(np.vectorize(by_id.__getitem__)(request["devices"]), request["axes"])
    program = request["exported"]

    def run(*args: Any) -> Any:
        return program.call(*args)

    jitted = jax.jit(
        run,
        donate_argnums=request["donated"],
        keep_unused=True,
        in_shardings=program.in_shardings_jax(mesh),
        out_shardings=program.out_shardings_jax(mesh),
    )
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
    jitted.lower(*structs).compile(compiler_options=request["options"])


if __name__ == "__main__":
    main(sys.argv[1])
