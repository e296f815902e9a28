"""The intermediate representation: a traced program as values, ops and regions.

Grammar (what the printer writes; loops come from a `Partition`, see `ir/partition.py`)::

    module  = "func" name "(" arg ("," arg)* ")" mesh "{" line* return "}"
    mesh    = "mesh<" axis ":" size ... ">" [ "time<" axis ":" size ... ">" ]  -- see ir/mesh.py
    arg     = "%" name ":" type [ order ] [ "x" count ]  -- arguments alike but for a number
    order   = "layers<" "stages:" size [ "chunks:" size ] [ "dim:" dim ] ">"
                                       -- layers by stage (ir/staged_state.py)
    type    = dtype "[" dims "]" [ "{" axis ":" (dim | monoid) ... "}" ]
    line    = stmt | run | block
    block   = [ "backward of" ] path [ "... x" count "(" path ".." path ")" ] "{" line* "}"
    run     = "..." (count kind)* "ops" [ "in" loops ] ":" results ":" type
    stmt    = results "=" (prim attributes operands ":" types [ "{" region* "}" ]
                           | loop ("," loop)* "{" slice* line* yield "}")
    loop    = ("tile" dim | monoid) axis "(" index ":" ("range<" | "parts<") size ">" ")"
                                       -- parts of a time axis, in sequence
            | "ring" axis axis "(" index "," index "," "%t" ":" "steps<" size ">" ")"
                                       -- a factor sliced over time (ir/skewed_schedule.py)
            | "pass" ["zigzag"] axis "(" index "," "%t" ":" "steps<" size ">" ")"
                                       -- blocks pass around (ir/blockwise.py)
    slice   = names "=" "slice" dims operands "[" index "]"
            | name "=" "window" dim operand "[" start "," size [ modes ] "]"
                                       -- modes of elements beyond the ends (ir/boundaries.py)
    results = "%" name ("," "%" name)* [ "," "..." count "more" ]
    return  = "return" (operand [ ":" type ])*         -- type if different from the value's own

In the full form (`ir/printing/full.py`) no line is a run or a block, and each loop has a line.

A module never changes; a partition is a separate object that refers to ops and values by
their ids, which are dense and in program order (an op's results come after its regions' values).
A primitive is an opaque handle that only `ir/bind.py` calls; `ir/source_names.py` reads source
lines.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, Union

from partir_search.ir.source_names import source_line
from partir_search.ir.staged_state import IN_LAYERS_ORDER, StagedState

T = TypeVar("T")
Shape = tuple[int, ...]

LARGE_CONSTANT = 16 * 2**20  # bytes


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value.

    Attributes:
      shape: global shape.
      dtype: a numpy dtype, or jax's extended dtype for PRNG keys.
      itemsize: bytes per element; of a PRNG key, bytes of its key data.
    """

    shape: Shape
    dtype: Any
    itemsize: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]"


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Short name of a dtype, `f32` for `float32`; `bool` and extended types keep their names."""
    name = str(getattr(dtype, "name", dtype))
    stem = name.rstrip("0123456789")
    return _SHORT[stem] + name[len(stem) :] if stem in _SHORT else name


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """SSA value: an argument, a constant, an argument of a region or a result of an op."""

    id: int
    type: TensorType
    name: str

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """Scalar in the program's text."""

    value: Any
    type: TensorType

    @property
    def number(self) -> Any:
        """The value as a Python number, much faster to compare than a jax array."""
        item = getattr(self.value, "item", None)
        return item() if item else self.value

    def is_zero(self) -> bool:
        return not self.type.shape and bool(self.number == 0)


Operand = Union[Value, Literal]


