"""Recognition of attention in ordinary programs: product, mask, softmax, product and gradients."""

from partir_search.passes.attention.module import ForwardPhase, forward_phases, with_attention

__all__ = ["ForwardPhase", "forward_phases", "with_attention"]
