"""Arguments trained by a program: updated with a gradient, or differentiated."""

from __future__ import annotations

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, TensorType, Value
from partir_search.rules.registry import RuleTable

Kind = tuple[tuple[int, ...], object]


def trained_arguments(module: Module) -> frozenset[int]:
    """Positions of the arguments with an update or a gradient among the results.

    An update is an elementwise function of the argument and of values of the backward pass. Any
    further result of the backward pass is the gradient of the first argument left of the same type.
    """
    return module.analysis(_trained)


def _trained(module: Module) -> frozenset[int]:
    if not any(op.backward for op in module.body.ops):
        return frozenset()
    position = {v: i for i, v in enumerate(module.body.args)}
    updated, gradients = set[int](), list[Kind]()
    for result in module.body.results:
        if not isinstance(result, Value) or not result.type.shape:
            continue
        read, backward = _behind(module, result)
        found = {position[v] for v in read if v in position}
        if backward and found:
            updated |= found
        elif backward:
            gradients.append(_kind(result.type))
    for kind in gradients:
        left = (
            i for i, v in enumerate(module.body.args) if i not in updated and _kind(v.type) == kind
        )
        updated.update(list(left)[:1])
    return frozenset(updated)


def _behind(module: Module, result: Value) -> tuple[set[Value], bool]:
    """Values of a result's shape behind it by elementwise ops; True if the backward pass made one.

    Ops of the backward pass are not followed.
    """
    makers, rule_of = def_use(module).makers, RuleTable()
    seen, todo, backward = set[Value](), [result], False
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        maker: Op | None = makers[value.id]
        if maker is None:
            continue
        backward |= maker.backward
        if not maker.backward and rule_of(maker).elementwise:
            todo += [v for _, v in maker.inputs() if v.type.shape == result.type.shape]
    return seen, backward


def _kind(kind: TensorType) -> Kind:
    return kind.shape, kind.dtype
