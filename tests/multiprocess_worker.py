"""One process of `test_multiprocess.py`: port, processes, index. Prints one line of JSON."""

from __future__ import annotations

import json
import sys

import jax

port, processes, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)

import jax.numpy as jnp  # noqa: E402  (after initialize, which must come first)
import numpy as np  # noqa: E402

import partir_search as ps  # noqa: E402
from models.transformer import (  # noqa: E402
    TransformerConfig,
    init_state,
    make_train_step,
    optimizer,
)

mesh = jax.make_mesh((2, 4), ("batch", "model"))
config = TransformerConfig(layers=1, d_model=16, heads=4, d_ff=32, vocab=32, seq=8, dropout=0.1)
step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=60, donate_argnums=0)(
    make_train_step(config)
)
state = jax.jit(lambda: init_state(config, optimizer(steps=3)))()
tokens = host_tokens = np.random.default_rng(0).integers(0, 32, (8, 9)).astype(np.int32)
key = jax.random.key(5)
plan = step.plan(state, tokens, key)
losses = []
for _ in range(2):
    state, loss = step(state, tokens, key)
    losses.append(float(loss))
    whole = jax.NamedSharding(mesh, jax.P())  # a global array that is not laid out as planned
    tokens = jax.make_array_from_callback(host_tokens.shape, whole, lambda i: host_tokens[i])
norm = jax.jit(lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(p)))(state.params)
print(json.dumps({"plan": plan.to_json(), "losses": losses, "norm": float(norm)}))
