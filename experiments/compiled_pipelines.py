"""Pipelines of a scanned language model, compiled ahead of time for TPU v5e.

    python -m experiments.compiled_pipelines
    python -m experiments.compiled_pipelines --only="d 1,024" --cycles
    python -m experiments.compiled_pipelines --held_out

Predicted and compiled peaks of the rows in docs/evidence/pipelines.md, and with `--cycles` the
seconds by the compiler's cycles beside the predicted ones (minutes for each row). Layers are
recomputed unless kept, weights are stored in f32 and used in bf16, and tokens are tiled on the
axis `data`. Nothing runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.aot.judge import judge

FLAGS = flags.FLAGS
flags.DEFINE_string("only", "", "Rows whose name contains this text.")
flags.DEFINE_boolean("held_out", False, "Rows on which no rule of the simulator was found.")
flags.DEFINE_boolean("cycles", False, "Compile in full, for the compiler's cycles.")

HEAD = 128  # features of a head


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of a scanned language model.

    Attributes:
      attention: layers have attention, written out, before the two products.
      kept: layers keep their residuals.
    """

    width: int = 1024
    words: int = 8192
    length: int = 512
    layers: int = 8
    attention: bool = False
    kept: bool = False

    def abstract_params(self) -> Any:
        """Shapes of the parameters."""

        def f32(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jnp.float32)

        n, d = self.layers, self.width
        layers = {"up": f32(n, d, 4 * d), "down": f32(n, 4 * d, d)}
        if self.attention:
            layers |= {name: f32(n, d, d) for name in ("q", "k", "v", "o")}
        return {"embedding": f32(self.words, d), "layers": layers}

    def layer(self, h: Any, p: Any) -> Any:
        """Residual attention, if any, and two products with a gelu between."""
        if self.attention:
            query, key, value = (
                (h @ p[name]).reshape(*h.shape[:2], self.width // HEAD, HEAD) for name in "qkv"
            )
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.bfloat16(HEAD**0.5)
            weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16)
            h = h + jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(h.shape) @ p["o"]
        return h + jax.nn.gelu(h @ p["up"]) @ p["down"], None

    def step(self, params: Any, tokens: Any) -> Any:
        """Gradient descent."""

        def loss(params: Any) -> Any:
            narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
            layer = self.layer if self.kept else jax.checkpoint(self.layer)
            h, _ = jax.lax.scan(layer, narrow["embedding"][tokens[:, :-1]], narrow["layers"])
            scores = jax.nn.log_softmax((h @ narrow["embedding"].T).astype(jnp.float32))
            return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


@dataclasses.dataclass(frozen=True)
class Row:
    """A model, its pipeline and mesh.

    Attributes:
      sequences: in a device's microbatch.
    """

    name: str
    model: Model
    pipeline: Any
    stages: int = 4
    groups: int = 2
    sequences: int = 2

    def plan(self, machine: Any = "tpu_v5e") -> Any:
        """Plan for a machine, without a search."""
        batch = self.sequences * self.groups * self.pipeline.microbatches
        step = ps.auto_partition(
            AbstractMesh((self.stages, self.groups), ("stage", "data")),
            machine=machine,
            schedule=[self.pipeline, ps.ManualPartition({"tokens": 0}, "data")],
            progress=False,
        )(jax.jit(self.model.step, donate_argnums=0))
        tokens = jax.ShapeDtypeStruct((batch, self.model.length + 1), jnp.int32)
        return step.plan(self.model.abstract_params(), tokens)


def pipeline(microbatches: int = 8, chunks: int = 1, split: bool = False, **kw: Any) -> Any:
    return ps.Pipeline(
        "stage", microbatches=microbatches, chunks=chunks, split_backward=split, **kw
    )


SMALL, B = Model(), Model(width=2048, words=32768, length=1024)
NARROW = Model(width=768, words=16384, layers=16)


def _attending(model: Model, **sizes: Any) -> Model:
    return dataclasses.replace(model, attention=True, **sizes)


