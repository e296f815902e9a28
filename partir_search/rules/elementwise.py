"""Elementwise primitives: one factor per result dim; dims of size 1 and scalars broadcast."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.rules.registry import positive, register, result_shape

# Floating-point operations per element. Transcendentals cost a few operations of the vector unit;
# on every target elementwise chains are bound by memory, and the figure hardly matters.
_CHEAP = (
    "abs add add_any and ceil clamp clz complex conj convert_element_type",
    "copy copy_p eq eq_to floor ge gt imag is_finite le le_to lt lt_to max min mul ne neg",
    "mulhi name nextafter not one_minus_square or population_count real reduce_precision round",
    "select_n shift_left shift_right_arithmetic shift_right_logical sign square stop_gradient sub",
    "xor",
)
_DEAR = (
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma div erf",
    "erf_inv erfc exp exp2 expm1 igamma igamma_grad_a igammac integer_pow lgamma log log1p log2",
    "logistic polygamma polynomial pow random_gamma_grad regularized_incomplete_beta rem rsqrt sin",
    "sinh sqrt tan tanh zeta",
)
# Polynomials, series or iterations on all targets; exponentials, logarithms and roots are
# instructions of their own.
_SERIES = (
    "acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cosh digamma erf erf_inv erfc",
    "igamma igamma_grad_a igammac lgamma polygamma pow random_gamma_grad",
    "regularized_incomplete_beta sinh tan tanh zeta",
)
CHEAP = frozenset(name for line in _CHEAP for name in line.split())
DEAR = frozenset(name for line in _DEAR for name in line.split())
SERIES = frozenset(name for line in _SERIES for name in line.split())

# Groups of operands that may be partial sums, all of a group at once and none besides.
_LINEAR: dict[str, tuple[tuple[int, ...], ...]] = {
    "add": ((0, 1),),
    "add_any": ((0, 1),),
    "conj": ((0,),),
    "copy": ((0,),),
    "copy_p": ((0,),),
    "div": ((0,),),
    "imag": ((0,),),
    "mul": ((0,), (1,)),
    "name": ((0,),),
    "neg": ((0,),),
    "real": ((0,),),
    "stop_gradient": ((0,),),
    "sub": ((0, 1),),
}


_RISING = (
    *("acosh", "asinh", "atan", "cbrt", "ceil", "copy", "copy_p", "erf", "exp", "exp2", "expm1"),
    *("floor", "log", "log1p", "logistic", "name", "reduce_precision", "round", "sinh", "sqrt"),
    *("stop_gradient", "tanh"),
)


def rising(*groups: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Monotone groups for maxima and minima of an op nondecreasing in each group of operands."""
    return tuple((monoid, group) for monoid in ("max", "min") for group in groups)


def monotone_groups(op: Op) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Monotone groups of an elementwise op; all operands of `max` may be partial maxima at once."""
    if op.prim in ("max", "min"):
        other = "min" if op.prim == "max" else "max"
        return ((op.prim, (0, 1)), (other, (0,)), (other, (1,)))
    types = [x.type.dtype for x in (*op.operands, *op.results)]
    inexact = all(jnp.issubdtype(t, np.inexact) for t in types)
    complex_ = any(jnp.issubdtype(t, np.complexfloating) for t in types)
    if complex_ or not (inexact or op.prim == "convert_element_type"):
        return ()
    if op.prim == "convert_element_type":
        wider = jnp.issubdtype(types[1], np.floating) and types[0] != np.bool_
        return rising((0,)) if wider else ()
    if op.prim in _RISING:
        return rising((0,))
    if op.prim in ("add", "add_any"):
        return rising((0,), (1,))
    if op.prim == "sub":
        return rising((0,))
    if op.prim == "clamp":
        return rising((1,))
    if op.prim == "mul":
        return rising(*((1 - i,) for i, x in enumerate(op.operands) if positive(x)))
    return rising((0,)) if op.prim == "div" and positive(op.operands[1]) else ()


def align(shape: tuple[int, ...], result: tuple[int, ...]) -> Dims:
    """Factors of an operand for a result of factors 0, 1, ...; dims of size 1 broadcast."""
    if not shape:
        return ()
    return tuple(d if n == result[d] else NONE for d, n in enumerate(shape))


def linear_groups(op: Op) -> tuple[tuple[int, ...], ...]:
    """Linear groups of an elementwise op: operands of which the result is a sum, exactly."""
    inexact = all(jnp.issubdtype(r.type.dtype, np.inexact) for r in op.results) and all(
        jnp.issubdtype(x.type.dtype, np.inexact) for x in op.operands
    )
    if op.prim == "select_n":
        return (tuple(range(1, len(op.operands))),)
    if op.prim == "convert_element_type":  # rounded summands do not add up to the rounded sum
        wider = op.results[0].type.itemsize >= op.operands[0].type.itemsize
        return ((0,),) if inexact and wider else ()
    if op.prim == "integer_pow" and op.params["y"] == 1:
        return ((0,),)
    return linear_but_for_rounding(op) if inexact else ()


def linear_but_for_rounding(op: Op) -> tuple[tuple[int, ...], ...]:
    """Linear groups of an elementwise op in exact arithmetic."""
    return _LINEAR.get(op.prim, ())


_COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
_ROLES: Mapping[str, Role] = {
    "add": Role.ADDITION,
    "add_any": Role.ADDITION,
    "and": Role.CONJUNCTION,
    "convert_element_type": Role.CAST,
    "copy": Role.COPY,
    "copy_p": Role.COPY,
    "div": Role.DIVISION,
    "exp": Role.EXPONENTIAL,
    "mul": Role.MULTIPLICATION,
    "name": Role.COPY,
    "neg": Role.NEGATION,
    "select_n": Role.SELECTION,
    "sub": Role.SUBTRACTION,
    **dict.fromkeys(_COMPARISONS, Role.COMPARISON),
}


@register(*sorted(CHEAP | DEAR), role=_ROLES)
def elementwise(op: Op) -> OpRule:
    """`([a b], [a b]) -> [a b]`."""
    result = result_shape(op)
    return OpRule(
        Kind.ELEMENTWISE,
        sizes=result,
        operands=tuple(align(x.type.shape, result) for x in op.operands),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        linear=linear_groups(op),
        monotone=monotone_groups(op),
        flops_per_point=4.0 if op.prim in DEAR else 1.0,
        elementwise=True,
        expensive=op.prim in SERIES,
    )


@register("bitcast_convert_type")
def bitcast(op: Op) -> OpRule:
    """Bits as another dtype; the last dim is blocked if the width changes."""
    shape, result = op.operands[0].type.shape, result_shape(op)
    shared = min(len(shape), len(result))
    dims = tuple(range(shared))
    return OpRule(
        Kind.ELEMENTWISE,
        sizes=result[:shared],
        operands=((*dims, *(NONE,) * (len(shape) - shared)),),
        results=((*dims, *(NONE,) * (len(result) - shared)),),
        reducers=("",) * shared,
        flops_per_point=1.0,
        elementwise=True,
    )
