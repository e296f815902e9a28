"""Train steps of many kinds of models, small, written as their users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, WORDS, BATCH, LENGTH, HEADS = 8, 16, 24, 16, 6, 2
LAYER = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
}
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))
WINDOW = CAUSAL & ~np.tril(CAUSAL, -3)


def init(seed: int, **shapes: tuple[int, ...]) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        n: 0.3 * jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)
    }


def layers(seed: int = 1, **extra: tuple[int, ...]) -> list[Any]:
    return [init(seed * 100 + i, **LAYER, **extra) for i in range(LAYERS)]


def params(seed: int = 1, **extra: Any) -> dict[str, Any]:
    return {
        **init(seed, embedding=(WORDS, WIDTH), head=(WIDTH, WORDS)),
        "layers": layers(seed),
        **extra,
    }


def norm(h: Any) -> Any:
    return h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-5)


def split(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS)


def attend(h: Any, p: Any, mask: Any = CAUSAL, bias: Any = 0.0, kv: Any = None) -> Any:
    key, value = kv or (split(h @ p["k"]), split(h @ p["v"]))
    scores = jnp.einsum("bqhd,bkhd->bhqk", split(h @ p["q"]), key) / 3 + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(h.shape) @ p["o"]


def mlp(h: Any, p: Any) -> Any:
    return jax.nn.gelu(h @ p["up"]) @ p["down"]


def block(h: Any, p: Any, **options: Any) -> Any:
    h = h + attend(norm(h), p, **options)
    return h + mlp(norm(h), p)


def scores_of(h: Any, head: Any, tokens: Any) -> Any:
    found = jax.nn.log_softmax(norm(h) @ head)
    return jnp.take_along_axis(found, tokens[:, 1:, None], axis=2)[..., 0]


def local_and_global(p: Any, batch: Any) -> Any:
    """Windows in every second layer, one matrix as embedding and head."""
    tokens = batch["tokens"]
    h = p["embedding"][tokens[:, :-1]] * np.sqrt(WIDTH)
    for i, layer in enumerate(p["layers"]):
        h = block(h, layer, mask=CAUSAL if i % 2 else WINDOW)
    return -scores_of(h, p["embedding"].T, tokens).mean()


def experts(p: Any, batch: Any) -> Any:
    """Experts in every second layer, and the mean entropy of the routers."""
    tokens, entropies = batch["tokens"], []
    h = p["embedding"][tokens[:, :-1]]
    for i, layer in enumerate(p["layers"]):
        if i % 2 == 0:
            h = block(h, layer)
            continue
        h = h + attend(norm(h), layer)
        gates = jax.nn.softmax(norm(h) @ layer["router"])
        entropies.append(-(gates * jnp.log(gates + 1e-6)).sum(-1).mean())
        top = jnp.where(gates >= jax.lax.top_k(gates, 2)[0][..., 1:], gates, 0.0)
        hidden = jax.nn.gelu(jnp.einsum("btd,edf->btef", norm(h), layer["in"]))
        h = h + jnp.einsum("bte,btef,efd->btd", top, hidden, layer["out"])
    return -scores_of(h, p["head"], tokens).mean() + 0.01 * jnp.stack(entropies).mean()


def prefix(p: Any, batch: Any) -> Any:
    """Each example sees all of a prefix of its own length."""
    tokens, length = batch["tokens"], batch["prefix"][:, None]
    mask = CAUSAL | (jnp.arange(LENGTH) < length)[:, None, None]
    h = p["embedding"][tokens[:, :-1]]
    for layer in p["layers"]:
        h = block(h, layer, mask=mask)
    weights = (jnp.arange(LENGTH) >= length).astype(jnp.float32)
    return -(scores_of(h, p["head"], tokens) * weights).sum() / weights.sum()


def parallel(p: Any, batch: Any) -> Any:
    """Attention with rotary positions and MLP read one norm."""
    tokens = batch["tokens"]
    angles = np.arange(LENGTH)[:, None] / 100.0 ** (np.arange(0, 8, 2) / 8)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

    def rotated(x: Any) -> Any:
        one, two = x[..., ::2], x[..., 1::2]
        return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

    h = p["embedding"][tokens[:, :-1]]
    for layer in p["layers"]:
        x = norm(h)
        kv = rotated(split(x @ layer["k"])), split(x @ layer["v"])
        h = h + attend(x, layer, kv=kv) + mlp(x, layer)
    return -scores_of(h, p["head"], tokens).mean()


def shared_keys(p: Any, batch: Any) -> Any:
    """All layers of the upper half read one set of keys and values."""
    tokens = batch["tokens"]
    h = p["embedding"][tokens[:, :-1]]
    for layer in p["layers"][: LAYERS // 2]:
        h = block(h, layer)
    kv = split(norm(h) @ p["key"]), split(norm(h) @ p["value"])
    for layer in p["layers"][LAYERS // 2 :]:
        h = block(h, layer, kv=kv)
    return -scores_of(h, p["head"], tokens).mean()


def keys_of_pairs(p: Any, batch: Any) -> Any:
    """Every second layer reads keys and values of the layer before."""
    tokens, kv = batch["tokens"], None
    h = p["embedding"][tokens[:, :-1]]
    for i, layer in enumerate(p["layers"]):
        if i % 2 == 0:
            kv = split(norm(h) @ layer["k"]), split(norm(h) @ layer["v"])
        h = block(h, layer, kv=kv)
    return -scores_of(h, p["head"], tokens).mean()


def slopes(p: Any, batch: Any) -> Any:
    """Biases that grow with the distance, and a learned table that a scan makes."""
    tokens = batch["tokens"]
    distance = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    bias = 2.0 ** -np.arange(1, HEADS + 1)[:, None, None] * distance
    start = jnp.zeros(LENGTH)
    _, table = jax.lax.scan(lambda c, r: (jnp.tanh(c @ p["mix"] + r),) * 2, start, p["rows"])
    h = p["embedding"][tokens[:, :-1]]
    for layer in p["layers"]:
        h = block(h, layer, bias=bias + table)
    return -scores_of(h, p["head"], tokens).mean()


def diffusion(p: Any, batch: Any) -> Any:
    """All layers read an embedding of the time for scales, shifts and gates."""
    time = batch["time"][:, None]
    waves = time * jnp.exp(-np.arange(WIDTH // 2) / 2.0)
    c = jax.nn.silu(jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1) @ p["time"])
    h = batch["x"] * time[..., None] + batch["noise"] * (1 - time)[..., None]
    for layer in p["layers"]:
        shift, scale, gate = jnp.split((c @ layer["modulation"])[:, None], 3, -1)
        h = h + gate * attend(norm(h) * (1 + scale) + shift, layer)
        h = h + gate * mlp(norm(h) * (1 + scale) + shift, layer)
    return ((h - batch["noise"]) ** 2).mean()


def residual(h: Any, layer: Any) -> Any:
    return h + jnp.tanh(norm(h) @ layer["q"]) @ layer["o"]


def joined(h: Any, skip: Any, layer: Any) -> Any:
    return residual(jnp.concatenate([h, skip], -1) @ layer["down"], layer)


def u_shaped(p: Any, batch: Any) -> Any:
    """Layer L - 1 - i reads the result of layer i."""
    h, skips = batch["x"], []
    for layer in p["layers"][: LAYERS // 2]:
        h = residual(h, layer)
        skips.append(h)
    for layer in p["layers"][LAYERS // 2 :]:
        h = joined(h, skips.pop(), layer)
    return ((h - batch["noise"]) ** 2).mean()


def u_shaped_scans(reverse: bool) -> Callable[..., Any]:
    """Scans down and up; the skips are turned round, or read by a scan in reverse."""

    def loss(p: Any, batch: Any) -> Any:
        def down(h: Any, layer: Any) -> Any:
            return (residual(h, layer),) * 2

        def up(h: Any, given: Any) -> Any:
            return joined(h, given[1], given[0]), None

        h, skips = jax.lax.scan(down, batch["x"], p["down"])
        skips = skips if reverse else skips[::-1]
        h, _ = jax.lax.scan(up, h, (p["up"], skips), reverse=reverse)
        return ((h - batch["noise"]) ** 2).mean()

    return loss


def adapted(adapters: Any, base: Any, batch: Any) -> Any:
    """Adapters of low rank on a frozen model."""
    tokens = batch["tokens"]
    h = base["embedding"][tokens[:, :-1]]
    for layer, a in zip(base["layers"], adapters, strict=True):
        changed = {n: layer[n] + a[f"{n}_in"] @ a[f"{n}_out"] for n in ("q", "v", "up")}
        h = block(h, {**layer, **changed})
    return -scores_of(h, base["head"], tokens).mean()


def adapting(adapters: Any, base: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(adapted)(adapters, base, batch)
    return jax.tree.map(lambda a, g: a - 0.1 * g, adapters, grads), value


def logits(p: Any, tokens: Any) -> Any:
    h = p["embedding"][tokens[:, :-1]]
    for layer in p["layers"]:
        h = block(h, layer)
    return norm(h) @ p["head"]


def distilled(student: Any, teacher: Any, batch: Any) -> Any:
    """A student learns the logits of a frozen teacher of the same layers."""
    target = jax.nn.softmax(logits(teacher, batch["tokens"]) / 2)

    def loss(student: Any) -> Any:
        found = jax.nn.log_softmax(logits(student, batch["tokens"]) / 2)
        return -(target * found).sum(-1).mean()

    value, grads = jax.value_and_grad(loss)(student)
    return jax.tree.map(lambda p, g: p - 0.1 * g, student, grads), value


def averaged(state: Any, batch: Any) -> Any:
    """Momentum, and an average of the weights."""
    value, grads = jax.value_and_grad(parallel)(state["params"], batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    new = jax.tree.map(lambda p, m: p - 0.05 * m, state["params"], momentum)
    average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, state["average"], new)
    return {"params": new, "momentum": momentum, "average": average}, value


def unnamed(embedding: Any, w: Any, b: Any, tokens: Any) -> Any:
    """Arrays without names, updated and returned in a tuple."""

    def loss(embedding: Any, w: Any, b: Any) -> Any:
        h = embedding[tokens[:, :-1]]
        h, _ = jax.lax.scan(lambda h, p: (h + jnp.sin(h @ p[0] + p[1]), None), h, (w, b))
        return -scores_of(h, embedding.T, tokens).mean()

    value, grads = jax.value_and_grad(loss, (0, 1, 2))(embedding, w, b)
    new = [p - 0.1 * g for p, g in zip((embedding, w, b), grads, strict=True)]
    return tuple(new), value


def _trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def arguments(name: str) -> tuple[Any, ...]:
    """Arguments of a step."""
    random = np.random.RandomState(0)
    tokens = random.randint(0, WORDS, (BATCH, LENGTH + 1))
    batch = {"tokens": tokens, "prefix": random.randint(1, LENGTH, BATCH)}
    images = {n: random.randn(BATCH, LENGTH, WIDTH).astype(np.float32) for n in ("x", "noise")}
    images["time"] = random.rand(BATCH).astype(np.float32)
    square, half = (WIDTH, WIDTH), LAYERS // 2
    if name == "experts":
        extra = {"router": (WIDTH, 4), "in": (4, WIDTH, WIDTH), "out": (4, WIDTH, WIDTH)}
        further = [init(900 + i, **extra) if i % 2 else {} for i in range(LAYERS)]
        return params(layers=[p | x for p, x in zip(layers(), further, strict=True)]), batch
    if name == "adapting":
        ranks = {f"{n}_in": (WIDTH, 2) for n in ("q", "v", "up")}
        ranks |= {"q_out": (2, WIDTH), "v_out": (2, WIDTH), "up_out": (2, 2 * WIDTH)}
        return [init(500 + i, **ranks) for i in range(LAYERS)], params(), batch
    if name == "distilled":
        return params(), params(2), batch
    if name == "averaged":
        p = params()
        return {"params": p, "average": p, "momentum": jax.tree.map(jnp.zeros_like, p)}, batch
    if name == "unnamed":
        found = init(3, embedding=(WORDS, WIDTH), w=(LAYERS, *square), b=(LAYERS, WIDTH))
        return *found.values(), tokens
    if name == "diffusion":
        modulated = layers(modulation=(WIDTH, 3 * WIDTH))
        return {**init(4, time=square), "layers": modulated}, images
    if name.startswith("u_shaped_"):
        stacks = {n: (half, *shape) for n, shape in LAYER.items()}
        return {"down": init(5, **stacks), "up": init(6, **stacks)}, images
    if name == "u_shaped":
        return {"layers": layers()}, images
    table = init(7, key=square, value=square, mix=(LENGTH, LENGTH), rows=(LENGTH, LENGTH))
    return params(**table), batch


STEPS: dict[str, Callable[..., Any]] = {
    "local_and_global": _trained(local_and_global),
    "experts": _trained(experts),
    "prefix": _trained(prefix),
    "parallel": _trained(parallel),
    "shared_keys": _trained(shared_keys),
    "keys_of_pairs": _trained(keys_of_pairs),
    "slopes": _trained(slopes),
    "diffusion": _trained(diffusion),
    "u_shaped": _trained(u_shaped),
    "u_shaped_turned": _trained(u_shaped_scans(reverse=False)),
    "u_shaped_reversed": _trained(u_shaped_scans(reverse=True)),
    "adapting": adapting,
    "distilled": distilled,
    "averaged": averaged,
    "unnamed": unnamed,
}
