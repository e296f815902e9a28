"""Weights read by ops, as paths of modules.

The module of the argument `params/layers/0/mlp/w1` is `params/layers/0/mlp`. A value made of
weights alone (a cast, a transpose) is read as the weights.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from partir_search.ir.core import Module, Op, TensorType

Path = tuple[str, ...]
INDEX_BYTES = 4  # integers of this size or larger are data, smaller ones quantised weights


class WeightReads:
    """Ops combining weights with activations.

    Attributes:
      modules: by op id, the module of the weights read; absent for ops without.
      still: ids of values made of weights and constants alone.
    """

    def __init__(self, module: Module) -> None:
        self.modules: dict[int, Path] = {}
        self._source = _argument_modules(module)
        self.still = {*self._source, *module.constants}
        self._leaves = collections.Counter(path[0] for path in self._source.values())
        self._visit(module.body.ops)

    def _visit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            inputs = [v.id for _, v in op.inputs()]
            read = [self._source[v] for v in inputs if v in self._source]
            holder = max((path[0] for path in read), key=self._leaves.__getitem__, default="")
            common = common_path([path for path in read if path[0] == holder])
            if all(v in self.still for v in inputs) and not op.effect:
                for r in op.results:
                    self.still.add(r.id)
                    if common:
                        self._source[r.id] = common
            elif common:
                self.modules[op.id] = common
            self._enter(op)

    def _enter(self, op: Op) -> None:
        """Visits regions; a region's argument is read as the operand passed."""
        for region in op.regions:
            if len(region.args) == len(op.operands):
                passed = {v.id: region.args[i].id for i, v in op.inputs()}
                self.still.update(arg for v, arg in passed.items() if v in self.still)
                self._source.update(
                    {arg: self._source[v] for v, arg in passed.items() if v in self._source}
                )
            self._visit(region.ops)


def common_path(paths: Sequence[Path]) -> Path:
    """Longest common prefix; () of no paths."""
    if not paths:
        return ()
    first, last = min(paths), max(paths)
    n = 0
    while n < len(first) and first[n : n + 1] == last[n : n + 1]:
        n += 1
    return first[:n]


def _argument_modules(module: Module) -> dict[int, Path]:
    """Modules of possible weights among the arguments, by value id.

    A last key common to all paths (`value` of flax nnx) is no leaf, except in a list.
    """
    parts = {
        v.id: tuple(path.split("/"))
        for path, v in zip(module.arg_paths, module.body.args, strict=True)
        if _may_be_weight(v.type)
    }
    shared = len({path[-1] for path in parts.values()}) == 1 and len(parts) > 1
    listed = any("".join(path[-2:-1]).isdecimal() for path in parts.values())
    drop = 2 if shared and not listed else 1
    return {v: path[:-drop] for v, path in parts.items() if len(path) > drop}


def _may_be_weight(type_: TensorType) -> bool:
    kind: str = getattr(type_.dtype, "kind", "")
    return bool(kind) and (kind not in "iub" or (kind != "b" and type_.itemsize < INDEX_BYTES))
