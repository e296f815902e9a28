"""Traits of XLA by target: values of `XlaTraits` for machines and for platforms of jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from partir_search.simulator.target.device_kinds import machine_name
from partir_search.simulator.target.traits import XlaTraits

UNKNOWN = XlaTraits()
"""Traits of an unknown target."""

_TPU = XlaTraits(
    f32_dot_operand_bytes=2,
    keeps_dots_wide=True,
    defers_accumulated_products=True,
    makes_slots_at_loops=True,
    fuses_attention_scores=True,
    fuses_row_reads=True,
    attention_score_bytes={"forward": 12.0, "backward": 14.0},
    fuses_one_hot_updates=True,
    fuses_weight_casts=True,
    stores_values_sliced_twice=True,
    materializes_scatter_updates=True,
    materializes_dilations=True,
    multiplies_outer_products=True,
    stores_split_broadcasts=True,
    gathers_broadcast_sources=True,
    stores_concatenated_pieces=True,
    adds_products_in_place=True,
    stores_shared_operands=True,
    scatters_into_one_dim=True,
    stores_repeated_images=True,
    epilogues_write_in_place=True,
    reads_views_in_place=True,
    joins_tuple_reductions=False,
    hides_gathers_behind_dots_alone=True,
    in_place_elementwise=False,
    collective_copy_factors={"all_to_all": 8.0},
    copies_gather_into_donated=True,
    pins_update_layouts=True,
    pins_lookup_layouts=True,
    pins_lone_rows=True,
    pins_scanned_rows=True,
    delays_regathers=True,
    delays_reductions=True,
    delays_early_products=True,
    transform_arrays=2.0,
    tile_lanes=128,
    tile_sublanes=8,
    copies_reduced_rows=True,
    updates_early=True,
    combined_reduction_bytes=125_829_120,
    gathers_donated_last=True,
    reorders_kernels=True,
)
_GPU = XlaTraits(
    fuses_lookups=True,
    recomputes_comparisons=True,
    pads_images=True,
    stores_expensive_elementwise=True,
    materializes_dot_operands=True,
    fuses_dot_epilogues=False,
    async_all_gather="arguments",
    defers_weight_gradients=True,
    computes_gradients_first=True,
    pins_update_layouts=True,
    misaligned_product_rate=0.4,
    selection_bytes=199.0,
    half_rate_features=96,
    fills_dilated_windows=True,
    copies_scan_rows=True,
    stores_values_sliced_again=True,
    transforms_in_passes=True,
    full_rate_results=2_900_000,
    grouped_convolution_bytes=75.0,
    grouped_product_bytes=4.8,
    atomic_update_bytes={"bfloat16": 28.0, "float16": 28.0, "float32": 15.0},
)
_CPU = XlaTraits(reduce_scatter_tiles_first=True)
_V5E = dataclasses.replace(
    _TPU, in_place_elementwise=True, recomputes_dot_operands=True, async_all_gather="since_source"
)

TRAITS: Mapping[str, XlaTraits] = {
    "tpu_v3": _TPU,
    "tpu_v4": _TPU,
    "tpu_v5e": _V5E,
    "tpu_v5p": dataclasses.replace(_TPU, materializes_softmax=True),
    **dict.fromkeys(
        ("tpu_v6e", "tpu_v7x"), dataclasses.replace(_TPU, async_all_gather="since_source")
    ),
    **dict.fromkeys(("v100", "a100", "h100", "h200", "b200", "gb200"), _GPU),
    **dict.fromkeys(("l4", "l40s", "mi300x"), _GPU),
    "cpu": _CPU,
}
"""Traits by name of the machine."""

PLATFORMS: Mapping[str, XlaTraits] = {"tpu": _TPU, "gpu": _GPU, "cpu": _CPU}
"""Traits of devices of unknown machines, by jax's platform name."""


def traits_named(machine: str) -> XlaTraits:
    """Traits of a known machine; a memory suffix is ignored ("a100_40gb" as "a100")."""
    return TRAITS[machine] if machine in TRAITS else TRAITS[machine.rpartition("_")[0]]


def traits_of(mesh: Any) -> XlaTraits:
    """Traits of the compiler for a mesh's devices; `UNKNOWN` for an `AbstractMesh`."""
    if not isinstance(mesh, jax.sharding.Mesh):
        return UNKNOWN
    device = mesh.devices.flat[0]
    known = machine_name(str(device.device_kind))
    return TRAITS[known] if known else PLATFORMS.get(str(device.platform), UNKNOWN)
