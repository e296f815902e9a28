"""Recognition of attention in ordinary programs: product, mask, softmax, product and gradients."""

from partir_search.passes.attention.module import with_attention

__all__ = ["with_attention"]
