"""Held-out programs: steps that train, and the table of their errors."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments.held_out import PROGRAMS
from experiments.held_out.errors import errors_of, faults, summary

TINY: dict[str, dict[str, Any]] = {
    "conformer": {"batch": 2, "frames": 16, "d": 16, "heads": 2, "blocks": 1, "classes": 8},
    "graph_attention": {"nodes": 16, "edges": 64, "features": 8, "d": 16, "heads": 2, "layers": 1},
    "perceiver": {"batch": 2, "inputs": 16, "channels": 8, "latents": 4, "d": 16, "heads": 2},
    "routed_lm": {"batch": 2, "length": 16, "d": 16, "heads": 2, "experts": 4, "ff": 16},
    "soft_caps_lm": {"batch": 2, "length": 16, "d": 16, "heads": 4, "shared": 2, "width": 8},
    "ssd_lm": {"batch": 2, "length": 32, "d": 16, "heads": 4, "state": 8, "chunk": 8},
    "two_tower": {"batch": 8, "bag": 4, "rows": 32, "d": 8, "hidden": 16, "out": 8},
    "codebook": {"batch": 2, "side": 8, "d": 8, "codes": 16, "residual": 1},
    "retrieval_lm": {"batch": 2, "length": 16, "chunk": 4, "d": 16, "heads": 2, "layers": 1},
    "selective_scan": {"batch": 2, "length": 16, "d": 8, "inner": 16, "layers": 1, "chunk": 8},
    "shifted_windows": {"batch": 2, "side": 8, "patch": 12, "d": 8, "heads": 2, "window": 2},
    "wavenet": {"batch": 2, "length": 32, "d": 8, "skip": 8, "levels": 8, "dilations": (1, 2)},
    "capsules": {"batch": 2, "side": 8, "channels": 8, "parts": 2, "wholes": 4, "whole_pose": 4},
    "set_detector": {"batch": 2, "patches": 16, "patch": 8, "d": 16, "heads": 2, "queries": 4},
    "neural_sde": {"batch": 4, "observed": 4, "d": 8, "hidden": 16, "steps": 3},
    "radiance_field": {"rays": 4, "samples": 8, "d": 8, "layers": 3, "skip": 1, "waves": 2},
    "diffusion_transformer": {"batch": 2, "patches": 16, "patch": 8, "d": 16, "heads": 2},
    "image_vae": {"batch": 2, "side": 16, "widths": (8, 16), "code": 4},
    "long_convolution": {"batch": 2, "length": 16, "d": 8, "layers": 1, "waves": 2, "vocab": 32},
    "point_cloud": {"batch": 2, "points": 16, "neighbours": 4, "widths": (8, 16), "d": 16},
    "splatting": {"count": 64, "tiles": 4, "side": 2, "seen": 4, "across": 2},
    "transducer": {"batch": 2, "frames": 16, "labels": 4, "bands": 8, "d": 16, "vocab": 32},
    "video_encoder": {"batch": 2, "frames": 4, "side": 8, "widths": (4, 8), "classes": 5},
    "audio_separator": {"batch": 2, "length": 32, "widths": (4, 8), "sources": 2, "width": 5},
    "fourier_operator": {"batch": 2, "side": 8, "d": 4, "modes": 2, "layers": 2, "past": 3},
    "recurrent_policy": {"batch": 2, "steps": 3, "side": 16, "widths": (4, 4, 8), "d": 8},
    "speech_codec": {"batch": 2, "length": 256, "widths": (4, 8), "codes": 8, "window": 16},
    "molecule_diffusion": {"batch": 2, "atoms": 4, "kinds": 3, "d": 8, "layers": 1},
    "pair_folding": {"batch": 2, "residues": 4, "d": 8, "heads": 2, "bins": 8, "layers": 1},
    "image_flow": {"batch": 2, "size": 8, "hidden": 8, "steps": 1},
    "tensor_products": {"batch": 2, "atoms": 4, "kinds": 3, "d": 8, "waves": 4, "layers": 1},
    "retention_lm": {"batch": 2, "length": 8, "d": 16, "heads": 2, "layers": 1, "vocabulary": 32},
    "equilibrium": {"batch": 2, "length": 8, "features": 4, "d": 8, "steps": 2, "classes": 5},
    "meta_learning": {"tasks": 2, "shots": 4, "features": 8, "hidden": 16, "ways": 3},
    "late_interaction": {"batch": 2, "asked": 4, "length": 8, "d": 16, "heads": 2, "layers": 1},
    "spline_network": {"batch": 4, "widths": (4, 8, 5), "knots": 3},
    "redundancy": {"batch": 4, "pixels": 8, "d": 8, "blocks": 1, "projected": 16},
    "fourier_mixing": {"batch": 2, "length": 8, "d": 16, "layers": 1, "vocab": 32, "masked": 2},
    "spectral_filters": {"batch": 2, "frames": 16, "width": 4, "d": 8, "windows": (8, 16)},
    "sparse_autoencoder": {"batch": 4, "d": 8, "features": 16, "chosen": 2},
    "slot_attention": {"batch": 2, "side": 4, "patch": 6, "d": 8, "slots": 3, "rounds": 2},
    "skipped_vit": {"batch": 2, "patches": 4, "patch": 6, "d": 8, "heads": 2, "half": 1},
    "time_mixing": {"batch": 2, "length": 8, "d": 8, "layers": 1, "vocabulary": 16},
    "masked_autoencoder": {"batch": 2, "patches": 8, "seen": 2, "patch": 6, "d": 16, "narrow": 8},
    "policy_lm": {"batch": 2, "length": 8, "d": 24, "heads": 6, "layers": 1, "vocabulary": 16},
    "flow_network": {"batch": 2, "steps": 3, "parts": 4, "kinds": 3, "d": 8, "layers": 1},
    "weight_generator": {"batch": 2, "patches": 4, "patch": 6, "d": 8, "heads": 2, "width": 4},
    "contrastive_audio": {"batch": 2, "length": 256, "width": 4, "d": 8, "heads": 2, "layers": 1},
    "relation_network": {"batch": 2, "patches": 4, "patch": 6, "d": 8, "asked": 3, "words": 16},
    "pointer_generator": {"batch": 2, "article": 8, "summary": 4, "d": 8, "vocabulary": 16},
    "knowledge_graph": {"batch": 4, "entities": 16, "relations": 4, "d": 8, "drawn": 3},
    "winners": {"batch": 4, "features": 8, "wide": 16, "kept": 2, "classes": 5},
    "expert_choice": {"batch": 2, "pixels": 16, "d": 16, "heads": 2, "chosen": 2, "layers": 1},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_training_steps(name: str) -> None:
    """The parameters' first step, traced: a scalar loss, and a state of the same shapes."""
    step, init, batch = importlib.import_module(f"experiments.held_out.{name}").make(**TINY[name])
    state = jax.eval_shape(init)
    new, loss = jax.eval_shape(step, state, *batch)
    assert loss.shape == ()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )


