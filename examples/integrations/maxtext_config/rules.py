"""Rules of a plan in the form of MaxText's `logical_axis_rules`.

    python rules.py before.yml --machine=tpu_v5e

A rule is a list of a logical name and a list of mesh axes; an empty list leaves the dim whole.
A free search may tile dims of one name differently, which rules cannot say. Here, an axis is given
to a name or taken from it, one at a time, as long as the simulated step gets faster. MaxText takes
the result with `override_logical_axis_rules: true`.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import flax.linen as nn
import jax
import jax.numpy as jnp
from train import Config, boxed_state, names_of, train_step

import partir_search as ps

Rules = dict[str, tuple[str, ...]]  # mesh axes by logical name
BATCH = ("activation_batch", None)


class Planner:
    """Plans of a config's model under rules: shapes only, no devices."""

    def __init__(self, config: Config, machine: str) -> None:
        sizes = [getattr(config, f"ici_{axis}_parallelism") for axis in config.mesh_axes]
        self.mesh = jax.sharding.AbstractMesh(tuple(sizes), tuple(config.mesh_axes))
        self.machine, self.config, self.names = machine, config, names_of(config)
        shape = config.global_batch_size, config.max_target_length + 1
        state = nn.unbox(jax.eval_shape(lambda: boxed_state(config)))
        self.args = state, jax.ShapeDtypeStruct(shape, jnp.int32)
        self.dims: dict[str, dict[str, int]] = collections.defaultdict(dict)  # by name and path
        named = jax.tree_util.tree_leaves_with_path((self.names, jax.P(*BATCH)))
        for keys, names in named:
            path = jax.tree_util.keystr(keys[1:], simple=True, separator="/")
            path = f"state/{path}" if keys[0].idx == 0 else "tokens"
            for dim, name in enumerate(names):
                if name is not None:
                    self.dims[name][path] = dim

    def plan(self, rules: Rules) -> ps.Plan:
        """Plan in which the dims of each name are tiled on its axes, and nothing is searched."""

        def step(state: Any, tokens: Any) -> Any:
            return train_step(self.config, state, tokens)

        schedule = [
            ps.ManualPartition(self.dims[name], axis=axis)
            for name, axes in rules.items()
            for axis in axes
        ]
        partition = ps.auto_partition(
            self.mesh, machine=self.machine, schedule=schedule, donate_argnums=0
        )
        return partition(step).plan(*self.args)

    def maxtext_rules(self, plan: ps.Plan) -> list[list[Any]]:
        """Rules in MaxText's form.

        Raises:
          ValueError: the plan tiles dims of one name differently.
        """
        found = plan.logical_axis_rules(self.names, "state")
        found += plan.logical_axis_rules(BATCH, "tokens")
        return [[n, [axes] if isinstance(axes, str) else list(axes or ())] for n, axes in found]


def improved(planner: Planner, rules: Rules) -> ps.Plan:
    """Plan that no single axis, given to a name or taken from it, makes faster."""
    best = planner.plan(rules)
    again = True
    while again:
        again = False
        for axis in planner.config.mesh_axes:
            for name, axes in list(rules.items()):
                other = tuple(a for a in axes if a != axis)
                tried = {**rules, name: other if axis in axes else (*axes, axis)}
                try:
                    plan = planner.plan(tried)
                    planner.maxtext_rules(plan)
                except (ValueError, ps.IllegalAction):
                    continue  # an axis twice in one array, or a name tiled in two ways
                if (not plan.fits, plan.cost.seconds) < (not best.fits, best.cost.seconds):
                    rules, best, again = tried, plan, True
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("words", nargs="*", help="name=value, in place of the file's")
    parser.add_argument("--machine", default="tpu_v5e")
    args = parser.parse_args()
    planner = Planner(Config(args.config, *args.words), args.machine)
    written = dict(planner.config.logical_axis_rules)
    written.update((name, ()) for name in planner.dims if name not in written)
    rules = {name: tuple(axes) for name, axes in written.items() if name in planner.dims}
    print(f"# rules of {args.config}: {planner.plan(rules).cost}")
    plan = improved(planner, rules)
    print(f"# found: {plan.cost}", *(f"{r}," for r in planner.maxtext_rules(plan)), sep="\n")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans that are tried and do not fit
        main()
