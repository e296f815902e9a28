"""Bytes of a device: state by ZeRO stage, activations by layer."""

from __future__ import annotations

import dataclasses

from partir_search.theory.model_sizes import ModelSizes

OPERAND, ALL = "operand", "all"


@dataclasses.dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of a train state.

    Attributes:
      weights: the copy that products read.
      gradients: accumulated over a step.
      optimizer: moments, and the master copy if weights are narrower.
    """

    weights: float = 2
    gradients: float = 4
    optimizer: float = 12


MIXED = StateBytes()  # bf16 weights, f32 gradients, f32 master weights and two moments of Adam
FLOAT32 = StateBytes(4, 4, 8)  # f32 weights that products cast, as in `models/`


def state_bytes(
    parameters: float, groups: int = 1, stage: int = 0, per_parameter: StateBytes = MIXED
) -> float:
    """Bytes of weights, gradients and optimizer state on one device.

    Lecture, "Today": M_train = P + M_optimizer + M_activations. ZeRO 1 divides the optimizer state
    among the groups, ZeRO 2 the gradients too, ZeRO 3 (FSDP) the weights too (Rajbhandari et al.
    2020).

    Args:
      parameters: of the model, divided by the devices of tensor and pipeline parallelism.
      groups: of data parallelism.
      stage: of ZeRO, 0 to 3.
    """
    parts = (per_parameter.optimizer, per_parameter.gradients, per_parameter.weights)
    return sum(parameters * b / (groups if i < stage else 1) for i, b in enumerate(parts))


def activation_bytes(model: ModelSizes, tokens: float, kept: str = ALL, itemsize: int = 2) -> float:
    """Bytes that one layer keeps for its backward pass.

    Lecture, "Now lets look at LLama 3.1": 2 S d L, which are the checkpoints of recomputation
    alone. Without recomputation a LLaMA layer keeps six arrays of d numbers per token (two norms,
    queries, the result of attention, the sums after attention and MLP), keys and values, three
    hidden arrays of the MLP (gate, up, product) and two f32 numbers per head and token of the
    softmax (Dao 2022): 31.8 S d for Llama 3 405B. An MLP without gate keeps two hidden arrays.

    Args:
      tokens: of one group.
      kept: `OPERAND` for the layer's operand alone, `ALL` without recomputation.
    """
    if kept == OPERAND:
        return itemsize * tokens * model.width
    hidden = (3 if model.gated else 2) * model.ffn
    numbers = 6 * model.width + 2 * model.kv_width + hidden
    return tokens * (itemsize * numbers + 8 * model.heads)
