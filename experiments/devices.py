"""Virtual CPU devices for demos. Import before anything that imports jax."""

from __future__ import annotations

import math
import os
import sys


def use_cpu_devices(argv: list[str] | None = None, default_mesh: str = "batch:2,model:4") -> None:
    """Sets the environment for as many CPU devices as `--mesh` in the arguments asks for, or this
    process's share of them where there is `--num_processes`.

    `NPROC` makes XLA:CPU's thread pool large enough for collectives among virtual devices:
    with two cores many steps in flight can otherwise wait for each other for ever.
    """
    given = sys.argv if argv is None else argv
    try:
        mesh = _flag(given, "mesh", default_mesh)
        count = math.prod(int(part.split(":")[1]) for part in mesh.split(","))
        count = max(1, count // int(_flag(given, "num_processes", "1")))
    except (IndexError, ValueError):
        count = 8  # the flag's own parser explains what is wrong with it
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        flags = f"{flags} --xla_force_host_platform_device_count={count}"
        flags += " --xla_cpu_collective_call_terminate_timeout_seconds=300"
        os.environ["XLA_FLAGS"] = flags.strip()
    os.environ.setdefault("NPROC", str(max(16, 2 * count)))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _flag(argv: list[str], name: str, default: str) -> str:
    """A flag's value, before any parser runs."""
    for i, arg in enumerate(argv):
        if arg.startswith(f"--{name}="):
            default = arg.split("=", 1)[1]
        elif arg == f"--{name}" and i + 1 < len(argv):
            default = argv[i + 1]
    return default
