"""Operations and steps of a whole training run."""

from __future__ import annotations

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022 (Chinchilla)


def step_flops(parameters: float, tokens: float) -> float:
    """Operations of the products of one step: 6 N T.

    Lecture, "Our Computational Model": L d^2 m forward, counting a multiplication and an addition
    as one; two operations each, and twice as many backward, make 6. Without attention's scores.

    Args:
      parameters: N.
      tokens: T, of a step.
    """
    return 6 * parameters * tokens


def attention_flops(layers: int, width: int, sequence: int, tokens: float) -> float:
    """Operations of causal attention's scores and their products with values, of one step.

    Not in the lecture. Two products of 2 s d operations per token and layer, half of them masked,
    three passes: 6 s d.

    Args:
      layers / width / sequence: L, d and s, tokens of a sequence.
      tokens: of a step.
    """
    return 6 * layers * sequence * width * tokens


def utilization(
    parameters: float, tokens: float, devices: int, seconds: float, flops_per_s: float
) -> float:
    """Share of the peak matrix rate that the model's operations attain (MFU), 0 to 1.

    Args:
      parameters / tokens: of the model and of a step.
      seconds: of a step.
      flops_per_s: peak rate of one device.
    """
    return step_flops(parameters, tokens) / (devices * seconds * flops_per_s)


def serial_steps(
    parameters: float, batch_tokens: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER
) -> float:
    """Steps of a run on 20 tokens per parameter, one after the other.

    Lecture, "Scaling Considerations: how does it scale?": tokens = 20 times the model's size. With
    a fixed batch the steps grow linearly with the model; a pipeline's seconds per step do too,
    which makes the run quadratic.

    Args:
      batch_tokens: tokens of a step.
    """
    return tokens_per_parameter * parameters / batch_tokens