ROWS = (
    Row("d 1,024", SMALL, pipeline()),
    Row("d 1,024, 16 microbatches", SMALL, pipeline(16)),
    Row("d 1,024, 2 chunks", SMALL, pipeline(chunks=2)),
    Row("d 1,024, attention", _attending(SMALL), pipeline()),
    Row("d 1,024, attention, split", _attending(SMALL), pipeline(split=True)),
    Row("d 1,024, attention, 2 chunks", _attending(SMALL), pipeline(chunks=2)),
    Row("d 1,024, attention, 2 chunks, split", _attending(SMALL), pipeline(chunks=2, split=True)),
    Row("B", B, pipeline()),
    Row("B, 2 chunks", B, pipeline(chunks=2)),
    Row("B, attention", _attending(B), pipeline()),
    Row("B, attention, split", _attending(B), pipeline(split=True)),
    Row("B, attention, 2 chunks, split", _attending(B), pipeline(chunks=2, split=True)),
    Row("d 768, attention, GPipe", _attending(NARROW), pipeline(schedule="gpipe")),
    Row("d 768, 4 chunks", NARROW, pipeline(chunks=4)),
    Row("d 768, attention, 4 chunks", _attending(NARROW), pipeline(chunks=4)),
    Row("d 768, attention, 8 stages", _attending(NARROW), pipeline(16), stages=8, groups=1),
    Row("d 768, attention, kept", _attending(NARROW, kept=True), pipeline()),
    Row(
        "d 1,536, attention, 2 stages, 2 chunks",
        Model(width=1536, words=16384, length=1024, attention=True),
        pipeline(4, chunks=2),
        stages=2,
        groups=4,
        sequences=4,
    ),
    Row("d 768, attention, 2 chunks, split", _attending(NARROW), pipeline(chunks=2, split=True)),
)


_PLAIN = Model(words=8192)
_WIDE = _attending(_PLAIN, width=1024)
_TWO, _SPLIT = pipeline(chunks=2), pipeline(chunks=2, split=True)


def _held(name: str, model: Model, pipeline: Any, **row: int) -> Row:
    """A row named by its width and what else tells it apart."""
    return Row(f"held out, d {model.width}, {name}", model, pipeline, **row)


HELD_OUT = (
    _held("2 chunks", Model(width=640), _TWO),
    _held("2 chunks", Model(width=1280), _TWO),
    _held("attention, 2 chunks", _attending(_PLAIN, width=1280), _TWO),
    _held(
        "attention, 3 chunks",
        _attending(NARROW, layers=12),
        pipeline(chunks=3),
        sequences=4,
    ),
    _held("32,768 words, 2 chunks", Model(words=32768), _TWO, sequences=4),
    _held("attention", _attending(NARROW, width=1536, layers=8), pipeline()),
    _held("attention, kept, 2 chunks", _attending(_PLAIN, width=896, kept=True), _TWO),
    _held("kept", Model(width=896, layers=16, kept=True), pipeline()),
    _held("attention, 16 layers, 2 chunks", _attending(_WIDE, layers=16), _TWO),
    _held(
        "attention, 16 layers, split",
        _attending(_WIDE, words=16384, layers=16),
        pipeline(split=True),
    ),
    _held(
        "GPipe, 4 chunks",
        Model(width=768, layers=16),
        pipeline(chunks=4, schedule="gpipe"),
    ),
    _held(
        "attention, 2 stages",
        _attending(NARROW, width=1280, layers=4),
        pipeline(4, chunks=2),
        stages=2,
        groups=4,
    ),
    _held(
        "attention, 2 chunks",
        _attending(NARROW, width=1792, length=1024, layers=8),
        _TWO,
    ),
    _held("attention, 1,024 positions", _attending(_WIDE, length=1024), _SPLIT),
    _held("3 sequences, 2 chunks", Model(width=896, words=16384), _TWO, sequences=3),
    _held("attention, 2 chunks", _attending(_PLAIN, width=1152), _TWO),
    _held(
        "attention, GPipe, 4 chunks",
        _attending(_WIDE, layers=16),
        pipeline(chunks=4, schedule="gpipe"),
    ),
    _held("attention, split", _attending(NARROW, width=1408, layers=8), _SPLIT),
    _held("attention, 12 layers", _attending(_PLAIN, width=768, layers=12), pipeline()),
    _held("16,384 words", Model(width=1280, words=16384), pipeline()),
    _held(
        "attention, 8 stages",
        _attending(_WIDE, layers=16),
        pipeline(16, chunks=2),
        stages=8,
        groups=1,
    ),
    _held("attention, split, 4 sequences", _WIDE, pipeline(split=True), sequences=4),
)


def main(_: Any) -> None:
    for row in HELD_OUT if FLAGS.held_out else ROWS:
        if FLAGS.only not in row.name:
            continue
        plan = row.plan()
        found = plan.verify("tpu_v5e:2x4", cycles=FLAGS.cycles)
        predicted, compiled = found.peak_bytes
        line = f"{row.name}: peak {predicted / 1e6:.1f} MB predicted, {compiled / 1e6:.1f} compiled"
        line += f", {100 * (predicted / compiled - 1):+.1f} %"
        if found.main_bytes is not None and found.main_bytes < compiled:
            line += f" ({found.main_bytes / 1e6:.1f} of them in main memory)"
        if FLAGS.cycles:
            judged = judge(found.hlo, plan.mesh_shape, ps.MACHINES["tpu_v5e"]).total
            line += f"; {1e3 * plan.cost.seconds:.1f} ms predicted, {1e3 * judged:.1f} judged"
        print(line, flush=True)


if __name__ == "__main__":
    app.run(main)
