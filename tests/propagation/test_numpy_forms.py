"""Numpy forms of primitives give what the primitives give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.rules.numpy_forms import _FORMS, numpy_form
from tests.support import module_of

F = np.asarray([[-2.5, -0.0, 1.5], [3.0, 7.25, -1.0]], np.float32)
G = np.asarray([[2.0, 0.5, -1.5], [3.0, -2.0, 4.0]], np.float32)
M, N = np.asarray([6, -7, 3, 0], np.int32), np.asarray([3, 2, -3, 5], np.int32)
B, C = np.asarray([True, False, True]), np.asarray([True, True, False])

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (2, 3), 1), ()),
    "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)), (F,)),
    "concatenate": (lambda x, y: lax.concatenate([x, y], 1), (F, G)),
    "convert_element_type": (lambda x: x.astype(jnp.int32), (F,)),
    "copy": (lambda x: lax.copy_p.bind(x), (F,)),
    "reduce_sum": (lambda x: lax.reduce_sum_p.bind(x, axes=(1,), out_sharding=None), (F,)),
    "reshape": (lambda x: lax.reshape(x, (3, 2)), (F,)),
    "rev": (lambda x: lax.rev(x, (1,)), (F,)),
    "slice": (lambda x: lax.slice(x, (0, 0), (2, 3), (1, 2)), (F,)),
    "squeeze": (lambda x: lax.squeeze(x, (0,)), (F[None],)),
    "transpose": (lambda x: lax.transpose(x, (1, 0)), (F,)),
    "select_n": (lambda i, *xs: lax.select_n(i, *xs), (np.int32([0, 2, 1, 2]), M, N, M + N)),
    "integer_pow": (lambda x: lax.integer_pow(x, 3), (F,)),
    "clamp": (lambda x: lax.clamp(np.float32(-1), x, np.float32(2)), (F,)),
    "div": (lax.div, (M, N)),
    "add": (lax.add, (F, G)),
    "sub": (lax.sub, (F, G)),
    "mul": (lax.mul, (F, G)),
    "neg": (lax.neg, (F,)),
    "abs": (lax.abs, (F,)),
    "floor": (lax.floor, (F,)),
    "max": (lax.max, (F, G)),
    "min": (lax.min, (F, G)),
    "gt": (lax.gt, (F, G)),
    "ge": (lax.ge, (F, G)),
    "lt": (lax.lt, (F, G)),
    "le": (lax.le, (F, G)),
    "eq": (lax.eq, (F, G)),
    "ne": (lax.ne, (F, G)),
    "and": (lax.bitwise_and, (M, N)),
    "or": (lax.bitwise_or, (M, N)),
    "rem": (lax.rem, (M, N)),
    "sin": (lax.sin, (F,)),
    "sign": (lax.sign, (F,)),
    "exp": (lax.exp, (F,)),
}


@pytest.mark.parametrize("prim", sorted(_FORMS))
def test_form(prim: str) -> None:
    fn, args = PROGRAMS[prim]
    (op,) = module_of(fn, *args).ops
    assert op.prim == prim
    form = numpy_form(op)
    assert form is not None
    operands = [getattr(x, "value", None) for x in op.operands]
    given = iter(args)
    ins = [np.asarray(next(given) if x is None else x) for x in operands]
    made = np.asarray(form.run(op.params, *ins), op.results[0].type.dtype)
    want = np.asarray(fn(*args))
    assert made.shape == want.shape
    if form.exact:
        np.testing.assert_array_equal(made, want)
    else:
        np.testing.assert_allclose(made, want, rtol=1e-6)


def test_conjunctions_of_flags() -> None:
    (op,) = module_of(lax.bitwise_and, B, C).ops
    form = numpy_form(op)
    assert form is not None
    np.testing.assert_array_equal(form.run(op.params, B, C), B & C)
