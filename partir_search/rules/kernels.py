"""Pallas kernels: a loop over the dims of a kernel's grid.

Each program of a grid reads and writes one block of each array, chosen by an index map. If a grid
dim is the index of the blocks along one dim of every result, and of the operands along one dim or
none, the programs along the grid dim are independent: devices run equal parts of the grid on tiles
of the arrays. A grid dim stays whole if the kernel asks for the place along the dim (`program_id`,
`num_programs`) or declares the dim ``"arbitrary"``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun

from partir_search.ir.core import Op, Shape
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, whole

PLACES = frozenset({"program_id", "num_programs"})  # primitives that read a place along the grid


@dataclasses.dataclass(frozen=True, slots=True)
class _GridLoop:
    """Loop over a grid dim.

    Attributes:
      size: parts of the grid dim with blocks of their own in every array.
      places: (array, dim) pairs that the loop tiles.
      counted: an array, a dim, and elements of the dim for each program along the grid dim.
    """

    size: int
    places: Sequence[tuple[int, int]]
    counted: tuple[int, int, int]


@register("pallas_call")
def kernel(op: Op) -> OpRule:
    """Dims whose blocks are counted by a grid dim without order; other dims are whole."""
    arrays, scalars = _arrays(op), op.params["grid_mapping"].num_index_operands
    loops = _loops(op, arrays)
    if not loops:
        return whole(op, Kind.OPAQUE)
    dims = [[NONE] * len(shape) for shape in arrays]
    for factor, loop in enumerate(loops.values()):
        for i, d in loop.places:
            dims[i][d] = factor
    split = len(arrays) - len(op.results)
    sizes = tuple(loop.size for loop in loops.values())
    return OpRule(
        Kind.KERNEL,
        sizes=sizes,
        operands=(
            *((NONE,) * len(x.type.shape) for x in op.operands[:scalars]),
            *map(tuple, dims[:split]),
        ),
        results=tuple(map(tuple, dims[split:])),
        reducers=("",) * len(sizes),
        flops_per_point=_flops_of(op) / math.prod(sizes),
        tolerates_padding=False,
        localize=functools.partial(
            _local_grid, {g: loop.counted for g, loop in loops.items()}, scalars
        ),
        implied_params=frozenset(op.params),
    )


def _loops(op: Op, arrays: Sequence[Shape]) -> dict[int, _GridLoop]:
    """Loops over grid dims that devices may share.

    Args:
      arrays: shapes of the operands and results in blocks.
    """
    params, found = op.params, dict[int, _GridLoop]()
    mapping = params["grid_mapping"]
    grid, results = mapping.grid, range(len(arrays) - len(op.results), len(arrays))
    if not all(isinstance(n, int) for n in grid) or _has_effects(params):
        return found
    blocks = [[_block(b) for b in m.block_shape] for m in mapping.block_mappings]
    for g in _free_dims(params):
        dims = [_counted_dims(m.index_map_jaxpr, g, grid) for m in mapping.block_mappings]
        if grid[g] < 2 or any(each is None or len(each) > 1 for each in dims):
            continue
        places = [(i, d, shared) for i, each in enumerate(dims) if each for d, shared in each]
        even = all(arrays[i][d] * c == grid[g] * blocks[i][d] for i, d, c in places)
        written = [(i, d) for i, d, shared in places if i in results and shared == 1]
        units = grid[g] // math.lcm(*(shared for *_, shared in places))
        if even and len(written) == len(results) and units > 1:
            i, d = written[0]
            found[g] = _GridLoop(units, [(i, d) for i, d, _ in places], (i, d, blocks[i][d]))
    return found


def _has_effects(params: Mapping[str, Any]) -> bool:
    """True for a kernel on several devices or cores, or with side effects."""
    options = params["compiler_params"]
    effects = (getattr(options, name, None) for name in ("collective_id", "has_side_effects"))
    return params["mesh"] is not None or any(e not in (None, False) for e in effects)


def _arrays(op: Op) -> list[Shape]:
    """Shapes of the operands and results in blocks."""
    values = [*op.operands[op.params["grid_mapping"].num_index_operands :], *op.results]
    return [x.type.shape for x in values]


def _block(block: Any) -> int:
    """Elements of a block along one dim; 0 for blocks that may overlap."""
    kind = type(block).__name__
    if kind == "Blocked":
        return int(block.block_size)
    return 1 if kind == "Squeezed" else 0


@functools.lru_cache(maxsize=1024)
def _counted_dims(index_map: Any, g: int, grid: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Dims of an array with blocks counted by a grid dim; None if an index depends otherwise.

    Args:
      index_map: jaxpr from the place along the grid to the block.

    Returns:
      (dim, number of neighbours along the grid dim with one block), as heads that share keys.
    """
    jaxpr = index_map.jaxpr
    reads: dict[Any, set[Any]] = {v: {v} for v in jaxpr.invars}
    for eqn in jaxpr.eqns:
        read = set().union(*(reads.get(v, ()) for v in eqn.invars if not isinstance(v, Literal)))
        reads.update(dict.fromkeys(eqn.outvars, read))
    var = jaxpr.invars[g]
    sources = [set() if isinstance(v, Literal) else reads.get(v, set()) for v in jaxpr.outvars]
    dims = [d for d, read in enumerate(sources) if var in read]
    if all(jaxpr.outvars[d] is var for d in dims):
        return [(d, 1) for d in dims]
    if any(sources[d] != {var} for d in dims) or len(jaxpr.invars) != len(grid):
        return None
    counts = np.arange(grid[g])
    with jax.ensure_compile_time_eval():
        run = jax.vmap(jaxpr_as_fun(index_map), [0 if k == g else None for k in range(len(grid))])
        blocks = run(*(np.int32(counts) if k == g else np.int32(0) for k in range(len(grid))))
        found = [(d, np.asarray(blocks[d])) for d in dims]
    shared = [(d, grid[g] // (int(at.max()) + 1)) for d, at in found]
    pairs = zip(shared, found, strict=True)
    exact = all((at == counts // max(c, 1)).all() for (_, c), (_, at) in pairs)
    return shared if exact else None


def _free_dims(params: Mapping[str, Any]) -> list[int]:
    """Grid dims whose programs may run in any order, on any device."""
    mapping = params["grid_mapping"]
    asked = {
        eqn.params["axis"] for eqn in _equations(params["jaxpr"]) if eqn.primitive.name in PLACES
    }
    own = [g for g in range(len(mapping.grid)) if g not in mapping.vmapped_dims]
    declared = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    ordered = {
        g for g, said in zip(own, declared, strict=False) if "parallel" not in str(said).lower()
    }
    ordered |= {own[k] for k in asked}
    return [g for g in range(len(mapping.grid)) if g not in ordered]


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of all jaxprs inside."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner(eqn):
            yield from _equations(inner)


def _inner(eqn: Any) -> Iterator[Any]:
    """Jaxprs of an equation's parameters."""
    for param in eqn.params.values():
        for each in param if isinstance(param, (tuple, list)) else (param,):
            each = getattr(each, "jaxpr", each)
            if hasattr(each, "eqns"):
                yield each


def _flops_of(op: Op) -> float:
    """Operations of a kernel over its grid.

    The kernel's own `cost_estimate` counts, if any; otherwise each program runs all equations once,
    and scans by length.
    """
    estimate = op.params["cost_estimate"]
    if estimate is not None:
        return float(estimate.flops)
    programs: int = math.prod(op.params["grid_mapping"].grid)
    return _flops(op.params["jaxpr"]) * programs


def _flops(jaxpr: Any) -> float:
    """Operations of one run of a jaxpr."""
    total = 0.0
    for eqn in jaxpr.eqns:
        inner = sum(map(_flops, _inner(eqn)))
        shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
        if eqn.primitive.name == "dot_general":
            ((summed, _), _) = eqn.params["dimension_numbers"]
            depth: int = math.prod(shapes[0][d] for d in summed)
            total += 2.0 * math.prod(shapes[-1]) * depth
        elif inner:
            times: int = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            total += inner * times
        elif _is_arithmetic(eqn):
            points: int = max(map(math.prod, shapes))
            total += points
    return total


def _is_arithmetic(eqn: Any) -> bool:
    """True for an equation of floats, other than a read or write of a ref."""
    refs = any(hasattr(v.aval, "inner_aval") for v in eqn.invars)
    dtype = getattr(eqn.outvars[0].aval, "dtype", None) if eqn.outvars and not refs else None
    return isinstance(dtype, np.dtype) and (dtype.kind in "fc" or "float" in dtype.name)


def _local_grid(
    loops: Mapping[int, tuple[int, int, int]],
    scalars: int,
    params: Mapping[str, Any],
    operands: Sequence[Shape],
    results: Sequence[Shape],
) -> dict[str, Any]:
    """Params of the kernel's grid over tiles.

    Args:
      loops: by grid dim, an array in blocks, a dim and the size of its blocks.
      scalars: number of operands before those in blocks.
    """
    mapping, shapes = params["grid_mapping"], [*operands[scalars:], *results]
    grid = list(mapping.grid)
    for g, (i, d, block) in loops.items():
        grid[g] = shapes[i][d] // block
    pairs = zip(mapping.block_mappings, shapes, strict=True)
    blocks = [dataclasses.replace(m, array_aval=m.array_aval.update(shape=s)) for m, s in pairs]
    outs = zip(params["out_avals"], results, strict=True)
    share = math.prod(grid) / max(math.prod(mapping.grid), 1)
    estimate = params["cost_estimate"]
    if estimate is not None:
        names = ("flops", "transcendentals", "bytes_accessed")
        scaled = {n: int(getattr(estimate, n) * share) for n in names}
        estimate = dataclasses.replace(estimate, **scaled)
    return {
        **params,
        "grid_mapping": dataclasses.replace(
            mapping, grid=tuple(grid), block_mappings=tuple(blocks)
        ),
        "out_avals": tuple(a.update(shape=s) for a, s in outs),
        "cost_estimate": estimate,
    }
