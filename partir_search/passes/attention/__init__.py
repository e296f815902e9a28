"""Finds attention in ordinary programs: product, mask, softmax, product, and their gradients."""

from partir_search.passes.attention.module import with_attention

__all__ = ["with_attention"]