@pytest.mark.parametrize("name", ["routed_lm", "ssd_lm", "codebook"])
def test_a_step_changes_a_finite_loss(name: str) -> None:
    step, init, batch = importlib.import_module(f"experiments.held_out.{name}").make(**TINY[name])
    arrays = [jnp.arange(np.prod(x.shape), dtype=x.dtype).reshape(x.shape) % 7 for x in batch]
    run = jax.jit(step)
    state, before = run(init(), *arrays)
    _, after = run(state, *arrays)
    assert np.isfinite(before)
    assert before != after


def test_small_programs_count_for_collectives_alone() -> None:
    def row(plan: str, predicted: float, compiled: float, *lines: str) -> dict[str, Any]:
        told = {"target": "tpu_v5e:2x4", "model": "wavenet", "plan": plan}
        peaks = {"predicted_peak": predicted, "compiled_peak": compiled}
        return told | peaks | {"confirmed": not lines, "unexplained": list(lines)}

    rows = [row("a", 1.05e9, 1e9), row("b", 0.7e9, 1e9, "1 all_gather"), row("c", 1e8, 3e7)]
    np.testing.assert_allclose(errors_of(rows), [0.05, -0.3])
    assert faults(rows) == ["wavenet, b: 1.00 GB -30.0%", "wavenet, b: 1 all_gather"]
    console = Console(width=140, record=True)
    console.print(summary(rows))
    text = console.export_text()
    assert "17.5%" in text
    assert "-30.0%" in text
