"""The intermediate representation: a traced program as values, ops and regions.

Grammar (what the printer writes; loops come from a `Partition`, see `ir/partition.py`)::

    module  = "func" name "(" arg ("," arg)* ")" "mesh<" axis ":" size ... ">" "{" line* return "}"
    arg     = "%" name ":" type [ "x" count ]          -- as many that differ in a number only
    type    = dtype "[" dims "]" [ "{" axis ":" (dim | monoid) ... "}" ]
    line    = stmt | run | block
    block   = [ "backward of" ] path [ "... x" count "(" path ".." path ")" ] "{" line* "}"
    run     = "..." (count kind)* "ops" [ "in" loops ] ":" results ":" type
    stmt    = results "=" (prim attributes operands ":" types [ "{" region* "}" ]
                           | loop ("," loop)* "{" slice* line* yield "}")
    loop    = ("tile" dim | monoid) axis "(" index ":" "range<" size ">" ")"
            | "ring" axis axis "(" index "," index "," "%t" ":" "steps<" size ">" ")"
                                       -- a sum walked in time (ir/skewed_schedule.py)
            | "pass" ["zigzag"] axis "(" index "," "%t" ":" "steps<" size ">" ")"
                                       -- blocks pass around (ir/blockwise.py)
    slice   = names "=" "slice" dims operands "[" index "]"
            | name "=" "window" dim operand "[" start "," size [ modes ] "]"
                                       -- zeros beyond the ends, or as modes say (ir/boundaries.py)
    results = "%" name ("," "%" name)* [ "," "..." count "more" ]
    return  = "return" (operand [ ":" type ])*                       -- where it does not rest so

In full (`ir/printing/full.py`) no line is a run or a block, each loop stands alone, and operands
are sliced at uses: ``(slice 0 %x[%batch])``.

The base module never changes: a partition is a separate object that refers to ops and values by
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

T = TypeVar("T")
Shape = tuple[int, ...]

LARGE_CONSTANT = 16 * 2**20  # bytes


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value.

    Attributes:
      shape: global shape.
      dtype: a numpy dtype, or jax's extended dtype for PRNG keys.
      itemsize: bytes per element (a PRNG key counts its key data).
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
    """`float32` to `f32`; `bool` and extended types keep their names."""
    name = str(getattr(dtype, "name", dtype))
    stem = name.rstrip("0123456789")
    return _SHORT[stem] + name[len(stem) :] if stem in _SHORT else name


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """One SSA value: an argument, a constant, a region's argument or an op's result."""

    id: int
    type: TensorType
    name: str

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclasses.dataclass(frozen=True, slots=True)
class Literal:
    """A scalar written into the program."""

    value: Any
    type: TensorType

    @property
    def number(self) -> Any:
        """A scalar as a number of Python's, which compares much faster than jax's arrays."""
        item = getattr(self.value, "item", None)
        return item() if item else self.value

    def is_zero(self) -> bool:
        return not self.type.shape and bool(self.number == 0)


Operand = Union[Value, Literal]


@dataclasses.dataclass(eq=False, slots=True)
class Region:
    """A body with arguments: the module's own, or that of a scan, while, cond or remat."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Operand, ...]


@dataclasses.dataclass(eq=False, slots=True)
class Op:
    """One application of a primitive.

    Attributes:
      id: dense id in program order.
      prim: the primitive's name, the key of its rule.
      params: the primitive's parameters, with global shapes.
      origin: source info as jax keeps it; read it as `source`.
      scope: the name stack under which it was traced.
      backward: whether reverse-mode differentiation made the op.
      handle: the primitive itself, opaque (see `ir/bind.py`).
      effect: whether the op does something besides making its results (a callback).
      count: number of the program's ops that the op stands for (1 unless the module is folded).
      key: of all that the op's rule depends on, computed once (see `rules.registry`).
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

    @property
    def source(self) -> str:
        """The user's source line, ``file:line (function)``, or ""."""
        return "" if self.origin is None else source_line(self.origin)

    def inputs(self) -> Iterator[tuple[int, Value]]:
        """The operands that are values, with their positions."""
        for i, operand in enumerate(self.operands):
            if isinstance(operand, Value):
                yield i, operand


@dataclasses.dataclass(eq=False, slots=True)
class Module:
    """A traced program.

    Attributes:
      name: the function's name.
      body: arguments, ops and results of the program itself.
      values: all values, nested ones too, by id.
      ops: all ops, nested ones too, by id.
      constants: arrays closed over, by the id of their value.
      arg_paths / result_paths: pytree paths, ``state/params/layer_0/w1``.
      ties: (argument index, result index) pairs that keep one tiling: train state in and out.
      donated: indices of donated arguments.
      alike: pairs of argument indices that keep one tiling by the user's word.
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
    _analyses: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def analysis(self, analyse: Callable[[Module], T]) -> T:
        """Result of `analyse` on the module, worked out once: a module never changes."""
        if analyse not in self._analyses:
            self._analyses[analyse] = analyse(self)
        found: T = self._analyses[analyse]
        return found

    def value_names(self) -> dict[str, Value]:
        """Values by name."""
        return self.analysis(_value_names)

    def large_constants(self) -> list[int]:
        """Ids of closed-over arrays that are not written into the program but passed to it."""
        return [i for i in self.constants if self.values[i].type.nbytes >= LARGE_CONSTANT]


def _value_names(module: Module) -> dict[str, Value]:
    return {v.name: v for v in module.values}


def walk_regions(region: Region) -> Iterator[Region]:
    """`region` and all regions inside it, outermost first."""
    yield region
    for op in region.ops:
        for inner in op.regions:
            yield from walk_regions(inner)
