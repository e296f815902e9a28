"""Relation network: an MLP of all pairs of patches, summed, answers a question (Sort-of-CLEVR)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    cross_entropy,
    dense,
    floats,
    ids,
    trained,
    weights,
)


def make(
    batch: int = 512,
    patches: int = 64,
    patch: int = 192,
    d: int = 256,
    asked: int = 32,
    words: int = 1024,
    answers: int = 512,
) -> Made:
    def init() -> Any:
        return weights(
            enter=(patch, d),
            at=(patches, d),
            words=(words, d),
            left=(d, d),
            right=(d, d),
            question=(d, d),
            pair0=(d, d),
            pair1=(d, d),
            whole0=(d, 2 * d),
            whole1=(2 * d, answers),
        )

    def loss(p: Any, images: Any, question: Any, answer: Any) -> Any:
        """Loss of images [batch, patches, patch], question [batch, asked] and answer [batch]."""
        x = jax.nn.relu(dense(images.astype(BF16), p["enter"]) + p["at"].astype(BF16))
        q = dense(p["words"][question].mean(axis=1).astype(BF16), p["question"])
        left, right = dense(x, p["left"]) + q[:, None], dense(x, p["right"])
        pairs = jax.nn.relu(left[:, :, None] + right[:, None])
        pairs = jax.nn.relu(dense(pairs, p["pair0"]))
        pairs = jax.nn.relu(dense(pairs, p["pair1"]))
        whole = pairs.astype(jnp.float32).sum(axis=(1, 2)).astype(BF16) / patches
        return cross_entropy(dense(jax.nn.relu(dense(whole, p["whole0"])), p["whole1"]), answer)

    images = floats(batch, patches, patch)
    return trained(loss, init, optax.adam(2.5e-4), images, ids(batch, asked), ids(batch))
