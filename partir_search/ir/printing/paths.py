"""Paths of ops: modules and named scopes, from the name stack or from the weights read by ops.

Linen and `jax.named_scope` leave their names in jax's name stack. Programs of flax nnx, of equinox
and of nested parameters leave none: an op on the weight `params/layers/0/mlp/w1` belongs to
`layers/0/mlp`, an op between two of them to the innermost module with both. Ops between numbered
modules (`layers/0` and `layers/1`) are cut where the fewest values pass.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.core import Module, Op, Region, walk_regions
from partir_search.ir.printing.gaps import filled, layer_of
from partir_search.ir.printing.weights import Path, WeightReads, common_path
from partir_search.ir.rule import NONE
from partir_search.ir.source_names import scope_path


def op_paths(module: Module) -> list[Path]:
    """Path of each op, by id.

    Modules of weights stand before names of the name stack if most readers of weights have no
    name, and take their place if there are fewer names than layers (equinox names classes).
    """
    return module.analysis(_op_paths)


def _op_paths(module: Module) -> list[Path]:
    paths = [scope_path(op.scope) for op in module.ops]
    reads = WeightReads(module)
    passes = [ops for region in walk_regions(module.body) for ops in _passes(region)]
    homes = _homes(passes, reads.modules)
    names = [paths[op] for op in homes if paths[op]]
    named = 2 * len(names) >= len(homes)
    if named and len({*names}) >= len({layer_of(path) for path in homes.values()} - {()}):
        return paths
    program = {op.id for op in module.body.ops}
    for ops in passes:
        known = {op.id: homes[op.id] for op in ops if op.id in homes}
        outer = () if ops[0].id in program else common_path([*known.values()])
        for op, path in zip(ops, filled(ops, known, outer, reads.still), strict=True):
            paths[op.id] = path if path and named else path + paths[op.id]
    return paths


def _passes(region: Region) -> Iterator[list[Op]]:
    """Ops of the forward and of the backward pass, without the ops after both (the optimizer)."""
    last = max((i for i, op in enumerate(region.ops) if _has_backward(op)), default=NONE)
    for backward in (False, True):
        ops = [op for op in region.ops[: last + 1 or None] if op.backward == backward]
        if ops:
            yield ops


def _has_backward(op: Op) -> bool:
    return op.backward or any(_has_backward(inner) for r in op.regions for inner in r.ops)


def _homes(passes: Sequence[Sequence[Op]], modules: Mapping[int, Path]) -> dict[int, Path]:
    """Modules of the readers of weights, relative to the innermost module with all of them.

    Most ops read weights of one argument. Modules of a further argument (a second model's)
    hold ops outside of the first one's modules only: a cache is read inside.
    """
    read = {op.id: modules[op.id] for ops in passes for op in ops if op.id in modules}
    argument = collections.Counter(path[0] for path in read.values()).most_common(1)
    if not argument:
        return {}
    found = {op: path for op, path in read.items() if path[0] == argument[0][0]}
    root = common_path([*found.values()])
    held = collections.Counter(path[0] for path in {*read.values()})
    for ops in passes:
        before, waiting = root, list[int]()
        for op in ops:
            after = read.get(op.id)
            if after and after[0] == root[0]:
                if common_path([before, after]) == root:
                    found.update({i: read[i] for i in waiting})
                before, waiting = after, []
            elif after and held[after[0]] > 1:
                waiting.append(op.id)
        found.update({i: read[i] for i in waiting})
    begin = len(common_path([*found.values()]))
    if any("".join(path[begin : begin + 1]).isdecimal() for path in found.values()):
        begin -= 1  # the name of a list stays with its numbers
    return {op: path[begin:] for op, path in found.items()}
