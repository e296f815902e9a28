"""One small program per rule, or several where a rule has several faces: (primitive, function,
arguments). Read by the tests of rules and by the table of docs/primitives.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.random import threefry2x32_p
from jax.interpreters import ad

from tests.propagation.indexing_cases import INDEXING_CASES
from tests.propagation.kernel_cases import KERNEL_CASES
from tests.propagation.linalg_cases import LINALG_CASES
from tests.propagation.samples import Case, bools, floats, ints


def dus(x: Any, u: Any) -> Any:
    return lax.dynamic_update_slice(x, u, (0, 1, 0))


def dot(contract: Any, batch: Any = ((), ())) -> Callable[..., Any]:
    return lambda x, y: lax.dot_general(x, y, (contract, batch))


def conv(strides: Any, padding: str, **groups: int) -> Callable[..., Any]:
    layout = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: lax.conv_general_dilated(
        x, k, strides, padding, dimension_numbers=layout, **groups
    )


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def overlapping_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 1, 1), "SAME")


def scatter_to_largest(x: Any, y: Any) -> Any:
    """Of no gradient that jax makes: the primitive itself."""
    select, scatter = (
        jax.make_jaxpr(f)(np.float32(0), np.float32(0)) for f in (lax.ge, lambda a, b: a * b)
    )
    return lax.select_and_scatter_p.bind(
        x, y, np.float32(1),
        select_jaxpr=getattr(select, "jaxpr", select), select_consts=(),
        scatter_jaxpr=getattr(scatter, "jaxpr", scatter), scatter_consts=(),
        window_dimensions=(1, 2), window_strides=(1, 2), padding=((0, 0), (0, 0)),
    )  # fmt: skip


CASES: dict[str, Case] = {
    **INDEXING_CASES,
    **KERNEL_CASES,
    **LINALG_CASES,
    "add": ("add", lax.add, (floats(4, 6), floats(4, 6))),
    "add_any": ("add_any", ad.add_jaxvals, (floats(4, 6), floats(4, 6))),
    "and": ("and", lax.bitwise_and, (bools(4, 6), bools(4, 6))),
    "argmax": ("argmax", lambda x: jnp.argmax(x, 1), (floats(4, 6),)),
    "broadcast_in_dim": (
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (4, 6, 2), (0, 1)),
        (floats(4, 1),),
    ),
    "clamp": ("clamp", lambda x: lax.clamp(0.2, x, 0.5), (floats(4, 6),)),
    "concatenate": ("concatenate", lambda x, y: lax.concatenate([x, y], 1), (floats(4, 2),) * 2),
    "conv": (
        "conv_general_dilated",
        conv((2, 2), "SAME"),
        (floats(4, 8, 8, 6), floats(3, 3, 6, 2)),
    ),
    "conv_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((2, 2), "SAME")(x, k) ** 2).sum()),
        (floats(3, 3, 6, 2), floats(4, 8, 8, 6)),
    ),
    "conv_image_gradient": (
        "conv_general_dilated",
        jax.grad(lambda x, k: (conv((2, 2), "SAME")(x, k) ** 2).sum()),
        (floats(4, 8, 8, 6), floats(3, 3, 6, 2)),
    ),
    "conv_groups": (
        "conv_general_dilated",
        conv((1, 1), "SAME", feature_group_count=4),
        (floats(2, 4, 4, 8), floats(3, 3, 2, 12)),
    ),
    "conv_groups_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((1, 1), "SAME", feature_group_count=4)(x, k) ** 2).sum()),
        (floats(3, 3, 2, 12), floats(2, 4, 4, 8)),
    ),
    "conv_pointwise": (
        "conv_general_dilated",
        conv((1, 1), "VALID"),
        (floats(4, 8, 8, 6), floats(1, 1, 6, 2)),
    ),
    "conv_pointwise_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (conv((1, 1), "VALID")(x, k) ** 2).sum()),
        (floats(1, 1, 6, 2), floats(4, 8, 8, 6)),
    ),
    "conv_valid": (
        "conv_general_dilated",
        conv((1, 1), "VALID"),
        (floats(2, 6, 10, 3), floats(3, 3, 3, 2)),
    ),
    "conv_dilated": (
        "conv_general_dilated",
        conv((1, 2), "SAME", rhs_dilation=(2, 1)),
        (floats(2, 8, 8, 3), floats(3, 5, 3, 2)),
    ),
    "conv_transposed": (
        "conv_general_dilated",
        lambda x, k: lax.conv_transpose(x, k, (2, 3), "SAME"),
        (floats(2, 4, 4, 3), floats(3, 5, 3, 2)),
    ),
    "conv_transposed_kernel_gradient": (
        "conv_general_dilated",
        jax.grad(lambda k, x: (lax.conv_transpose(x, k, (2, 3), "SAME") ** 2).sum()),
        (floats(3, 5, 3, 2), floats(2, 4, 4, 3)),
    ),
    "convert": ("convert_element_type", lambda x: x.astype(jnp.bfloat16), (floats(4, 6),)),
    "concatenate_uneven": (
        "concatenate",
        lambda x, y, z: lax.concatenate([x, y, z], 0),
        (floats(6, 2), floats(1, 2), floats(5, 2)),
    ),
    "copy": ("copy", jnp.copy, (floats(4, 6),)),
    "cumsum": ("cumsum", lambda x: jnp.cumsum(x, 1), (floats(4, 6),)),
    "cumsum_reverse": ("cumsum", lambda x: lax.cumsum(x, 1, reverse=True), (floats(4, 6),)),
    "cummax": ("cummax", lambda x: lax.cummax(x, 0), (floats(4, 6),)),
    "div": ("div", lax.div, (floats(4, 6), floats(4, 6))),
    "dot": ("dot_general", dot(((1,), (0,))), (floats(4, 6), floats(6, 2))),
    "dot_batched": (
        "dot_general",
        dot(((3, 1), (1, 2)), ((0,), (0,))),
        (floats(2, 4, 6, 8), floats(2, 8, 4, 2)),
    ),
    "dynamic_slice": (
        "dynamic_slice",
        lambda x, i: lax.dynamic_slice(x, (0, i), (4, 2)),
        (floats(4, 6), jnp.int32(3)),
    ),
    "dynamic_slice_clamped": (
        "dynamic_slice",
        lambda x, i: lax.dynamic_slice(x, (i, i - 9), (3, 6)),
        (floats(8, 6), jnp.int32(7)),
    ),
    "dynamic_slice_across": (
        "dynamic_slice",
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (3, 1)),
        (floats(8, 6), jnp.int32(3), jnp.int32(4)),
    ),
    "dynamic_update_slice_long": (
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i - 2)),
        (floats(8, 6), floats(7, 3), jnp.int32(3)),
    ),
    "dynamic_update_slice_row": (
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, jnp.int32(0))),
        (floats(8, 6), floats(1, 6), jnp.int32(5)),
    ),
    "dynamic_update_slice": ("dynamic_update_slice", dus, (floats(4, 6, 2), floats(4, 2, 2))),
    "eq": ("eq", lax.eq, (ints(4, 6), ints(4, 6))),
    "erf": ("erf", lax.erf, (floats(4, 6),)),
    "exp": ("exp", lax.exp, (floats(4, 6),)),
    "expand": ("broadcast_in_dim", lambda x: x[:, None], (floats(4, 6),)),
    "integer_pow": ("integer_pow", lambda x: x**3, (floats(4, 6),)),
    "empty": ("empty", lambda x: x + 0 * lax.empty((4, 6), jnp.float32), (floats(4, 6),)),
    "iota": ("iota", lambda x: x + lax.broadcasted_iota(jnp.float32, (4, 6), 1), (floats(4, 6),)),
    "logistic": ("logistic", lax.logistic, (floats(4, 6),)),
    "max": ("max", lax.max, (floats(4, 6), floats(4, 6))),
    "mul_broadcast": ("mul", lambda x, y: lax.mul(x, y), (floats(4, 6), floats(4, 6))),
    "neg": ("neg", lax.neg, (floats(4, 6),)),
    "pad": ("pad", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 2, 1))), (floats(4, 6),)),
    "pad_halves": (
        "pad",
        lambda x, y: lax.pad(x, y[0, 0], ((1, 2, 1), (-2, 4, 0))),
        (floats(4, 6), floats(4, 6)),
    ),
    "pool_max": ("reduce_window_max", max_pool, (floats(4, 8, 6, 2),)),
    "pool_sum": (
        "reduce_window_sum",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 1, 1), (1, 1, 1, 1), "SAME"),
        (floats(4, 8, 6, 2),),
    ),
    "pool_max_gradient": (
        "select_and_scatter_add",
        jax.grad(lambda x: (max_pool(x) ** 2).sum()),
        (floats(4, 8, 6, 2),),
    ),
    "pool_max_overlapping": ("reduce_window_max", overlapping_pool, (floats(2, 8, 6, 2) - 0.5,)),
    "pool_max_overlapping_gradient": (
        "select_and_scatter_add",
        jax.grad(lambda x: (overlapping_pool(x) ** 2).sum()),
        (floats(2, 8, 6, 2) - 0.5,),
    ),
    "pool_max_overlapping_tangent": (
        "select_and_gather_add",
        lambda x, t: jax.jvp(overlapping_pool, (x,), (t,))[1],
        (floats(2, 8, 6, 2) - 0.5, floats(2, 8, 6, 2)),
    ),
    "pool_min_whole_numbers": (
        "reduce_window_min",
        lambda x: lax.reduce_window(
            x, np.iinfo(np.int32).max, lax.min, (3, 1), (1, 1), "SAME", window_dilation=(2, 1)
        ),
        (ints(8, 6),),
    ),
    "pool_max_tangent": (
        "select_and_gather_add",
        lambda x, t: jax.jvp(max_pool, (x,), (t,))[1],
        (floats(4, 8, 6, 2), floats(4, 8, 6, 2)),
    ),
    "reduce_and": ("reduce_and", lambda x: jnp.all(x, 0), (bools(4, 6),)),
    "reduce_max": ("reduce_max", lambda x: jnp.max(x, 1), (floats(4, 6),)),
    "reduce_min": ("reduce_min", lambda x: jnp.min(x, 0), (ints(4, 6),)),
    "reduce_or": ("reduce_or", lambda x: jnp.any(x, 1), (bools(4, 6),)),
    "reduce_prod": ("reduce_prod", lambda x: jnp.prod(x, 1), (floats(4, 6),)),
    "reduce_sum": ("reduce_sum", lambda x: jnp.sum(x, (0, 2)), (floats(4, 6, 2),)),
    "reshape_merge": ("reshape", lambda x: x.reshape(4, 12), (floats(4, 6, 2),)),
    "reshape_split": ("reshape", lambda x: x.reshape(2, 2, 6), (floats(4, 6),)),
    "reshape_ones": ("reshape", lambda x: x.reshape(1, 4, 1, 6), (floats(4, 6),)),
    "rev": ("rev", lambda x: lax.rev(x, (1,)), (floats(4, 6),)),
    "rev_both": ("rev", lambda x: lax.rev(x, (0, 1)), (floats(4, 6),)),
    "scatter_to_largest": (
        "select_and_scatter",
        scatter_to_largest,
        (floats(4, 6), floats(4, 3)),
    ),
    "select": ("select_n", lax.select_n, (bools(4, 6), floats(4, 6), floats(4, 6))),
    "slice": ("slice", lambda x: x[:, 1:5:2], (floats(4, 6),)),
    "slice_rows": ("slice", lambda x: x[3:9], (floats(12, 2),)),
    "sort": ("sort", lambda x: lax.sort(x, dimension=1), (floats(4, 6),)),
    "sort_pairs": (
        "sort",
        lambda x, y: lax.sort((x, y), dimension=0, num_keys=1),
        (floats(4, 6), ints(4, 6)),
    ),
    "split": ("slice", lambda x: lax.split(x, (2, 4), axis=1), (floats(4, 6),)),
    "squeeze": ("squeeze", lambda x: lax.squeeze(x, (1,)), (floats(4, 1, 6),)),
    "stack": ("stack", lambda x, y: jnp.stack([x, y], 1), (floats(4, 6), floats(4, 6))),
    "sub_broadcast": ("sub", lambda x, y: x - y, (floats(4, 6), floats(4, 1))),
    "tanh": ("tanh", lax.tanh, (floats(4, 6),)),
    "top_k": ("top_k", lambda x: lax.top_k(x, 3), (floats(4, 6),)),
    "unstack": ("unstack", lambda x: jnp.unstack(x, axis=1), (floats(4, 2, 6),)),
    "transpose": ("transpose", lambda x: lax.transpose(x, (2, 0, 1)), (floats(4, 6, 2),)),
    "approx_top_k": ("approx_top_k", lambda x: lax.approx_max_k(x, 2), (floats(4, 8),)),
    "bitcast": (
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, jnp.int32),
        (floats(4, 6),),
    ),
    "bitcast_wider": (
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, jnp.uint32),
        (ints(6, 4).astype(jnp.uint8),),
    ),
    "bitcast_narrower": (
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, jnp.uint8),
        (floats(4, 6),),
    ),
    "device_put": ("device_put", lambda x: jax.device_put(x) * 2, (floats(4, 6),)),
    "name": ("name", lambda x: checkpoint_name(x, "kept"), (floats(4, 6),)),
    "ragged_dot": (
        "ragged_dot_general",
        lax.ragged_dot,
        (floats(8, 4), floats(3, 4, 6), jnp.array([3, 1, 4])),
    ),
    "ragged_dot_weights_gradient": (
        "ragged_dot_general",
        jax.grad(lambda w, x, sizes: lax.ragged_dot(x, w, sizes).sum()),
        (floats(3, 4, 6), floats(8, 4), jnp.array([3, 1, 4])),
    ),
    "random_fold_in": (
        "random_fold_in",
        jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(jax.random.key(0), i))),
        (ints(4),),
    ),
    "random_gamma": (
        "random_gamma",
        lambda a: jax.vmap(jax.random.gamma)(jax.random.split(jax.random.key(0), 4), a),
        (floats(4),),
    ),
    "random_split": (
        "random_split",
        jax.vmap(lambda i: jax.random.uniform(jax.random.split(jax.random.key(i))[0])),
        (ints(4),),
    ),
    "random_wrap": (
        "random_wrap",
        lambda data: jax.vmap(jax.random.uniform)(jax.random.wrap_key_data(data)),
        (jax.random.key_data(jax.random.split(jax.random.key(0), 4)),),
    ),
    "threefry": (
        "threefry2x32",
        lambda k, x: threefry2x32_p.bind(k, k + 1, x, x + 2),
        (np.arange(24, dtype=np.uint32).reshape(4, 6), np.full((4, 6), 7, np.uint32)),
    ),
    "reduce": (
        "reduce",
        lambda x: lax.reduce(
            (x, x),
            (np.float32(0), np.float32(1)),
            lambda p, q: (p[0] + 2 * q[0], p[1] * q[1]),
            (1,),
        ),
        (floats(4, 6),),
    ),
    "reduce_window": (
        "reduce_window",
        lambda x: lax.reduce_window(x, 1.0, lax.mul, (1, 2, 1), (1, 2, 1), "VALID"),
        (floats(4, 6, 2),),
    ),
    "reduce_window_same": (
        "reduce_window",
        lambda x: lax.reduce_window(x, 1.0, lax.mul, (1, 3, 1), (1, 1, 1), "SAME"),
        (floats(4, 6, 2),),
    ),
    "tile": ("tile", lambda x: jnp.tile(x, (2, 3)), (floats(4, 6),)),
    "tile_rows": ("tile", lambda x: jnp.tile(x, (2, 1)), (floats(4, 6),)),
}
