"""Stand-ins for cluster commands: processes of this machine, joined by Slurm's variables."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import sys

ROOT = pathlib.Path(__file__).parent.parent

# `srun [options] command`: the command once per task, with the variables of Slurm.
SRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
tasks = int(os.environ["SLURM_NTASKS"])
started = [
    subprocess.Popen(words, env={{**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_NODES": str(tasks)}})
    for i in range(tasks)
]
sys.exit(max(abs(p.wait()) for p in started))
"""

# `gcloud compute tpus tpu-vm scp|ssh ...`: the command on each worker, in the home folder.
GCLOUD = """#!/usr/bin/env bash
set -e
test "$1 $2 $3" = "compute tpus tpu-vm"
case "$4" in
  scp) ln -sfn "{root}" "$HOME/partir_search" ;;
  ssh) for word in "$@"; do case "$word" in --command=*) command=${{word#--command=}} ;; esac; done
       cd "$HOME" && srun bash -c "$command" ;;
esac
"""

# `xpk workload create ... --command=...`: the command in each container's folder.
XPK = """#!/usr/bin/env bash
set -e
test "$1 $2" = "workload create"
for word in "$@"; do case "$word" in --command=*) command=${{word#--command=}} ;; esac; done
cd "{root}" && srun bash -c "$command"
"""

# Installs nothing; RECORD names a folder in which the words of each process are kept instead.
PYTHON = """#!{python}
import os, pathlib, sys
if sys.argv[1:3] == ["-m", "pip"]:
    sys.exit()
if folder := os.environ.get("RECORD"):
    record = pathlib.Path(folder, os.environ["SLURM_PROCID"])
    record.write_text("\\n".join([os.getcwd(), *sys.argv[1:]]))
    sys.exit()
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""


def cluster(folder: pathlib.Path, tasks: int = 2) -> dict[str, str]:
    """Environment in which the stand-ins are found, for `tasks` processes that share 8 devices."""
    texts = {"srun": SRUN, "gcloud": GCLOUD, "xpk": XPK, "python3": PYTHON}
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, text in texts.items():
        file = bin_folder / name
        file.write_text(text.format(python=sys.executable, root=ROOT))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    flags = f"--xla_force_host_platform_device_count={8 // tasks}"
    own = {name: value for name, value in os.environ.items() if name != "PYTHON"}  # of `make`
    return {
        **own,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "NPROC": "16",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "SLURM_JOB_ID": job(),
        "SLURM_NTASKS": str(tasks),
        "SLURM_JOB_NUM_NODES": str(tasks),
        "SLURM_SUBMIT_DIR": str(ROOT),
    }


def job() -> str:
    """A job number whose coordinator's port, 61440 plus the number modulo 4096 in jax, is free."""
    for number in range(os.getpid() % 4096, 2**13):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", number % 4096 + 61440))
            except OSError:
                continue
        return str(number)
    raise OSError("no port is free")
