"""Models that the experiments and tests train: plain jax and flax, nothing of `partir_search`."""
