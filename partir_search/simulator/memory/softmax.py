"""Products of narrow operands that XLA:TPU stores in 32 bits.

A product that is widened for a softmax is stored as it is written (bf16), whether it is scaled
before or not, and its exponentials are made again in the backward pass. With a mask or a bias on
it they are stored instead, in f32: twice the bytes. Where the dims that one operand alone has do
not lie side by side ([b, q, h, g, d] with [b, k, h, d], grouped attention), the product is a
convolution of higher rank, with which nothing that follows is fused, and it is stored as written
in any case. Logits in which the labels' are looked up are stored both ways, in f32 until then.
For v5p alone the softmax of masked scores is stored too, as products read it, if it is worked out
in f32.
A product that is stored in f32 for its mask, or whose maximum is taken of it as it is, has
maximum, exponentials and their sum in its own kernel; if it sums over few elements, in a second
kernel that stores the exponentials in its place. All others have the maximum alone, and the sum in
a second one.
Found by compiling attention of 512 to 2,048 positions for v4, v5e, v5p and v6e, and with heads of 8
to 1,024 for v5e and v5p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Literal, Module, Op, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.backward_ops import gradients

FAR = 64  # values looked at, of those that a product becomes or an operand is made of


class DotOutputs:
    """Consumers of a module's dots that decide in which width a dot's result is stored."""

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        self.rules, self.users = rules, module.users()
        self.gradients = gradients(module)
        self.makers: Mapping[int, Op] = {r.id: op for op in module.ops for r in op.results}

    def feeds_masked_softmax(self, product: Op) -> bool:
        """True if a product of matrices is combined with another value before its maximum.

        A sum of squares is no softmax: a product with a bias before a LayerNorm is stored as the
        program says.
        """
        if not _of_matrices(self.rules[product.id]):
            return False
        scores, masked = self._before_reduction(product)
        return masked and any(self._is_maximum(u) for v in scores for u in self.users[v])

    def feeds_gather(self, product: Op) -> bool:
        """True if elements of a product, or of elementwise functions of it, are gathered."""
        values = self._before_reduction(product)[0]
        users = (u for v in values for u in self.users[v])
        return any(self.rules[u.id].indexed and u.id not in self.gradients for u in users)

    def feeds_max(self, product: Op) -> bool:
        """True if the maximum of a product of matrices is taken of the product itself."""
        users = (u for r in product.results for u in self.users[r.id])
        return _of_matrices(self.rules[product.id]) and any(map(self._is_maximum, users))

    def softmax_weights(self, product: Op) -> list[int]:
        """Ids of the values that products of the forward pass read, if the product is masked,
        widened, reduced to its maximum and made into them by elementwise ops.
        """
        scores, masked = self._before_reduction(product)
        narrow = product.results[0].type.itemsize
        maxima = [u for v in scores for u in self.users[v] if self._is_maximum(u)]
        if not masked or not any(u.operands[0].type.itemsize > narrow for u in maxima):
            return []
        found, seen, waiting = list[int](), set(scores), list(scores)
        while waiting:
            v = waiting.pop()
            for user in self.users[v]:
                if user.id in self.gradients:
                    continue
                if self.rules[user.id].contracts and v not in found:
                    found.append(v)
                elif self.rules[user.id].elementwise:
                    new = [r.id for r in user.results if r.id not in seen]
                    seen.update(new)
                    waiting += new
        return found

    def _is_maximum(self, op: Op) -> bool:
        return not self.rules[op.id].elementwise and "max" in self.rules[op.id].reducers

    def _before_reduction(self, product: Op) -> tuple[list[int], bool]:
        """Ids of a product and of the values that elementwise ops of the forward pass make of it
        before a reduction of it is combined with them, and whether a value not made of it is.
        """
        found, masked = [r.id for r in product.results], False
        for v in found:  # which grows
            for user in self.users[v] if len(found) < FAR else ():
                if user.id in self.gradients or not self.rules[user.id].elementwise:
                    continue
                others = [x for _, x in user.inputs() if x.id not in found and not self._even(x)]
                follows = [self._follows(x, product, found) for x in others]
                masked |= not all(follows)
                if not any(follows):
                    found += [r.id for r in user.results if r.id not in found]
        return found, masked

    def _even(self, v: Value) -> bool:
        """True if a value is one number, or one number all over."""
        if not v.type.shape:
            return True
        maker = self.makers.get(v.id)
        if maker is None or maker.regions or not maker.operands:
            return False
        return all(isinstance(x, Literal) or not x.type.shape for x in maker.operands)

    def _follows(self, v: Value, product: Op, seen: Sequence[int]) -> bool:
        """Tells whether a value is made of the product, by way of reductions."""
        waiting, known = [v.id], {v.id}
        while waiting and len(known) < FAR:
            maker = self.makers.get(waiting.pop())
            for _, x in maker.inputs() if maker and maker.id > product.id else ():
                if x.id in seen:
                    return True
                if x.id not in known:
                    known.add(x.id)
                    waiting.append(x.id)
        return False


def sums_few(rule: OpRule, least: int) -> bool:
    """True if a product sums over fewer than `least` elements."""
    summed = {f for dims in rule.operands for f in dims if f >= 0}
    summed -= {f for dims in rule.results for f in dims}
    return math.prod(rule.sizes[f] for f in summed) < least


def _of_matrices(rule: OpRule) -> bool:
    """Checks that the dims that an operand shares with the result alone are side by side."""
    held = [frozenset(dims) for dims in rule.operands]
    made = frozenset(rule.results[0])
    for i, dims in enumerate(rule.operands):
        others = frozenset[int]().union(*held[:i], *held[i + 1 :])
        large = [f for f in dims if f < 0 or rule.sizes[f] > 1]
        free = [at for at, f in enumerate(large) if f in made - others]
        if free and free[-1] - free[0] >= len(free):
            return False
    return True
