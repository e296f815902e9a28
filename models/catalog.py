"""All models by name, in one form: what scripts with `--model=` and tests over all models read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from models import (
    decoding,
    dlrm,
    gan,
    graph_net,
    language,
    llama,
    lora,
    mlps,
    moe,
    nnx_transformer,
    ppo,
    precision,
    recurrent,
    resnet,
    t5,
    training,
    transformer,
    unet,
    vision,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A config of a model, and the functions of its module."""

    name: str
    config: Any
    init_state: Callable[..., Any]
    make_train_step: Callable[[Any], Callable[..., Any]]
    sample_batch: Callable[..., Any]

    def resized(self, **sizes: Any) -> Entry:
        """The same model with some fields of its config replaced."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **sizes))

    @property
    def step(self) -> Callable[..., Any]:
        """The train step `(state, batch) -> (state, loss)` for one device."""
        return self.make_train_step(self.config)

    def args(self, batch: int, seed: int = 0) -> tuple[Any, Any]:
        """A fresh state and a batch of `batch` examples."""
        state = self.init_state(self.config, training.optimizer(), seed)
        return state, self.sample_batch(self.config, batch, seed)

    def abstract_args(self, batch: int) -> tuple[Any, Any]:
        """Shapes of `args`, without memory."""
        shapes: tuple[Any, Any] = jax.eval_shape(lambda: self.args(batch))
        return shapes


def _transformer_step(config: transformer.TransformerConfig) -> training.Step:
    """Without dropout, so that no key is needed."""
    step, key = transformer.make_train_step(config), jax.random.key(0)
    return lambda state, batch: step(state, batch, key)


_TRANSFORMERS: Mapping[str, transformer.TransformerConfig] = {
    "transformer-tiny": transformer.TransformerConfig(),
    "transformer-small": transformer.TransformerConfig(2, 512, 8, 2048, 8192, 512),
    "transformer-1b": transformer.TransformerConfig(24, 2048, 16, 8192, 32000, 2048),
}
_LLAMA_TINY = llama.LlamaConfig(2, 32, 4, 2, 64, 128, seq=16, dtype="float32")

_FAMILIES: tuple[tuple[Mapping[str, Any], Any, Any, Any], ...] = (
    (_TRANSFORMERS, transformer.init_state, _transformer_step, training.sample_tokens),
    (
        {"llama-tiny": _LLAMA_TINY, **llama.CONFIGS},
        llama.init_state,
        llama.make_train_step,
        training.sample_tokens,
    ),
    *(
        (module.CONFIGS, module.init_state, module.make_train_step, module.sample_batch)
        for module in (
            *(decoding, dlrm, gan, graph_net, language, lora, mlps, moe, nnx_transformer),
            *(ppo, precision, recurrent, resnet, t5, unet, vision),
        )
    ),
)

MODELS: Mapping[str, Entry] = {
    name: Entry(name, config, *functions)
    for configs, *functions in _FAMILIES
    for name, config in configs.items()
}
"""Every named config of every model."""