@dataclasses.dataclass(eq=False, slots=True)
class Region:
    """Body with arguments, ops and results: of the module, or of a scan, while, cond or remat."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Operand, ...]


@dataclasses.dataclass(eq=False, slots=True)
class Op:
    """One application of a primitive.

    Attributes:
      id: dense id in program order.
      prim: name of the primitive, key of its rule.
      params: parameters of the primitive, with global shapes.
      origin: jax's source info; read as `source`.
      scope: name stack of the equation.
      backward: made by reverse-mode differentiation.
      handle: the primitive, opaque (see `ir/bind.py`).
      effect: has side effects (a callback).
      count: ops of the program represented by this one: 1 unless the module is folded.
      key: everything the op's rule depends on, computed once (see `rules.registry`).
    """

    id: int
    prim: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    params: Mapping[str, Any]
    regions: tuple[Region, ...] = ()
    origin: Any = None
    scope: str = ""
    backward: bool = False
    handle: Any = None
    effect: bool = False
    count: int = 1
    key: Any = None
    _inputs: tuple[tuple[int, Value], ...] | None = dataclasses.field(
        default=None, init=False, repr=False
    )

    @property
    def source(self) -> str:
        """Line of the user's code, ``file:line (function)``, or ""."""
        return "" if self.origin is None else source_line(self.origin)

    @property
    def is_constant(self) -> bool:
        """True for an op without inputs, regions and effects, such as zeros."""
        return not (self.inputs() or self.regions or self.effect)

    def inputs(self) -> tuple[tuple[int, Value], ...]:
        """(position, value) of the operands that are values, without literals; cached."""
        found = self._inputs
        if found is None:
            pairs = enumerate(self.operands)
            found = self._inputs = tuple([(i, x) for i, x in pairs if isinstance(x, Value)])
        return found

    def with_parts(
        self,
        operands: tuple[Operand, ...],
        results: tuple[Value, ...],
        regions: tuple[Region, ...],
    ) -> Op:
        """A copy with new operands, results and regions, six times as fast as `replace`."""
        return Op(
            self.id,
            self.prim,
            operands,
            results,
            self.params,
            regions,
            self.origin,
            self.scope,
            self.backward,
            self.handle,
            self.effect,
            self.count,
            self.key,
        )


@dataclasses.dataclass(eq=False, slots=True)
class Module:
    """A traced program.

    Attributes:
      name: name of the function.
      body: arguments, ops and results of the program itself.
      values: all values by id, nested ones included.
      ops: all ops by id, nested ones included.
      constants: closed-over arrays by value id.
      arg_paths / result_paths: pytree paths, ``state/params/layer_0/w1``.
      ties: (argument index, result index) pairs with one tiling: train state in and out.
      donated: indices of donated arguments.
      alike: pairs of indices of arguments with one tiling, given by the user.
      staged: arguments whose layers lie by stage of a pipeline.
    """

    name: str
    body: Region
    values: list[Value]
    ops: list[Op]
    constants: dict[int, Any]
    arg_paths: tuple[str, ...]
    result_paths: tuple[str, ...]
    ties: tuple[tuple[int, int], ...] = ()
    donated: frozenset[int] = frozenset()
    alike: tuple[tuple[int, int], ...] = ()
    staged: StagedState = IN_LAYERS_ORDER
    _analyses: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def analysis(self, analyse: Callable[[Module], T]) -> T:
        """Result of `analyse` on the module, cached."""
        if analyse not in self._analyses:
            self._analyses[analyse] = analyse(self)
        found: T = self._analyses[analyse]
        return found

    def value_names(self) -> dict[str, Value]:
        """Values by name."""
        return self.analysis(_value_names)

    def large_constants(self) -> list[int]:
        """Ids of closed-over arrays of `LARGE_CONSTANT` bytes or more, passed as arguments."""
        return [i for i in self.constants if self.values[i].type.nbytes >= LARGE_CONSTANT]


def _value_names(module: Module) -> dict[str, Value]:
    return {v.name: v for v in module.values}


def walk_regions(region: Region) -> Iterator[Region]:
    """`region` and all nested regions, outermost first."""
    yield region
    for op in region.ops:
        for inner in op.regions:
            yield from walk_regions(inner)
