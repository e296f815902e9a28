"""Batches of labelled images, for the classifiers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class Batch(NamedTuple):
    """Images [batch, height, width, 3] and their classes [batch]."""

    images: jax.Array
    labels: jax.Array


def sample_batch(config: Any, batch: int, seed: int = 0) -> Batch:
    """Random images of the config's size, and classes."""
    image, label = jax.random.split(jax.random.key(seed))
    shape = (batch, config.image, config.image, 3)
    labels = jax.random.randint(label, (batch,), 0, config.classes)
    return Batch(jax.random.normal(image, shape), labels)
