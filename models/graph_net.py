"""A graph network simulator: message passing between particles (Sanchez-Gonzalez et al. 2020).

The mould is the GNS of PartIR (arXiv 2401.11202, section 7): 24 message-passing steps whose MLPs
have 5 layers of 1024. Messages are summed at their receivers by `segment_sum`; tiling the edges
(PartIR's "edge sharding") leaves a partial sum of nodes per step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training


@dataclasses.dataclass(frozen=True)
class GraphNetConfig:
    """Sizes of `GraphNet`.

    Attributes:
      steps: message-passing steps, each with weights of its own.
      nodes, edges: of one graph.
      latent: width of what nodes and edges carry.
      hidden: width of the MLPs' hidden layers.
      mlp_layers: matrices of each MLP.
      features: numbers given per node and per edge.
      dtype: type of the products; parameters are float32.
    """

    steps: int = 2
    nodes: int = 32
    edges: int = 64
    latent: int = 16
    hidden: int = 32
    mlp_layers: int = 2
    features: int = 8
    dtype: Any = jnp.float32


CONFIGS: Mapping[str, GraphNetConfig] = {
    "graph-net-tiny": GraphNetConfig(),
    "graph-net": GraphNetConfig(24, 2048, 65536, 512, 1024, 5, 32, jnp.bfloat16),
}


class Perceptron(nn.Module):
    """ReLU MLP that ends in a LayerNorm; [rows, any] to [rows, latent]."""

    config: GraphNetConfig
    norm: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        for i in range(c.mlp_layers - 1):
            x = nn.relu(nn.Dense(c.hidden, dtype=c.dtype, name=f"dense_{i}")(x))
        x = nn.Dense(c.latent, dtype=c.dtype, name=f"dense_{c.mlp_layers - 1}")(x)
        return nn.LayerNorm(dtype=c.dtype, name="norm")(x) if self.norm else x


class GraphNet(nn.Module):
    """Features of nodes and edges and the edges' ends to an acceleration [nodes, 3]."""

    config: GraphNetConfig

    @nn.compact
    def __call__(
        self, nodes: jax.Array, edges: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> jax.Array:
        c = self.config
        v = Perceptron(c, name="encode_nodes")(nodes)
        e = Perceptron(c, name="encode_edges")(edges)
        for i in range(c.steps):
            ends = [jnp.take(v, at, axis=0, mode="clip") for at in (senders, receivers)]
            message = Perceptron(c, name=f"edges_{i}")(jnp.concatenate([e, *ends], axis=-1))
            total = jax.ops.segment_sum(message, receivers, c.nodes)
            change = Perceptron(c, name=f"nodes_{i}")(jnp.concatenate([v, total], axis=-1))
            v, e = v + change, e + message
        v = Perceptron(c, norm=False, name="decode")(v)
        return nn.Dense(3, dtype=c.dtype, name="acceleration")(v)


def sample_batch(config: GraphNetConfig, batch: int = 1, seed: int = 0) -> dict[str, jax.Array]:
    """One graph with `batch` times the edges of the config, and what its nodes should do."""
    keys = jax.random.split(jax.random.key(seed), 5)
    nodes, edges = config.nodes, config.edges * batch
    return {
        "nodes": jax.random.normal(keys[0], (nodes, config.features)),
        "edges": jax.random.normal(keys[1], (edges, config.features)),
        "senders": jax.random.randint(keys[2], (edges,), 0, nodes),
        "receivers": jax.random.randint(keys[3], (edges,), 0, nodes),
        "acceleration": jax.random.normal(keys[4], (nodes, 3)),
    }


def init_state(
    config: GraphNetConfig, tx: optax.GradientTransformation, seed: int = 0
) -> TrainState:
    """A fresh train state on the default device."""
    graph = sample_batch(dataclasses.replace(config, edges=1))
    inputs = [graph[k] for k in ("nodes", "edges", "senders", "receivers")]
    return training.create_state(GraphNet(config), tx, seed, *inputs)


def make_train_step(config: GraphNetConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""

    def loss(params: Any, batch: Any) -> jax.Array:
        inputs = [batch[k] for k in ("nodes", "edges", "senders", "receivers")]
        guess = GraphNet(config).apply({"params": params}, *inputs)
        return jnp.mean((guess.astype(jnp.float32) - batch["acceleration"]) ** 2)

    return training.make_step(loss)
