"""A flax nnx trainer: dropout, a metric, an evaluation step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import partir_search as ps


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(16, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(nnx.relu(self.norm(self.hidden(x)))))


def new() -> tuple[Classifier, nnx.Optimizer, nnx.metrics.Average]:
    model = Classifier(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), nnx.metrics.Average()


def loss_of(model: Classifier, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def step(
    model: Classifier,
    optimizer: nnx.Optimizer,
    metric: nnx.metrics.Average,
    x: jax.Array,
    y: jax.Array,
) -> None:
    value, grads = nnx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, grads)
    metric.update(values=value)


def evaluate(model: Classifier, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(jnp.argmax(model(x), -1) == y)


def main() -> tuple[float, float]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 64, 16)).astype(np.float32)
    y = np.argmax(x[..., :4], -1)
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    train_step = ps.auto_partition(mesh)(step)
    model, optimizer, metric = train_step.init(new, x[0], y[0])
    for i in range(8):
        train_step(model, optimizer, metric, x[i], y[i])
    eval_step = ps.auto_partition(mesh)(evaluate)
    model.eval()
    return float(metric.compute()), float(eval_step(model, x[0], y[0]))


if __name__ == "__main__":
    print(main())
