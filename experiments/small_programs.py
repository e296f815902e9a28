"""Programs small enough for every plan of them to be looked at."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.exact import enumerate_states
from partir_search.mcts.game import Record, play, rewind
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.simulator.target.machine import Machine
from partir_search.strategies.catalogue import named_strategies

Program = tuple[Callable[..., Any], tuple[Any, ...]]

TIGHT = 0.6

MESHES = (
    MeshShape(("data",), (4,)),
    MeshShape(("data",), (8,)),
    MeshShape(("data", "model"), (2, 2)),
    MeshShape(("data", "model"), (4, 2)),
)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(widths: list[int], batch: int, *, bias: bool = False, step: bool = True) -> Program:
    """Layers of the given widths; a gradient step, or the loss alone."""

    def loss(params: Any, x: Any) -> Any:
        for layer in params:
            x = x @ layer["w"]
            if bias:
                x = x + layer["b"]
            x = jax.nn.relu(x)
        return jnp.mean(x**2)

    def train(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    pairs = list(itertools.pairwise(widths))
    params = [{"w": f32(m, n)} | ({"b": f32(n)} if bias else {}) for m, n in pairs]
    return (train if step else loss), (params, f32(batch, widths[0]))


def with_adam(width: int, batch: int) -> Program:
    """A linear model with Adam's two moments."""
    tx = optax.adam(1e-3)

    def train(w: Any, moments: Any, x: Any) -> Any:
        updates, moments = tx.update(jax.grad(lambda v: jnp.mean((x @ v) ** 2))(w), moments, w)
        return optax.apply_updates(w, updates), moments

    w = f32(width, width)
    return train, (w, jax.eval_shape(tx.init, w), f32(batch, width))


def attention(seq: int, heads: int, width: int, *, grad: bool, kv_heads: int = 0) -> Program:
    """The attention of one block, with grouped keys and values if `kv_heads` is given."""
    kv = kv_heads or heads

    def loss(params: Any, x: Any) -> Any:
        q = jnp.einsum("bsm,mkgd->bskgd", x, params["q"])
        k = jnp.einsum("bsm,mkd->bskd", x, params["k"])
        v = jnp.einsum("bsm,mkd->bskd", x, params["v"])
        weights = jax.nn.softmax(jnp.einsum("bskgd,btkd->bkgst", q, k), axis=-1)
        mixed = jnp.einsum("bkgst,btkd->bskgd", weights, v)
        return jnp.mean((x + jnp.einsum("bskgd,kgdm->bsm", mixed, params["o"])) ** 2)

    def train(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    model, groups = heads * width, heads // kv
    params = {
        "q": f32(model, kv, groups, width),
        "k": f32(model, kv, width),
        "v": f32(model, kv, width),
        "o": f32(kv, groups, width, model),
    }
    return (train if grad else loss), (params, f32(16, seq, model))


def experts(n: int, model: int, hidden: int, tokens: int) -> Program:
    """A dense mixture of experts: every token through all, weighted by a soft gate."""

    def loss(params: Any, x: Any) -> Any:
        gate = jax.nn.softmax(x @ params["gate"], axis=-1)
        h = jax.nn.relu(jnp.einsum("tm,emh->eth", x, params["up"]))
        return jnp.mean(jnp.einsum("eth,ehm,te->tm", h, params["down"], gate) ** 2)

    params = {"gate": f32(model, n), "up": f32(n, model, hidden), "down": f32(n, hidden, model)}
    return loss, (params, f32(tokens, model))


def classifier(vocab: int, width: int, batch: int) -> Program:
    """An embedding and a tied head with cross-entropy."""

    def loss(table: Any, tokens: Any) -> Any:
        logits = table[tokens[:, 0]] @ table.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1]).mean()

    def train(table: Any, tokens: Any) -> Any:
        return table - 0.1 * jax.grad(loss)(table, tokens)

    return train, (f32(vocab, width), jax.ShapeDtypeStruct((batch, 2), jnp.int32))


def convolution_free_mixer(tokens: int, width: int) -> Program:
    """One block of an MLP-Mixer: along tokens, then along channels."""

    def loss(params: Any, x: Any) -> Any:
        y = jnp.einsum("btc,tu->buc", x, params["token_in"])
        x = x + jnp.einsum("buc,ut->btc", jax.nn.gelu(y), params["token_out"])
        y = jax.nn.gelu(x @ params["channel_in"])
        return jnp.mean((x + y @ params["channel_out"]) ** 2)

    params = {
        "token_in": f32(tokens, 4 * tokens),
        "token_out": f32(4 * tokens, tokens),
        "channel_in": f32(width, 4 * width),
        "channel_out": f32(4 * width, width),
    }
    return loss, (params, f32(64, tokens, width))


PROGRAMS: dict[str, Program] = {
    "linear": mlp([1024, 1024], 4096),
    "linear wide": mlp([1024, 8192], 256),
    "mlp 2": mlp([1024, 4096, 1024], 2048),
    "mlp 2 small batch": mlp([2048, 8192, 2048], 64),
    "mlp 2 bias": mlp([1024, 4096, 1024], 512, bias=True),
    "mlp 3": mlp([512, 2048, 2048, 512], 1024),
    "mlp 4 loss": mlp([512, 2048, 512, 2048, 512], 1024, step=False),
    "adam": with_adam(2048, 512),
    "attention loss": attention(256, 8, 64, grad=False),
    "attention": attention(128, 8, 64, grad=True),
    "grouped attention loss": attention(256, 16, 64, grad=False, kv_heads=4),
    "experts": experts(8, 512, 2048, 1024),
    "classifier": classifier(32768, 512, 4096),
    "mixer": convolution_free_mixer(256, 512),
}


def module_of(name: str) -> Module:
    """A program, traced."""
    fn, args = PROGRAMS[name]
    jitted = jax.jit(fn, donate_argnums=0)
    return trace_call(jitted, split_call(fn, args, {}, (), ()), args, {}, name).module


def game_of(module: Module, mesh: MeshShape, machine: Machine, *, tight: bool) -> PlanningGame:
    """The game on a program; `tight`: with `TIGHT` of the memory that it needs unpartitioned."""
    _, game = Planner(module, mesh, machine).game(mesh.names)
    if tight:
        limit = int(game.cost().peak_bytes * TIGHT)
        machine = dataclasses.replace(machine, hbm_bytes=limit)
        _, game = Planner(module, mesh, machine).game(mesh.names)
    return game


def enumerated(game: PlanningGame, states: int) -> Record | None:
    """Everything that a search could find, or None if it has more states than that."""
    record = Record(game, episodes=1)
    if not enumerate_states(game, record, states):
        return None
    # Their plans need not be reached one by one.
    for _, moves in named_strategies(game.mesh, game.axes, game.targets):
        taken = list(play(game, moves))
        record.evaluate(taken)
        rewind(game, len(taken))
    return record


def modules() -> Iterator[tuple[str, Module]]:
    """Every program, traced."""
    for name in PROGRAMS:
        yield name, module_of(name)
