"""Plans of small programs, and segments run one after another."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.segments.run import runnable
from partir_search.segments.segment import Segment, Segments

DP, ZERO3 = "BP(data)", "BP(data)+MP(model)+Z3"
SMALL = {"d_model": 32, "heads": 4, "d_ff": 64, "vocab": 64, "seq": 16}


@functools.cache
def mesh() -> Mesh:
    devices = jax.devices()[:8]
    return jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2, devices=devices)


@functools.cache
def known(model: str = "transformer-tiny", batch: int = 8, **sizes: Any) -> dict[str, ps.Plan]:
    """Known strategies of a model on the mesh, for CPUs."""
    entry = MODELS[model].resized(**sizes)
    step = ps.auto_partition(mesh(), machine="cpu", progress=False)(entry.step)
    return step.known_plans(*entry.abstract_args(batch))


def transformer(layers: int, plan: str = DP) -> ps.Plan:
    return known(layers=layers, **SMALL)[plan]


@functools.cache
def perceptron(layers: int) -> dict[str, ps.Plan]:
    """Known strategies of a residual perceptron trained with momentum."""

    def loss(params: Any, x: Any) -> Any:
        x = x @ params["first"]
        for layer in params["layers"]:
            mean = x.mean(-1, keepdims=True)
            normed = (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
            x = x + jax.nn.gelu(normed @ layer["up"]) @ layer["down"]
        return (x**2).mean()

    def step(state: Any, x: Any) -> Any:
        params, momenta = state
        value, gradients = jax.value_and_grad(loss)(params, x)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return (jax.tree.map(lambda p, m: p - 0.1 * m, params, momenta), momenta), value

    def weight(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    each = [{"up": weight(16, 32), "down": weight(32, 16)} for _ in range(layers)]
    params = {"first": weight(8, 16), "layers": each}
    state = params, params
    made = ps.auto_partition(mesh(), machine="cpu", progress=False)(step)
    return made.known_plans(state, weight(8, 8))


def filled(struct: jax.ShapeDtypeStruct, seed: int) -> Any:
    """An array of a shape: random floats, zeros of integers."""
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(struct.dtype, jnp.floating):
        x = jnp.asarray(rng.uniform(0.01, 0.1, struct.shape), struct.dtype)
    else:
        x = jnp.zeros(struct.shape, struct.dtype)
    return jax.device_put(x, struct.sharding)


def run_both(segments: Segments) -> list[tuple[Any, Any]]:
    """Each result of the whole program: of one run, and of the segments' runs in order."""
    whole = runnable(segments.whole, mesh())
    arguments = [filled(struct, i) for i, struct in enumerate(whole.structs)]
    parts = [runnable(segments.unique[i], mesh(), copy) for i, copy in segments.sequence]

    def one_by_one(*arguments: Any) -> list[Any]:
        values = {x.id: a for x, a in zip(whole.args, arguments, strict=True)}
        for part in parts:
            outs = part.function(*(values[x.id] for x in part.args))
            values.update((x.id, out) for x, out in zip(part.results, outs, strict=True))
        return [values[x.id] for x in whole.results]

    return list(zip(whole.jitted(*arguments), jax.jit(one_by_one)(*arguments), strict=True))


def named(segments: Segments, name: str) -> Segment:
    return next(each for each in segments.unique if each.name.startswith(name))
