"""Random pairwise models, and their minimum by enumeration."""

from __future__ import annotations

import itertools

import numpy as np

from partir_search.exact.pairwise import Labelling, ModelBuilder, PairwiseModel


def random_model(
    seed: int, variables: int = 6, labels: int = 4, density: float = 0.5, forbidden: float = 0.1
) -> PairwiseModel:
    """A model with costs of both signs, ties, and some forbidden pairs."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, labels + 1, variables)
    built = ModelBuilder(sizes.tolist())
    built.add((), np.array(rng.normal()))
    for u in range(variables):
        built.add((u,), rng.normal(size=sizes[u]).round(1))
    for u, v in itertools.permutations(range(variables), 2):
        if rng.random() < density / 2:
            table = rng.normal(size=(sizes[u], sizes[v])).round(1)
            built.add((u, v), table + 100.0 * (rng.random(table.shape) < forbidden))
    return built.model()


def enumerated(model: PairwiseModel) -> Labelling:
    """The minimum over all labellings."""
    each = np.array([*itertools.product(*map(range, model.sizes))])
    energies = model.energies(each)
    least = int(np.argmin(energies))
    return Labelling(float(energies[least]), each[least])


def grid(seed: int, rows: int, columns: int, labels: int, strength: float = 1.0) -> PairwiseModel:
    """A grid of variables: wide, and with cycles."""
    rng = np.random.default_rng(seed)
    built = ModelBuilder([labels] * (rows * columns))
    for u in range(rows * columns):
        built.add((u,), rng.random(labels))
        for v in ((u + 1) if (u + 1) % columns else None, u + columns):
            if v is not None and v < rows * columns:
                built.add((u, v), strength * rng.random((labels, labels)))
    return built.model()
