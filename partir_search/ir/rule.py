"""`OpRule`: how one op may be looped over, as data. Read by propagation, simulator and lowering.

A rule names the op's iteration space by *factors*, as an einsum does. For a matmul of [i, k] with
[k, j] the factors are i, j, k with ``operands=((0, 2), (2, 1))`` and ``results=((0, 1),)``; looping
over i or j tiles the result, looping over k makes it a partial sum. PartIR's tile-mapping table
(arXiv 2401.11202, section 3) is what `tilings` derives from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.boundaries import Beyond
from partir_search.ir.core import Op, Shape
from partir_search.ir.data_flow import NO_EDGES, DataFlowEdges, Emit
from partir_search.ir.kind import Kind
from partir_search.ir.local_context import LocalContext
from partir_search.ir.manual import Manual
from partir_search.ir.role import Role

NONE = -1  # no factor on this dim / no loop on this op / no dim tiled on this value
REPLICATED = -2  # decided to have no tile on this axis
DEFERRABLE = ("sum", "max", "min")  # reductions that may stay unfinished through later ops

Dims = tuple[int, ...]  # factor of each dim (the most major one of several), or NONE


Localize = Callable[[Mapping[str, Any], Sequence[Shape], Sequence[Shape]], dict[str, Any]]
LocalForm = Callable[[LocalContext, Op, Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Reads:
    """The stretch of an operand's dim that a tile of the dim's factor reads, halo included.

    Point p of the factor reads ``width`` elements from ``step * p // over + first`` on. Beyond the
    ends of the dim there are zeros, or what `beyond` says.

    Attributes:
      spreads: whether a tiling of the operand and one of the factor bring each other about. Not
        where most of a stretch lies on other devices: there the loop follows the result alone.
    """

    operand: int
    dim: int
    step: int = 1
    first: int = 0
    width: int = 1
    spreads: bool = True
    beyond: Beyond | None = None
    over: int = 1

    def stretch(self, tile: int, points: int) -> tuple[int, int]:
        """Start and size of what tile number `tile` of `points` points reads. All tiles read
        stretches of one size.
        """
        start = min(self.step * tile * points, self.step * ((tile + 1) * points - 1))
        last = abs(self.step) * (points - 1)
        if self.step * points % self.over:
            last += self.over - 1  # a tile may start within the elements that a point reads
        return start // self.over + self.first, last // self.over + self.width


Resize = Callable[[Op, Sequence[Shape], Sequence[Shape]], Op]


@dataclasses.dataclass(frozen=True, slots=True)
class Resizing:
    """Forms of an op that reads stretches on dims longer than the program says.

    Attributes:
      resize: the op for other shapes of operands and results. Its results are right within the
        extents that the program says.
      filler: monoid whose identity has to stand beyond the extent of a dim in `masked`.
      masked: (operand, dim) of which results read elements beyond the extent.
      fixed: (operand, dim) pairs that keep their extent.
    """

    resize: Resize
    filler: str = "sum"
    masked: frozenset[tuple[int, int]] = frozenset()
    fixed: frozenset[tuple[int, int]] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class OpRule:
    """One op's iteration space.

    Attributes:
      kind: category of the op.
      sizes: extent of each factor that tiles must divide.
      operands: per operand, the factor of each dim (`NONE`: needed whole). Literals have ().
      results: per result, the factor of each dim.
      reducers: per factor, the monoid ("sum", "max", "min", "and", "or") that combines partial
        results where the factor is in no result dim; "" for factors of result dims.
      blocked: factors that no axis may loop over.
      major_factors: per factor, the more major factors of the same dim (a reshape of [h g] to
        [h, g]); () if every dim has at most one factor. Before a loop over a factor, loops of more
        major axes must use up its major factors: only then is its tile one piece of the dim.
      linear: groups of operand positions. If all operands of one group are pending sums (or
        zeros) and the others are whole, the results are pending sums.
      monotone: (monoid, operand positions). If some operands of one group are pending maxima (or
        minima, as the monoid says) and all others are whole, the results are pending likewise.
      flops_per_point: floating-point operations per point of the iteration space.
      one_hot: adds one number to each row of its first operand; where that is zeros, a compiler
        fuses it into its users like an elementwise op.
      elementwise: a compiler fuses it into its users and need not store its result.
      localize: rewrites shape-bearing params to local shapes; None if there are none.
      local: the op on one tile where rewritten params are not enough; None: bind the primitive.
      reads: operand dims of which a tile of their factor reads another stretch than the dim's own
        tile: a convolution's image with its halo, a reversed dim. Only loops change what is read.
      indexed: factors that an operand's numbers point into; nothing is read beyond their extent.
      manual: the user's own `shard_map`, which needs and makes the same layouts whatever the loops.
      fixes: the user may have fixed the tilings of its results, which need not be those of what is
        worked out of them.
      pads: longer factors change nothing within the extents that the program says.
      beside: takes its first operand's last stretch in parts that lie beside each other
        (`ir.halos`): they are not put together for it.
      resizing: lengthens the dims of `reads`; None if they may not get longer.
      blockwise: form that works on one block of a factor after the other, if there is one.
      watches: a debugging tool, which decides nothing (see `passes/debug_ops.py`).
      rests: takes its operands as they are tiled, whichever way; costs nothing.
      together: its local form holds collectives, so that all devices must run it.
      data_flow: edges between the op's operands and results and its regions.
      emit: runs the op, given emitters of its regions; None without regions.
      role: meaning of the op, for recognisers; None for most.
      told: parameters that types and factors tell; the printed IR leaves them out.
    """

    kind: Kind
    sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reducers: tuple[str, ...]
    blocked: frozenset[int] = frozenset()
    major_factors: tuple[tuple[int, ...], ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    monotone: tuple[tuple[str, tuple[int, ...]], ...] = ()
    flops_per_point: float = 0.0
    one_hot: bool = False
    elementwise: bool = False
    localize: Localize | None = None
    local: LocalForm | None = None
    reads: tuple[Reads, ...] = ()
    indexed: frozenset[int] = frozenset()
    manual: Manual | None = None
    fixes: bool = False
    pads: bool = True
    beside: bool = False
    resizing: Resizing | None = None
    blockwise: Blockwise | None = None
    watches: bool = False
    rests: bool = False
    together: bool = False
    role: Role | None = None
    told: frozenset[str] = frozenset()
    data_flow: DataFlowEdges = NO_EDGES
    emit: Emit | None = None

    def __post_init__(self) -> None:
        for factor in range(len(self.sizes)):
            held = [self.dim_of(dims, factor) >= 0 for dims in self.results]
            if factor not in self.blocked and not all(held) and not self.reducers[factor]:
                raise ValueError(f"factor {factor} is in no result and has no reducer: {self}")

    @property
    def contracts(self) -> bool:
        """True if the op runs on matrix units."""
        return self.kind is Kind.CONTRACTION

    @property
    def opaque(self) -> bool:
        """True if the primitive has no rule."""
        return self.kind is Kind.OPAQUE

    @property
    def looks_up(self) -> bool:
        """True if the op looks up a table at indices."""
        return self.kind is Kind.GATHER and bool(self.indexed)

    @property
    def writes_into(self) -> bool:
        """True if the op writes its second operand into its first at indices."""
        return self.kind is Kind.UPDATE and bool(self.indexed)

    @property
    def walks(self) -> bool:
        """True if a summed factor may be walked in time: tiles of the operands, whichever they are,
        are multiplied as they are.
        """
        plain = self.local is None and self.localize is None and not self.major_factors
        return self.contracts and plain and not self.reads and not self.opaque

    def dim_of(self, dims: Dims, factor: int) -> int:
        """Position of `factor` in `dims`, or `NONE`."""
        if factor in dims:
            return dims.index(factor)
        return self.dim_of(dims, self.major_factors[factor][-1]) if self.majors_of(factor) else NONE

    def majors_of(self, factor: int) -> tuple[int, ...]:
        """Factors that share a dim with `factor` and are more major."""
        return self.major_factors[factor] if self.major_factors else ()

    def factors_on(self, dims: Dims, dim: int) -> tuple[int, ...]:
        """The factors that stand on one of `dims`, major to minor."""
        if not self.major_factors:
            return () if dims[dim] < 0 else (dims[dim],)
        return tuple(f for f in range(len(self.sizes)) if self.dim_of(dims, f) == dim)

    def reads_on(self, operand: int, dim: int) -> Reads | None:
        """Stretch of an operand's dim that a loop reads, if this is not the tile."""
        return next((r for r in self.reads if r.operand == operand and r.dim == dim), None)

    def tilings(self) -> Iterator[tuple[int, tuple[int, ...], tuple[str, ...]]]:
        """PartIR's tile-mapping table: (factor, operand dims, ("tile d" | monoid) per result)."""
        for f in range(len(self.sizes)):
            if f in self.blocked:
                continue
            results = tuple(
                f"tile {self.dim_of(r, f)}" if self.dim_of(r, f) >= 0 else self.reducers[f]
                for r in self.results
            )
            yield f, tuple(self.dim_of(o, f) for o in self.operands), results

    def __str__(self) -> str:
        """Einsum notation with letters, as `([ik,kj])->([ij]) {i=8,j=16,k=8} sum={k}`."""

        def letters(dims: Dims) -> str:
            held = (self.factors_on(dims, d) for d in range(len(dims)))
            return "[" + " ".join("*".join(map(_letter, fs)) or "." for fs in held) + "]"

        text = ", ".join(map(letters, self.operands)) + " -> "
        text += ", ".join(map(letters, self.results))
        text += " {" + ", ".join(f"{_letter(f)}={s}" for f, s in enumerate(self.sizes)) + "}"
        for monoid in sorted(set(self.reducers) - {""}):
            held = [_letter(f) for f, r in enumerate(self.reducers) if r == monoid]
            text += f" {monoid}={{{', '.join(held)}}}"
        if self.blocked:
            text += f" blocked={{{', '.join(_letter(f) for f in sorted(self.blocked))}}}"
        if self.linear:
            text += f" linear={list(map(list, self.linear))}"
        for monoid in dict.fromkeys(m for m, _ in self.monotone):
            text += f" {monoid}-linear={[list(g) for m, g in self.monotone if m == monoid]}"
        for r in self.reads:
            over = f"/{r.over}" if r.over > 1 else ""
            point = f"{r.step}*{_letter(self.operands[r.operand][r.dim])}{over}{r.first:+}"
            apart = "" if r.spreads else " apart"
            ends = f" {r.beyond}" if r.beyond else ""
            text += f" reads={{{r.operand}.{r.dim}: {r.width} from {point}{ends}{apart}}}"
        return text


def _letter(factor: int) -> str:
    return chr(ord("a") + factor) if factor < 26 else f"f{factor}"
