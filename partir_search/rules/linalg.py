"""Decompositions, triangular systems and Fourier transforms: loops over batch dims.

Matrices are not tiled. The right-hand sides of a triangular system are independent, and their dim
is free.
"""

from __future__ import annotations

import dataclasses
import math

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, shape_of

# Number of last dims of the first operand in one problem, and operations per n^3 (n being the
# larger of two such dims, n^2 for one): Golub and Van Loan, Matrix Computations, 4th edition.
_CORE: dict[str, tuple[int, float]] = {
    "cholesky": (2, 1 / 3),
    "cholesky_update": (2, 2.0),
    "eig": (2, 25.0),
    "eigh": (2, 9.0),
    "geqp3": (2, 4 / 3),
    "geqrf": (2, 4 / 3),
    "hessenberg": (2, 10 / 3),
    "householder_product": (2, 4 / 3),
    "lu": (2, 2 / 3),
    "lu_pivots_to_permutation": (1, 1.0),
    "ormqr": (2, 2.0),
    "qr": (2, 4 / 3),
    "schur": (2, 25.0),
    "svd": (2, 22.0),
    "symmetric_product": (2, 1.0),
    "tridiagonal": (2, 4 / 3),
}


@register(*sorted(_CORE))
def decomposition(op: Op) -> OpRule:
    """`([b m n]) -> [b m n], [b n] ...`: the leading dims of all operands and results."""
    core, flops = _CORE[op.prim]
    shape = shape_of(op, 0)
    batch = shape[: len(shape) - core]
    n = max(shape[len(batch) :])
    return _batched(op, batch, (n,) * (core + 1), flops)


@register("fft")
def fft(op: Op) -> OpRule:
    """The leading dims; 5 n log2 n operations for n points."""
    lengths = op.params["fft_lengths"]
    batch = shape_of(op, 0)[: len(shape_of(op, 0)) - len(lengths)]
    points = max(math.prod(lengths), 1)
    flops = 5.0 * max(math.log2(points), 1)
    rule = _batched(op, batch, tuple(lengths), flops, linear=((0,),))
    return dataclasses.replace(rule, row_major_on_cpu=True, transform=tuple(lengths))


def _batched(
    op: Op,
    batch: tuple[int, ...],
    work: tuple[int, ...],
    flops: float,
    linear: tuple[tuple[int, ...], ...] = (),
) -> OpRule:
    """Rule with factors of the batch dims, then blocked factors of sizes `work`."""
    rank = len(batch)

    def dims(shape: tuple[int, ...]) -> tuple[int, ...]:
        if shape[:rank] != batch:
            return (NONE,) * len(shape)
        return (*range(rank), *(NONE,) * (len(shape) - rank))

    operands = tuple(dims(x.type.shape) for x in op.operands)
    results = tuple(dims(r.type.shape) for r in op.results)
    apart = any(d[:rank] != tuple(range(rank)) for d in results)
    blocked = range(0 if apart else rank, rank + len(work))
    return OpRule(
        Kind.DECOMPOSITION,
        sizes=(*batch, *work),
        operands=operands,
        results=results,
        reducers=("",) * (rank + len(work)),
        blocked=frozenset(blocked),
        linear=linear,
        tolerates_padding=False,  # the decomposition of a padded matrix may not converge
        flops_per_point=flops,
    )


@register("triangular_solve")
def triangular_solve(op: Op) -> OpRule:
    """Batch dims and right-hand sides; linear in the right-hand sides."""
    matrix, sides = shape_of(op, 0), shape_of(op, 1)
    rank, left = len(matrix) - 2, op.params["left_side"]
    batch = tuple(range(rank))
    b = (*batch, NONE, rank) if left else (*batch, rank, NONE)
    return OpRule(
        Kind.DECOMPOSITION,
        sizes=(*matrix[:-2], sides[-1 if left else -2], matrix[-1], matrix[-1]),
        operands=((*batch, NONE, NONE), b),
        results=(b,),
        reducers=("",) * (rank + 3),
        blocked=frozenset({rank + 1, rank + 2}),
        linear=((1,),),
        tolerates_padding=False,
        flops_per_point=1.0,
    )


@register("tridiagonal_solve")
def tridiagonal_solve(op: Op) -> OpRule:
    """Batch dims and right-hand sides; linear in the right-hand sides."""
    diagonal, sides = shape_of(op, 0), shape_of(op, 3)
    rank = len(diagonal) - 1
    batch = tuple(range(rank))
    b = (*batch, NONE, rank)
    return OpRule(
        Kind.DECOMPOSITION,
        sizes=(*diagonal[:-1], sides[-1], diagonal[-1]),
        operands=(*((*batch, NONE),) * 3, b),
        results=(b,),
        reducers=("",) * (rank + 2),
        blocked=frozenset({rank + 1}),
        linear=((3,),),
        tolerates_padding=False,
        flops_per_point=8.0,
    )
