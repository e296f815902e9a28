"""Cost tables against the simulator: exact where linearised, and never above as a bound.

    python -m experiments.cost_tables --states=1000

For random states of each program on each mesh and machine. Exits with 1 if a linearised cost is off
by more than 0.05 %, or a bound above the simulator's cost by as much.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from absl import app, flags
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments.random_states import game_of_model, random_partitions, ratios
from partir_search.ir.mesh import MeshShape
from partir_search.simulator.tables.tables import CostTables

PROGRAMS = (
    *("transformer-small@64", "moe-tiny@4096", "dlrm-tiny@8192", "gpt-scan-tiny@512"),
    *("graph-net-tiny@64", "t5-tiny@2048", "resnet-tiny@512", "ssm-tiny@512"),
)
NEAR = 5e-4

FLAGS = flags.FLAGS
flags.DEFINE_list("programs", list(PROGRAMS), "Models of the catalog with their batch.")
flags.DEFINE_list("meshes", ["4x2", "8x8"], "Sizes of the axes data and model.")
flags.DEFINE_list("machines", ["tpu_v5e", "tpu_v5p", "h100"], "Machines by name.")
flags.DEFINE_integer("states", 100, "Random states of each.")
flags.DEFINE_integer("seed", 0, "Seed of the states.")
flags.DEFINE_string("json", None, "File for the figures.")


def measured(program: str, sizes: str, machine: str) -> dict[str, Any]:
    """Figures of one program on one mesh and machine."""
    name, batch = program.split("@")
    mesh = MeshShape(("data", "model"), tuple(map(int, sizes.split("x"))))
    game = game_of_model(name, int(batch), mesh, ps.MACHINES[machine])
    begin = time.process_time()
    tables = CostTables(game.graph, game.model, game.mesh, game.state)
    tables.ordered(tuple(range(len(game.mesh.sizes))))
    spent = time.process_time() - begin
    found = ratios(game, tables, random_partitions(game, FLAGS.states, FLAGS.seed))
    at = [float(r.at) for r in found]
    below = [float(b) for r in found for b in r.below]
    return {
        "program": name,
        "mesh": sizes,
        "machine": machine,
        "states": len(found),
        "other_order": sum(list(r.order) != sorted(r.order) for r in found),
        "variables": len(tables.variables.sets),
        "labels": sum(tables.variables.sizes),
        "seconds": round(spent, 2),
        "at": [min(at), statistics.median(at), max(at)],
        "off": sum(abs(x - 1.0) > NEAR for x in at),
        "below": [min(below), statistics.median(below), max(below)],
        "violations": sum(x > 1.0 + NEAR for x in below),
    }


def main(_: Any) -> None:
    rows = []
    for program in FLAGS.programs:
        for sizes in FLAGS.meshes:
            for machine in FLAGS.machines:
                rows.append(measured(program, sizes, machine))
                Console().print_json(json.dumps(rows[-1], indent=None))
    table = Table(title="Tables over simulator: smallest, median, largest")
    heads = ("program", "mesh", "machine", "states", "at", "off", "below", "violations")
    for head in heads:
        table.add_column(head)
    for row in rows:
        figures = {k: " ".join(f"{x:.4f}" for x in row[k]) for k in ("at", "below")}
        table.add_row(*(str(figures.get(head, row[head])) for head in heads))
    Console(width=140).print(table)
    if FLAGS.json:
        with open(FLAGS.json, "w") as file:
            json.dump(rows, file, indent=1)
    sys.exit(any(row["off"] or row["violations"] for row in rows))


if __name__ == "__main__":
    app.run(main)
