"""Sizes of language models by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from partir_search.messages.wording import did_you_mean


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a decoder-only transformer, without biases.

    Attributes:
      layers: number of blocks.
      width: d, numbers per token between blocks.
      heads / kv_heads: heads of queries, and of keys and values.
      ffn: hidden numbers of the feed-forward part.
      vocab: tokens of the vocabulary.
      gated: three matrices in the feed-forward part (SwiGLU), two without.
      tied: embedding and head share a matrix.
      sequence: tokens of a sequence in training.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    sequence: int = 4096

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "ffn", "vocab", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a model is at least 1, not {getattr(self, name)}")
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"width {self.width} of a model must split into {self.heads} heads, and these into"
                f" {self.kv_heads} of keys and values"
            )

    @property
    def kv_width(self) -> int:
        """Numbers per token of the keys, and of the values."""
        return self.width // self.heads * self.kv_heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block.

        Lecture, "Now lets look at LLama 3.1": 10 d^2. Exactly 2 d^2 + 2 d kv + 3 d ffn and two
        norms: 11.9 d^2 for Llama 3 405B.
        """
        matrices = 3 if self.gated else 2
        d = self.width
        return 2 * d * d + 2 * d * self.kv_width + matrices * d * self.ffn + 2 * d

    @property
    def parameters(self) -> int:
        """Parameters of the model: blocks, embedding, head and the last norm."""
        ends = (1 if self.tied else 2) * self.vocab * self.width + self.width
        return self.layers * self.layer_parameters + ends


# Touvron et al. 2023 (arXiv 2307.09288), Llama Team 2024 (arXiv 2407.21783, table 3), Zhang et al.
# 2022 (arXiv 2205.01068), BigScience 2022 (arXiv 2211.05100), Brown et al. 2020.
MODEL_SIZES: Mapping[str, ModelSizes] = {
    "llama2-7b": ModelSizes(32, 4096, 32, 32, 11008, 32000),
    "llama2-13b": ModelSizes(40, 5120, 40, 40, 13824, 32000),
    "llama2-70b": ModelSizes(80, 8192, 64, 8, 28672, 32000),
    "llama3-8b": ModelSizes(32, 4096, 32, 8, 14336, 128256, sequence=8192),
    "llama3-70b": ModelSizes(80, 8192, 64, 8, 28672, 128256, sequence=8192),
    "llama3-405b": ModelSizes(126, 16384, 128, 8, 53248, 128256, sequence=8192),
    "gpt3-175b": ModelSizes(96, 12288, 96, 96, 49152, 50257, False, True, 2048),
    "opt-175b": ModelSizes(96, 12288, 96, 96, 49152, 50272, False, True, 2048),
    "bloom-176b": ModelSizes(70, 14336, 112, 112, 57344, 250880, False, True, 2048),
}


def find_model(text: str) -> ModelSizes:
    """Model of a name, or of sizes: ``layers:32,width:4096,heads:32,kv_heads:8,ffn:14336,...``.

    Raises:
      ValueError: an unknown name or size, or sizes that are no integers or do not divide.
    """
    if ":" not in text:
        if text in MODEL_SIZES:
            return MODEL_SIZES[text]
        known = ", ".join(MODEL_SIZES)
        raise ValueError(
            f"unknown model {text!r}; known are {known}{did_you_mean(text, MODEL_SIZES)}; or give"
            " sizes: layers:32,width:4096,heads:32,kv_heads:8,ffn:14336,vocab:128256"
        )
    names = [f.name for f in dataclasses.fields(ModelSizes)]
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, _, value = entry.strip().partition(":")
        if name not in names:
            raise ValueError(f"a model has no size {name!r}{did_you_mean(name, names)}")
        if not value.isdigit():
            raise ValueError(f"size {entry.strip()!r} of a model is no integer")
        found[name] = int(value)
    missing = [n for n in ("layers", "width", "heads", "ffn", "vocab") if n not in found]
    if missing:
        raise ValueError(f"sizes of the model are missing: {', '.join(missing)}")
    return ModelSizes(**{"kv_heads": found["heads"], **found})  # type: ignore[arg-type]
