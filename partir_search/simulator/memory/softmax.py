"""Storage of 16-bit dot results that feed a softmax, as XLA:TPU stores the results.

A dot result that is widened for a softmax, the *scores*, is stored in one of these forms:

- Scores as computed, or scaled or masked in 16 bits: in 16 bits, as the program says. The backward
  pass recomputes the exponentials.
- Scores combined with a mask or a bias, or scaled, after they are widened: the exponentials are
  stored in their place, in f32.
- Scores of which elements are gathered (the logits of labels, or their log-probabilities): in 16
  bits, and in f32 until the last use of the forward pass.
- Scores of an operand whose own dims are not adjacent, as in grouped attention ([b, q, h, g, d]
  with [b, k, h, d]): in 16 bits. The dot is a convolution of higher rank, with which nothing fuses.

v5p also stores the softmax weights of masked scores in the form that dots read, if the softmax is
computed in f32 (`XlaTraits.materializes_softmax`) over many keys (`min_stored_softmax_keys`).

The kernel of a dot computes maximum, exponentials and sum of the scores, if the scores are masked,
or if the maximum is taken of the dot's result itself, and if a dot reads the weights: a loss
(logsumexp) has no weights to store. If such a dot contracts fewer elements than
`XlaTraits.min_softmax_contraction_elements`, a second kernel overwrites the scores with the
exponentials. Kernels of all further dots compute the maximum alone, and second kernels the sum.

Evidence: attention of 512 to 2,048 positions compiled for v4, v5e, v5p and v6e, and with heads of 8
to 1,024 numbers for v5e and v5p; two layers of attention with scores plain, scaled in bf16, scaled,
divided, capped or masked in f32 for v5e; logsumexp of [8192, 1024] times [1024, V], V of 1,024 to
16,384, masked or not, in f32 and bf16, for v5e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.analysis.gradients import gradients
from partir_search.ir.core import Literal, Module, Op, Value
from partir_search.ir.rule import OpRule

MAX_WALKED = 64  # values that a walk over producers or consumers visits


class DotOutputs:
    """Queries about the consumers of dot results, which decide the width of a stored result."""

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        self.rules, uses = rules, def_use(module)
        self.gradients = gradients(module, rules)
        self.users, self.makers = uses.users, uses.makers

    def feeds_masked_softmax(self, dot: Op) -> bool:
        """True if the result of a dot of matrices is masked, biased or scaled before its maximum,
        and a dot reads the weights.

        The maximum tells a softmax from a LayerNorm, whose reductions are sums.
        """
        if not _of_matrices(self.rules[dot.id]):
            return False
        scores, masked, scaled = self._before_reduction(dot)
        if not masked and (not scaled or self.feeds_gather(dot)):
            return False
        maximum = any(self._is_maximum(u) for v in scores for u in self.users[v])
        return maximum and bool(self._read_by_dots(scores))

    def feeds_gather(self, dot: Op) -> bool:
        """True if the forward pass gathers elements of a dot's scores, or of logarithms of their
        softmax, which the maximum tells from a LayerNorm.
        """
        scores = self._before_reduction(dot)[0]
        users = [u for v in scores for u in self.users[v]]
        if any(map(self._gathers, users)):
            return True
        found = list(scores) if any(map(self._is_maximum, users)) else []
        for v in found:  # the loop appends to the list
            for user in self.users[v] if len(found) < MAX_WALKED else ():
                if self._gathers(user):
                    return True
                if self.rules[user.id].elementwise and user.id not in self.gradients:
                    found += [r.id for r in user.results if r.id not in found]
        return False

    def _gathers(self, op: Op) -> bool:
        return self.rules[op.id].is_table_lookup and op.id not in self.gradients

    def feeds_max(self, dot: Op) -> bool:
        """True if a maximum is taken of the result of a dot of matrices itself, and a dot reads the
        weights.
        """
        users = (u for r in dot.results for u in self.users[r.id])
        if not _of_matrices(self.rules[dot.id]) or not any(map(self._is_maximum, users)):
            return False
        return bool(self._read_by_dots(self._before_reduction(dot)[0]))

    def softmax_weights(self, dot: Op, least_keys: int) -> list[int]:
        """Ids of the softmax weights that dots of the forward pass sum over `least_keys` or more.

        Weights are elementwise functions of scores; empty unless the scores are masked, widened and
        reduced to a maximum.
        """
        scores, masked, _ = self._before_reduction(dot)
        narrow = dot.results[0].type.itemsize
        maxima = [u for v in scores for u in self.users[v] if self._is_maximum(u)]
        if not masked or not any(u.operands[0].type.itemsize > narrow for u in maxima):
            return []
        return [v for v in self._read_by_dots(scores) if self._sums(v, least_keys)]

    def _sums(self, v: int, least: int) -> bool:
        """True if a dot of the forward pass sums `least` or more elements of a value."""
        dots = (u for u in self.users[v] if u.id not in self.gradients)
        rules = (self.rules[u.id] for u in dots)
        return any(rule.contracts and not sums_few(rule, least) for rule in rules)

    def _read_by_dots(self, scores: Sequence[int]) -> list[int]:
        """Ids of the elementwise functions of scores in the forward pass that dots read."""
        found, seen, waiting = list[int](), set(scores), list(scores)
        while waiting:
            v = waiting.pop()
            for user in self.users[v]:
                if self.rules[user.id].contracts and v not in found:
                    found.append(v)
                elif user.id not in self.gradients and self.rules[user.id].elementwise:
                    new = [r.id for r in user.results if r.id not in seen]
                    seen.update(new)
                    waiting += new
        return found

    def _is_maximum(self, op: Op) -> bool:
        return not self.rules[op.id].elementwise and "max" in self.rules[op.id].reducers

    def _before_reduction(self, dot: Op) -> tuple[list[int], bool, bool]:
        """Scores of a dot, and whether the scores are masked and scaled.

        Returns:
          Ids of the dot's results and of their elementwise functions in the forward pass, up to the
          first op that combines the scores with a reduction of the scores.
          True if the scores, once wider, are combined with a value independent of the dot: a mask
            or a bias.
          True if the scores are scaled, or computed with otherwise, after they are widened.
        """
        found, masked, scaled = [r.id for r in dot.results], False, False
        for v in found:  # the loop appends to the list
            for user in self.users[v] if len(found) < MAX_WALKED else ():
                if user.id in self.gradients or not self.rules[user.id].elementwise:
                    continue
                others = [x for _, x in user.inputs() if x.id not in found and not self._uniform(x)]
                follows = [self._depends_on(x, dot, found) for x in others]
                masked |= not all(follows) and self._is_wider(user, dot)
                scaled |= not others and self._computes_wide(user, dot)
                if not any(follows):
                    found += [r.id for r in user.results if r.id not in found]
        return found, masked, scaled

    def _is_wider(self, user: Op, dot: Op) -> bool:
        """True for a function of scores in a wider type than the dot's result."""
        return user.results[0].type.itemsize > dot.results[0].type.itemsize

    def _computes_wide(self, user: Op, dot: Op) -> bool:
        """True for arithmetic on scores that are wider than the dot's result."""
        narrow = dot.results[0].type.itemsize
        rule, wide = self.rules[user.id], [v.type.itemsize > narrow for _, v in user.inputs()]
        return all(wide) and not rule.moves and user.results[0].type.itemsize > narrow

    def _uniform(self, v: Value) -> bool:
        """True if all elements of a value are equal: a scalar or the broadcast of a scalar."""
        if not v.type.shape:
            return True
        maker = self.makers[v.id]
        if maker is None or maker.regions or not maker.operands:
            return False
        return all(isinstance(x, Literal) or not x.type.shape for x in maker.operands)

    def _depends_on(self, v: Value, dot: Op, scores: Sequence[int]) -> bool:
        """Returns True for a value computed from a dot's scores, through reductions too."""
        waiting, known = [v.id], {v.id}
        while waiting and len(known) < MAX_WALKED:
            maker = self.makers[waiting.pop()]
            for _, x in maker.inputs() if maker and maker.id > dot.id else ():
                if x.id in scores:
                    return True
                if x.id not in known:
                    known.add(x.id)
                    waiting.append(x.id)
        return False


def sums_few(rule: OpRule, least: int) -> bool:
    """True if a dot contracts fewer than `least` elements."""
    summed = {f for dims in rule.operands for f in dims if f >= 0}
    summed -= {f for dims in rule.results for f in dims}
    return math.prod(rule.sizes[f] for f in summed) < least


def _of_matrices(rule: OpRule) -> bool:
    """True if each operand's own dims, shared with the result alone, are adjacent."""
    factors = [frozenset(dims) for dims in rule.operands]
    of_result = frozenset(rule.results[0])
    for i, dims in enumerate(rule.operands):
        others = frozenset[int]().union(*factors[:i], *factors[i + 1 :])
        large = [f for f in dims if f < 0 or rule.sizes[f] > 1]
        free = [at for at, f in enumerate(large) if f in of_result - others]
        if free and free[-1] - free[0] >= len(free):
            return False
    return True
