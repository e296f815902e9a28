"""Train steps with jax's attention kernels for TPUs, planned and compiled.

    python -m experiments.attention_kernels --kernels=flash,splash,plain

A GPT's step (bf16 products, f32 state, adamw) calls flash attention or splash attention of
`jax.experimental.pallas.ops.tpu`, or `jax.nn.dot_product_attention`. Prints predicted seconds and
peak memory beside the compiler's peak, and its report of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps

FLAGS = flags.FLAGS
flags.DEFINE_list("kernels", ["flash", "splash", "plain"], "Attention of the step.")
flags.DEFINE_integer("batch", 64, "Examples in a step.")
flags.DEFINE_integer("seq", 2048, "Tokens of an example.")
flags.DEFINE_integer("width", 1024, "Features; heads have 128.")
flags.DEFINE_integer("layers", 2, "Layers.")
flags.DEFINE_integer("vocab", 32000, "Words.")
flags.DEFINE_string("target", "tpu_v5e:2x4", "Machine and topology to compile for.")

HEAD = 128  # features of a head


def attention(kernel: str, heads: int, seq: int) -> Callable[[Any, Any, Any], Any]:
    """Causal attention of [batch, heads, seq, features]."""
    scale = HEAD**-0.5
    if kernel == "flash":
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        return lambda q, k, v: flash_attention(q, k, v, causal=True, sm_scale=scale)
    if kernel == "splash":
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        mask = splash.MultiHeadMask([splash.CausalMask((seq, seq))] * heads)
        one = splash.make_splash_mha_single_device(mask)
        return lambda q, k, v: jax.vmap(one)(q * scale, k, v)

    def plain(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2)

    return plain


def program(kernel: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A train step and its abstract arguments."""
    batch, seq, width, vocab = FLAGS.batch, FLAGS.seq, FLAGS.width, FLAGS.vocab
    heads, tx = width // HEAD, optax.adamw(1e-3)
    attend = attention(kernel, heads, seq)

    def norm(x: Any) -> Any:
        square = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
        return x * jax.lax.rsqrt(square + 1e-6).astype(x.dtype)

    def loss(params: Any, tokens: Any) -> Any:
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = params["embed"][tokens[:, :-1]]
        for w in params["layers"]:
            q, k, v = (norm(x) @ w[name] for name in ("q", "k", "v"))
            q, k, v = (a.reshape(batch, seq, heads, HEAD).swapaxes(1, 2) for a in (q, k, v))
            x = x + attend(q, k, v).swapaxes(1, 2).reshape(x.shape) @ w["out"]
            x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
        logits = (x @ params["embed"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], tokens)
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    def init() -> Any:
        shapes = dict.fromkeys(("q", "k", "v", "out"), (width, width))
        shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
        layers = [{n: jnp.zeros(s) for n, s in shapes.items()} for _ in range(FLAGS.layers)]
        params = {"embed": jnp.zeros((vocab, width)), "layers": layers}
        return {"params": params, "opt": tx.init(params)}

    return step, (jax.eval_shape(init), jax.ShapeDtypeStruct((batch, seq + 1), jnp.int32))


def main(_: Any) -> None:
    table = Table("attention", "ms", "peak GB", "compiled GB", "collectives")
    mesh = AbstractMesh((2, 4), ("data", "model"))
    for kernel in FLAGS.kernels:
        step, args = program(kernel)
        machine = FLAGS.target.partition(":")[0]
        planned = ps.auto_partition(mesh, machine=machine, donate_argnums=0, progress=False)
        plan = planned(step).plan(*args)
        found = plan.verify(FLAGS.target)
        table.add_row(
            kernel,
            f"{plan.cost.seconds * 1e3:.2f}",
            f"{plan.cost.peak_bytes / 1e9:.2f}",
            f"{found.peak_bytes[1] / 1e9:.2f}",
            "as predicted" if found.confirmed else "differ",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    app.run(main)
