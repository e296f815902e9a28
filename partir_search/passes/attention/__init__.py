"""Recognition of attention in ordinary programs: product, mask, softmax, product and gradients."""

from partir_search.passes.attention.module import forward_ops, with_attention

__all__ = ["forward_ops", "with_attention"]
