"""A trainer as MaxText is one: logical names in the model, rules for them in a YAML file.

    python train.py after.yml base_emb_dim=64 base_mlp_dim=128 base_num_query_heads=4 head_dim=16

Words after the file replace its entries.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import yaml

optimizer = optax.adamw(1e-2)


class Config:
    """Entries of a YAML file, and of ``name=value`` words after it, as attributes."""

    def __init__(self, path: str, *words: str) -> None:
        with open(path) as file:
            self.__dict__.update(yaml.safe_load(file))
        for word in words:
            name, _, value = word.partition("=")
            self.__dict__[name] = yaml.safe_load(value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the config has no {name}")


def named(*names: str) -> Any:
    """Initializer whose array has logical names."""
    return nn.with_logical_partitioning(nn.initializers.normal(0.05), names)


class Decoder(nn.Module):
    config: Any

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        embed = self.param("embed", named("vocab", "embed"), (c.vocab_size, c.base_emb_dim))
        x = nn.with_logical_constraint(embed[tokens], ("activation_batch", None, None))
        for i in range(c.base_num_decoder_layers):
            x = x + self.attention(i, nn.RMSNorm(name=f"norm{i}a")(x))
            x = x + self.mlp(i, nn.RMSNorm(name=f"norm{i}b")(x))
        return x @ embed.T

    def attention(self, i: int, x: jax.Array) -> jax.Array:
        c = self.config
        heads = c.base_emb_dim, c.base_num_query_heads, c.head_dim
        into = named("embed", "heads", "kv")
        q, k, v = (
            jnp.einsum("bsd,dhk->bshk", x, self.param(f"{n}{i}", into, heads)) for n in "qkv"
        )
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        back = self.param(f"o{i}", named("heads", "kv", "embed"), (*heads[1:], heads[0]))
        return jnp.einsum("bshk,hkd->bsd", seen, back)

    def mlp(self, i: int, x: jax.Array) -> jax.Array:
        c = self.config
        up = self.param(f"up{i}", named("embed", "mlp"), (c.base_emb_dim, c.base_mlp_dim))
        down = self.param(f"down{i}", named("mlp", "embed"), (c.base_mlp_dim, c.base_emb_dim))
        return jax.nn.gelu(x @ up) @ down


def mesh_of(config: Config) -> jax.sharding.Mesh:
    sizes = [getattr(config, f"ici_{axis}_parallelism") for axis in config.mesh_axes]
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return jax.sharding.Mesh(devices, config.mesh_axes)


def boxed_state(config: Config) -> Any:
    """Train state whose arrays carry their logical names."""
    tokens = jnp.zeros((1, config.max_target_length), jnp.int32)
    params = Decoder(config).init(jax.random.key(0), tokens)["params"]
    return {"params": params, "opt_state": optimizer.init(params)}


def train_step(config: Config, state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
        logits = Decoder(config).apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, value


def names_of(config: Config) -> Any:
    """Logical names of the train state's arrays."""
    return nn.get_partition_spec(jax.eval_shape(lambda: boxed_state(config)))


def main(path: str, *words: str) -> list[float]:
    config = Config(path, *words)
    mesh, rules = mesh_of(config), config.logical_axis_rules
    state_shardings = nn.logical_to_mesh_sharding(names_of(config), mesh, rules)
    batch = nn.logical_to_mesh_sharding(jax.P("activation_batch", None), mesh, rules)
    losses, rng = [], np.random.default_rng(0)
    shape = config.global_batch_size, config.max_target_length + 1
    with nn.logical_axis_rules(rules), jax.set_mesh(mesh):
        init = lambda: nn.unbox(boxed_state(config))  # noqa: E731
        state = jax.jit(init, out_shardings=state_shardings)()
        step = jax.jit(
            lambda state, tokens: train_step(config, state, tokens),
            in_shardings=(state_shardings, batch),
            out_shardings=(state_shardings, None),
            donate_argnums=0,
        )
        for _ in range(4):
            tokens = rng.integers(0, config.vocab_size, shape).astype(np.int32)
            state, value = step(state, jax.device_put(tokens, batch))
            losses.append(float(value))
    return losses


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
