"""Reader of `shard_map`: one op between constraints on operands and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax.sharding import NamedSharding

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.manual import AxisNames, Manual, manual_names, spec_of
from partir_search.ir.reading import sharding_constraints
from partir_search.ir.reading.refs.regions import written
from partir_search.ir.reading.sharding_constraints import constrained

RegionAxes = Callable[[Any, Sequence[str]], AxisNames]
"""(mesh, names) to the axes of the program's mesh for axes of a region's mesh. Raises ValueError
with the reason if an axis has no counterpart."""


class Reader(sharding_constraints.Reader, Protocol):
    """Methods of the jaxpr reader used in this file.

    Attributes:
      manual_mesh: mesh of the outermost `shard_map` around the equation, or None.
    """

    manual_mesh: Any
    region_axes: RegionAxes
    constant_values: dict[int, tuple[Value, Any]]

    def op(self, eqn: Any, env: dict[Any, Operand], prefix: str) -> Op: ...

    def region_of(
        self, jaxpr: Any, names: Sequence[str] | None = None, scope: str = ""
    ) -> tuple[Region, dict[int, Any]]: ...


def same_names(_: Any, names: Sequence[str]) -> AxisNames:
    """`RegionAxes` of regions with the axis names of the program's mesh."""
    return {name: (name,) for name in names}


def read_manual(
    reader: Reader, eqn: Any, env: dict[Any, Operand], ops: list[Op], prefix: str
) -> None:
    """Appends the op of a `shard_map` to `ops`, with its constraints.

    The mesh of a nested region has no devices: axes are looked up on the outermost mesh.
    """
    p, around, names = eqn.params, reader.manual_mesh, manual_names(eqn.params)
    reader.manual_mesh = p["mesh"] if around is None else around
    op = reader.op(eqn, env, prefix)
    (body,) = op.regions or reader.region_of(p["jaxpr"], scope=f"{op.results[0].name}.")[:1]
    try:
        on = reader.region_axes(reader.manual_mesh, names)
    except ValueError as error:
        where = f" at {op.source}" if op.source else ""
        raise ValueError(f"the shard_map{where} {error}") from None
    reader.manual_mesh = around
    needs = p["in_specs"]
    makes = [*p["out_specs"], *(needs[eqn.invars.index(v)] for v in written(eqn))]
    manual = Manual(
        axes=tuple((name, p["mesh"].shape[name]) for name in names),
        on=tuple((name, on[name]) for name in names),
        needs=tuple(spec_of(s, x.type, on) for s, x in zip(needs, op.operands, strict=True)),
        makes=tuple(spec_of(s, r.type, on) for s, r in zip(makes, op.results, strict=True)),
        text=str(p["jaxpr"]),
        body=body,
        constants=dict(reader.constant_values.values()),
    )
    ins = [
        constrained(reader, op, ops, x, NamedSharding(p["mesh"], spec))
        for x, spec in zip(op.operands, needs, strict=True)
    ]
    made = tuple(Value(-1, r.type, f"{r.name}_made") for r in op.results)
    ops.append(
        dataclasses.replace(
            op,
            operands=tuple(ins),
            results=made,
            params={**op.params, "manual": manual},
            regions=(),
        )
    )
    for old, new, spec in zip(op.results, made, makes, strict=True):
        constrained(reader, op, ops, new, NamedSharding(p["mesh"], spec), old)
