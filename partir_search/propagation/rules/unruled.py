"""Primitives without a rule of their own, and why. They run whole on every device and are named.

Whatever is missing here and in the other tables is treated alike; this one shows that nothing
was forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCOPE = "needs a mesh axis in scope, which only code inside of a shard_map has"
_FOREIGN = "foreign code of fixed shapes: wrap the function that calls it in `with_rule`"
_SCALES = "blocks share scales across dims: wrap the call in `with_rule`"

UNRULED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all"),
            *("axis_index", "pbroadcast", "pmax", "pmin", "ppermute", "precv", "preduced"),
            *("psend", "psum", "psum_invariant", "ragged_all_to_all", "reduce_scatter"),
            *("unreduced_psum", "unreduced_reduce_scatter", "vary_unreduced_cast_p"),
        ),
        _SCOPE,
    ),
    **dict.fromkeys(
        (
            *("cudnn_fusion", "dot_product_attention_bwd_wrapper", "ffi_call", "pallas_call"),
            *("dot_product_attention_fwd_wrapper", "pure_callback"),
        ),
        _FOREIGN,
    ),
    **dict.fromkeys(("scaled_dot", "scaled_matmul_wrapper"), _SCALES),
    "after_all": "joins tokens, which order nothing here (see `effects`)",
    "create_token": "makes a token, which orders nothing here (see `effects`)",
    "custom_lin": "is gone once a function is differentiated",
    "dce_sink": "keeps a value alive; takes it whole",
    "empty2": "uninitialised memory of a scalar",
    "rng_uniform": "draws differently on each device by design; use jax.random",
    "stage": "has not been met in a traced function",
}
