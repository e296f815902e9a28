"""The user's sharding rules in einsum notation, for primitives and functions."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from partir_search.ir.core import Op, TensorType
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, OpRule
from partir_search.messages.validators import number
from partir_search.messages.wording import shown
from partir_search.rules.registry import register

_NAME = re.compile(r"[A-Za-z]\w*")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """Parsed rule such as ``"b s d, d f -> b s f"``.

    Attributes:
      of: name of the primitive or function.
      text: the rule.
      left / right: names of dims per operand and per result.
    """

    of: str
    text: str
    left: tuple[tuple[str, ...], ...]
    right: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, of: str, text: str) -> Equation:
        """Equation of a text.

        Args:
          of: name of the primitive or function, for messages.

        Raises:
          ValueError: `text` is no equation.
        """
        if not isinstance(text, str):
            raise TypeError(f"the rule of {of!r} is a string, 'a b, b c -> a c', not {shown(text)}")
        if text.count("->") != 1:
            raise ValueError(f"write the rule of {of!r} as 'a b, b c -> a c', not {text!r}")
        left, right = (
            tuple(tuple(x.split()) for x in side.split(",")) for side in text.split("->")
        )
        for dims in (*left, *right):
            for n in dims:
                if n != "." and not _NAME.fullmatch(n):
                    raise ValueError(f"{n!r} is no dim name in the rule {text!r} of {of!r}")
        return cls(of, text, left, right)

    def rule(self, op: Op, flops_per_point: float | None, **fields: Any) -> OpRule:
        """Rule of `op`.

        Raises:
          ValueError: the equation does not fit the op; the message has the op's source line.
        """
        if len(self.left) != len(op.operands) or len(self.right) != len(op.results):
            raise ValueError(
                f"the rule {self.text!r} of {self.of!r} has {len(self.left)} operands and"
                f" {len(self.right)} results, the op at {op.source} has {len(op.operands)} and"
                f" {len(op.results)}"
            )
        sizes: dict[str, int] = {}
        types = [x.type for x in (*op.operands, *op.results)]
        for dims, kind in zip((*self.left, *self.right), types, strict=True):
            self._match(dims, kind, sizes)
        index = {n: i for i, n in enumerate(sizes)}
        in_results = [all(n in r for r in self.right) for n in sizes]
        return OpRule(
            self.kind,
            sizes=tuple(sizes.values()),
            operands=tuple(tuple(index.get(n, NONE) for n in d) for d in self.left),
            results=tuple(tuple(index.get(n, NONE) for n in d) for d in self.right),
            reducers=tuple("" if found else "sum" for found in in_results),
            tolerates_padding=False,
            flops_per_point=self.flops_per_point if flops_per_point is None else flops_per_point,
            **fields,
        )

    @property
    def kind(self) -> Kind:
        """Contraction if dims shared by several operands are summed over."""
        summed = {n for d in self.left for n in d} - {n for d in self.right for n in d} - {"."}
        if any(sum(n in d for d in self.left) > 1 for n in summed):
            return Kind.CONTRACTION
        return Kind.REDUCTION if summed else Kind.ELEMENTWISE

    @property
    def flops_per_point(self) -> float:
        """Estimated operations per point: 2 for a product and a sum, 1 for either."""
        return 2.0 if self.kind is Kind.CONTRACTION else 1.0

    def _match(self, dims: Sequence[str], kind: TensorType, sizes: dict[str, int]) -> None:
        about = f"the rule {self.text!r} of {self.of!r}"
        if len(dims) != len(kind.shape):
            raise ValueError(f"{about} does not fit a value of type {kind}")
        for n, size in zip(dims, kind.shape, strict=True):
            if n != "." and sizes.setdefault(n, size) != size:
                raise ValueError(f"{about} gives dim {n!r} the sizes {sizes[n]} and {size}")

    def batched(self, operands: Sequence[bool]) -> Equation:
        """Equation with one more leading dim on some operands and all results, as added by vmap.

        Args:
          operands: True for batched operands.
        """
        taken = {n for dims in (*self.left, *self.right) for n in dims}
        new = next(f"v{i}" for i in range(len(taken) + 1) if f"v{i}" not in taken)
        left = tuple((new, *d) if b else d for d, b in zip(self.left, operands, strict=True))
        right = tuple((new, *d) for d in self.right)
        text = " -> ".join(", ".join(" ".join(d) for d in side) for side in (left, right))
        return Equation(self.of, text, left, right)


def register_rule(
    primitive: object, equation: str, *, flops_per_point: float | None = None
) -> None:
    """Gives `primitive` a rule such as ``"b s d, d f -> b s f"``.

    Args:
      primitive: a jax primitive (or its name) that can be applied to equally tiled operands tile by
        tile, such as a foreign function. For functions with shapes inside (a Pallas kernel's grid)
        see `with_rule`.
      equation: names of the dims of each operand, then of each result; `.` marks a dim needed
        whole. A name absent from the results is summed over.
      flops_per_point: operations per point of the iteration space, for the simulator. None: 2 if
        dims shared by several operands are summed over, or 1.

    Raises:
      ValueError: the equation cannot be parsed, or the primitive has a rule already.
    """
    name = primitive if isinstance(primitive, str) else getattr(primitive, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"register_rule takes a jax primitive or its name, not {shown(primitive)}; a function"
            " is given a rule by @with_rule('a b, b c -> a c')"
        )
    if flops_per_point is not None:
        number(f"register_rule: flops_per_point of {name!r}", flops_per_point)
    parsed = Equation.parse(name, equation)
    register(name)(lambda op: parsed.rule(op, flops_per_point))


ruled_call = Primitive("ruled_call")
ruled_call.multiple_results = True


def with_rule(equation: str, *, flops_per_point: float | None = None) -> Callable[[_F], _F]:
    """Turns a function of arrays, such as a call of a Pallas kernel, into one op with a rule.

    The function is traced again on the tiles of each device, with grids and block shapes of the
    tiles. Outside of `auto_partition` it runs unchanged. Derivatives are the plain function's: if
    the kernel has none, apply the rule inside of a `jax.custom_vjp`.

    Args:
      equation: as for `register_rule`. The function takes arrays by position and returns one array
        or a tuple of arrays.
      flops_per_point: operations per point of the iteration space, for the simulator. None: 2 if
        dims shared by several operands are summed over, or 1.

    Raises:
      ValueError: the equation cannot be parsed, or does not fit the arrays of a call.
    """
    if callable(equation):
        raise TypeError(
            "with_rule takes a rule and returns a decorator: write @with_rule('a b, b c -> a c')"
            f" above {getattr(equation, '__name__', 'the function')}, not @with_rule"
        )
    if flops_per_point is not None:
        number("with_rule: flops_per_point", flops_per_point)
    if not isinstance(equation, str):
        Equation.parse("a function", equation)

    def decorate(fun: _F) -> _F:
        parsed = Equation.parse(getattr(fun, "__name__", "function"), equation)

        @functools.wraps(fun)
        def call(*args: jax.Array) -> Any:
            out = jax.eval_shape(fun, *args)
            flat = ruled_call.bind(*args, fun=fun, equation=parsed, flops=flops_per_point)
            return jax.tree.unflatten(jax.tree.structure(out), flat)

        return call  # type: ignore[return-value]

    return decorate


def _run(*args: Any, fun: Callable[..., Any], **_: Any) -> list[Any]:
    return jax.tree.leaves(fun(*args))


def _abstract(*avals: Any, fun: Callable[..., Any], **_: Any) -> list[Any]:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    out = jax.tree.leaves(jax.eval_shape(fun, *shapes))
    return [jax.core.ShapedArray(x.shape, x.dtype) for x in out]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    filled = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(lambda *xs: _run(*xs, **params), tuple(primals), tuple(filled))


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, fun: Any, equation: Equation, flops: float | None
) -> Any:
    mapped = [d is not None for d in dims]
    moved = [
        jax.numpy.moveaxis(x, d, 0) if m else x for x, d, m in zip(args, dims, mapped, strict=True)
    ]
    over = jax.vmap(fun, in_axes=tuple(0 if m else None for m in mapped))
    out = ruled_call.bind(*moved, fun=over, equation=equation.batched(mapped), flops=flops)
    return out, [0] * len(out)


ruled_call.def_impl(_run)
ruled_call.def_abstract_eval(_abstract)
mlir.register_lowering(ruled_call, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[ruled_call] = _jvp
batching.primitive_batchers[ruled_call] = _batch


@register("ruled_call")
def _ruled(op: Op) -> OpRule:
    """The user's equation; the function is called on tiles."""
    equation: Equation = op.params["equation"]
    return equation.rule(
        op, op.params["flops"], local=lambda _, op, args: _run(*args, fun=op.params["fun"])
    )
