"""Several processes as one: the flags and what they set up. On TPU pods and under Slurm none of the
flags is needed beyond `--cluster`, as jax finds its peers itself.
"""

from __future__ import annotations

import os
import sys

import jax
from absl import flags

FLAGS = flags.FLAGS
SCRIPT = {"module_name": sys.argv[0]}  # whose --help shows them
flags.DEFINE_boolean(
    "cluster", False, "Join the processes that jax finds (TPU pods, Slurm).", **SCRIPT
)
flags.DEFINE_string(
    "coordinator", None, "host:port of process 0, where jax cannot find it.", **SCRIPT
)
flags.DEFINE_integer("num_processes", 1, "Processes in all, with --coordinator.", **SCRIPT)
flags.DEFINE_integer("process_id", 0, "This process, with --coordinator.", **SCRIPT)
flags.DEFINE_integer(
    "heartbeat_timeout", 100, "Seconds after which a silent process is dead.", **SCRIPT
)


def join_cluster() -> None:
    """Initialises `jax.distributed` as the flags say; before jax touches a device.

    A process that dies is noticed by its peers, which end with a message that names it.
    """
    if not FLAGS.cluster and FLAGS.coordinator is None:
        return
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    peers = (None, None, None)
    if FLAGS.coordinator is not None:
        peers = (FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id)
    jax.distributed.initialize(*peers, heartbeat_timeout_seconds=FLAGS.heartbeat_timeout)


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0
