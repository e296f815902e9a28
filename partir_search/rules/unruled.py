"""Primitives without a rule, with reasons. They run replicated and are named in the report.

A primitive in no table is treated alike; a test holds the tables complete.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCOPE = "needs a mesh axis in scope, which only code inside of a shard_map has"
_FOREIGN = "foreign code of fixed shapes: wrap the function that calls it in `with_rule`"
_SHAPES = "belongs to programs of symbolic shapes, which `jax.export` traces"
_HIJAX = "of jax's unfinished boxes, logs and linear types"
_SCALES = "blocks share scales across dims: wrap the call in `with_rule`"

UNRULED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all"),
            *("all_gather_done", "all_gather_reduced_start", "all_gather_start"),
            *("all_to_all_done", "all_to_all_start", "axis_index", "pbroadcast"),
            *("pbroadcast_done", "pbroadcast_dynamic", "pbroadcast_start", "pmax", "pmin"),
            *("ppermute", "ppermute_done", "ppermute_start", "precv", "preduced", "psend", "psum"),
            *("psum_done", "psum_invariant", "psum_invariant_start", "psum_start"),
            *("ragged_all_to_all", "reduce_scatter", "reduce_scatter_done"),
            *("reduce_scatter_start", "reduced_vary_cast", "reduced_vary_cast_p", "relayout"),
            *("unreduced_pmax", "unreduced_pmin", "unreduced_psum", "unreduced_psum_start"),
            *("unreduced_reduce_scatter", "unreduced_reduce_scatter_start"),
            *("vary_unreduced_cast", "vary_unreduced_cast_p"),
        ),
        _SCOPE,
    ),
    **dict.fromkeys(
        (
            *("call_exported", "coo_spmm", "coo_spmv", "csr_spmm", "csr_spmv", "cudnn_fusion"),
            *("dot_product_attention_bwd", "dot_product_attention_bwd_wrapper"),
            *("dot_product_attention_fp8_bwd", "dot_product_attention_fp8_bwd_wrapper"),
            *("dot_product_attention_fp8_fwd", "dot_product_attention_fp8_fwd_wrapper"),
            *("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper", "ffi_call"),
            "spsolve",
        ),
        _FOREIGN,
    ),
    **dict.fromkeys(("scaled_dot", "scaled_matmul", "scaled_matmul_wrapper"), _SCALES),
    **dict.fromkeys(("dim_as_value", "dimension_size", "shape_assertion"), _SHAPES),
    **dict.fromkeys(
        (
            *("box_get", "box_set", "call_hi_primitive_linearized", "create_linear"),
            *("log_extend", "log_read", "new_box", "new_log", "pin", "unpin"),
        ),
        _HIJAX,
    ),
    "after_all": "joins tokens, which order nothing here (see `effects`)",
    "create_token": "makes a token, which orders nothing here (see `effects`)",
    "core_map": "runs on the cores of a device, with mutable memory",
    **dict.fromkeys(
        ("custom_jvp_call_jaxpr", "custom_lin", "zeros_like"),
        "is gone once a function is differentiated",
    ),
    **dict.fromkeys(
        ("from_edtype", "to_edtype"), "changes to or from a type of jax's own, as for scaled floats"
    ),
    **dict.fromkeys(
        ("global_array_to_host_local_array", "host_local_array_to_global_array"),
        "is of arrays of several processes, outside of a traced function",
    ),
    "iota_2x32_shape": "is inside of jax.random, whose draws are ops of their own (see `random`)",
    "unreachable": "is in branches that never run",
    "with_memory_space_constraint": "is for the operands of Pallas kernels",
    "dce_sink": "keeps a value alive; takes it whole",
    "rng_uniform": "draws differently on each device by design; use jax.random",
    "stage": "has not been met in a traced function",
}
