"""Def-use analysis: makers and users of values, and positions of ops in regions."""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module, Op, Region, Value, walk_regions
from partir_search.ir.rule import NONE

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class RegionContents:
    """Values and ops of an op with regions, by id.

    Attributes:
      crossing: operands and results of the op, and arguments and results of its regions.
      inner: all remaining values of its regions, nested ones included.
      ops: the op and all ops inside.
    """

    crossing: Ints
    inner: Ints
    ops: Ints


class DefUse:
    """Makers and users of the values of a numbered module.

    Attributes:
      makers: by value id, the op that makes the value; None for arguments and constants.
      maker_ids: [values] ids of the makers, or NONE.
      users: by value id, the ops that read the value, in order, once per operand.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self.maker_ids = array("i", [NONE]) * len(module.values)
        makers: list[Op | None] = [None] * len(module.values)
        users: list[list[Op]] = [[] for _ in module.values]
        for op in module.ops:
            for r in op.results:
                self.maker_ids[r.id], makers[r.id] = op.id, op
            for _, v in op.inputs():
                users[v.id].append(op)
        self.makers: Sequence[Op | None] = makers
        self.users: Sequence[Sequence[Op]] = users
        self._around: dict[int, tuple[int, ...]] = {}
        self._arguments: dict[Region, dict[int, int]] = {}
        self._contents: dict[int, RegionContents] = {}

    @functools.cached_property
    def counts(self) -> array[int]:
        """[values] number of uses as operands and as results of regions."""
        found = array("i", [0]) * len(self._module.values)
        for op in self._module.ops:
            for _, value in op.inputs():
                found[value.id] += 1
        for region in walk_regions(self._module.body):
            for x in region.results:
                if isinstance(x, Value):
                    found[x.id] += 1
        return found

    @functools.cached_property
    def returned(self) -> frozenset[int]:
        """Ids of results of regions, the module's body included."""
        regions = walk_regions(self._module.body)
        return frozenset(x.id for r in regions for x in r.results if isinstance(x, Value))

    @functools.cached_property
    def members(self) -> dict[Region, Ints]:
        """Op ids of each region, in order."""
        return {
            region: np.array([op.id for op in region.ops], dtype=np.int64)
            for region in walk_regions(self._module.body)
        }

    @functools.cached_property
    def position(self) -> Ints:
        """[ops] position of each op in its region."""
        found = np.zeros(len(self._module.ops), dtype=np.int64)
        for ids in self.members.values():
            found[ids] = np.arange(len(ids))
        return found

    def arguments(self, region: Region) -> Mapping[int, int]:
        """Positions of a region's arguments, by value id."""
        found = self._arguments.get(region)
        if found is None:
            found = self._arguments[region] = {v.id: i for i, v in enumerate(region.args)}
        return found

    def around(self, op_id: int) -> tuple[int, ...]:
        """Ids of an op's operand values and results."""
        found = self._around.get(op_id)
        if found is None:
            op = self._module.ops[op_id]
            ids = [v.id for _, v in op.inputs()]
            found = self._around[op_id] = (*ids, *(r.id for r in op.results))
        return found

    def contents(self, op: Op) -> RegionContents:
        """Values and ops of an op with regions, all nested ones included."""
        found = self._contents.get(op.id)
        if found is None:
            regions = [r for region in op.regions for r in walk_regions(region)]
            ops = [op, *(o for r in regions for o in r.ops)]
            values = {v for o in ops for v in self.around(o.id)}
            values |= {v.id for r in regions for v in r.args}
            crossing = set(self.around(op.id))
            for r in op.regions:
                crossing |= {x.id for x in (*r.args, *r.results) if isinstance(x, Value)}
            found = self._contents[op.id] = RegionContents(
                np.array(sorted(crossing), dtype=np.int64),
                np.array(sorted(values - crossing), dtype=np.int64),
                np.array([o.id for o in ops], dtype=np.int64),
            )
        return found


def def_use(module: Module) -> DefUse:
    """Def-use analysis of the module, cached."""
    return module.analysis(DefUse)
