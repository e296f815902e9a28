"""Short names of values, unique within a scope.

The full name of a value is the path of its scope and a short name. In the block of `layer_0`, the
value `layer_0.norm.mul` is `%norm.mul`. The main value of a scope, the last one used by other
scopes in the same pass, has the scope's name: `%norm`. Names in the backward pass begin with `d_`.
An argument is named by its path; in the block of `layer_0`, `params.layer_0.w1` is `%w1`.
"""

from __future__ import annotations

import collections
import re

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.printing.paths import op_paths
from partir_search.ir.printing.weights import Path


class Names:
    """Full names of the values of a module, by id."""

    def __init__(self, module: Module) -> None:
        self.paths = op_paths(module)
        self.homes: list[Path] = [()] * len(module.values)
        self.arguments = {v.id for v in module.body.args}
        self._leaves = _Leaves(module, self.paths)
        for value in module.values:  # arguments and constants
            *home, short = value.name.split(".")
            self.homes[value.id] = (*home, short)
        taken: collections.Counter[Path] = collections.Counter()
        mains = self._leaves.mains()
        for op in module.ops:
            path = self.paths[op.id]
            for region in op.regions:
                self._region(region, op, path)
            for result in op.results:
                main = mains.get(result.id, 0)
                mark = "d_" if op.backward else ""
                stem = (*path[: main - 1], mark + path[main - 1]) if main else None
                full = stem or (*path, f"{mark}{op.prim}")
                count, taken[full] = taken[full], taken[full] + 1
                self.homes[result.id] = (*full[:-1], f"{full[-1]}_{count}") if count else full

    def _region(self, region: Region, op: Op, path: Path) -> None:
        """Names arguments of a region after the program's arguments passed to them."""
        paired = len(region.args) == len(op.operands)
        for i, arg in enumerate(region.args):
            operand = op.operands[i] if paired else None
            if isinstance(operand, Value) and operand.id in self.arguments:
                self.arguments.add(arg.id)
                self.homes[arg.id] = self.homes[operand.id]
            else:
                self.homes[arg.id] = (*path, arg.name.rpartition(".")[2])

    def in_block(self, block: Path) -> BlockNames:
        return BlockNames(self, block)


def printed_as(module: Module, text: str) -> list[tuple[str, Value]]:
    """(full name, value) of values with the full name `text` or a full name ending in `.text`."""
    homes = Names(module).homes
    full = [(".".join(homes[v.id]), v) for v in module.values]
    return [(name, v) for name, v in full if f".{name}".endswith(f".{text}")]


class _Leaves:
    """Scopes left by values on their way to users in the same pass."""

    def __init__(self, module: Module, paths: list[Path]) -> None:
        self.module, self.paths = module, paths

    def mains(self) -> dict[int, int]:
        """By value, length of the outermost path of which it is the main value."""
        uses, last = def_use(self.module), dict[tuple[Path, bool], int]()
        for op in self.module.ops:
            path = self.paths[op.id]
            for result in op.results if path else ():
                common = [
                    _common(path, self.paths[u.id])
                    for u in uses.users[result.id]
                    if u.backward == op.backward
                ]
                if result.id in uses.returned:
                    common.append(0)
                for k in range(min(common, default=len(path)) + 1, len(path) + 1):
                    last[path[:k], op.backward] = result.id
        found: dict[int, int] = {}
        for (path, _), value in last.items():
            found[value] = min(found.get(value, len(path)), len(path))
        return found


class BlockNames:
    """Names within a block, each of one value."""

    def __init__(self, names: Names, block: Path) -> None:
        self.names, self.block = names, block
        self._shown: dict[object, str] = {}
        self._taken: set[str] = set()

    def of(self, value: Value) -> str:
        found = self._shown.get(value.id)
        if found is None:
            full = self.names.homes[value.id]
            if value.id in self.names.arguments:
                found = self._unique(self._argument(full), full)
            else:
                k = min(_common(full, self.block), len(full) - 1)
                while k and full[k].removeprefix("d_").isdecimal():
                    k -= 1  # a number stays with the name of its list
                found = self._unique(full[k:], full)
            self._shown[value.id] = found
        return found

    def is_main(self, value: Value) -> bool:
        """True for the main value of the block."""
        *outer, last = self.names.homes[value.id]
        return bool(self.block) and (*outer, last.removeprefix("d_")) == self.block

    def slice_of(self, value: Value, key: object) -> str:
        """Name of a slice: `%xs` of `%x`."""
        found = self._shown.get((value.id, key))
        if found is None:
            found = self._free(_plural(self.of(value)).rpartition(".")[2])
            self._shown[value.id, key] = found
        return found

    def _argument(self, full: Path) -> Path:
        """Part of an argument's path after the block's own path, or all of it."""
        for j in range(len(self.block)):
            own = self.block[j:]
            for start in range(len(full) - len(own) - 1, -1, -1):
                if full[start : start + len(own)] == own:
                    return full[start + len(own) :]
        return full

    def _unique(self, short: Path, full: Path) -> str:
        for k in range(len(full) - len(short), -1, -1):
            text = ".".join(full[k:])
            if text not in self._taken:
                self._taken.add(text)
                return text
        return self._free(".".join(full))

    def _free(self, text: str) -> str:
        return free_name(text, self._taken)


class WholeNames:
    """Names of values in the whole program, and of their slices."""

    def __init__(self, module: Module) -> None:
        self._taken = set(module.value_names())
        self._slices: dict[object, str] = {}

    def of(self, value: Value) -> str:
        return value.name

    def slice_of(self, value: Value, key: object) -> str:
        """Name of a slice: `%layer_0.xs` of `%layer_0.x`."""
        found = self._slices.get((value.id, key))
        if found is None:
            found = self._slices[value.id, key] = free_name(_plural(value.name), self._taken)
        return found


def free_name(text: str, taken: set[str]) -> str:
    """`text`, with a number if taken; added to `taken`."""
    found, n = text, 0
    while found in taken:
        n += 1
        found = f"{text}_{n}"
    taken.add(found)
    return found


def _plural(name: str) -> str:
    """`layer.xs_1` of `layer.x_1`, and `ws_1` of an item `w.1` of a list."""
    *outer, short = name.split(".")
    if short.removeprefix("d_").isdecimal() and outer:
        short = f"{outer.pop()}_{short}"
    stem, number = _NUMBERED.fullmatch(short).groups()  # type: ignore[union-attr]
    return ".".join([*outer, f"{stem}{'_s' if stem.endswith('s') else 's'}{number}"])


_NUMBERED = re.compile(r"(.*?)((?:_\d+)?)")  # matches any name


def _common(a: Path, b: Path) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
