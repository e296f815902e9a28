"""`OpRule`: the loops an op allows, as data. Read by propagation, simulator and lowering.

A rule names an op's iteration space by *factors*, as an einsum does. For a matmul of [i, k] with
[k, j] the factors are i, j, k with ``operands=((0, 2), (2, 1))`` and ``results=((0, 1),)``; a loop
over i or j tiles the result, a loop over k makes it a partial sum. `tilings` derives PartIR's
tile-mapping table (arXiv 2401.11202, section 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partir_search.ir.blockwise import Blockwise
from partir_search.ir.boundaries import Beyond
from partir_search.ir.core import Op, Shape
from partir_search.ir.data_flow import NO_EDGES, DataFlowEdges, Emit
from partir_search.ir.kind import MOVING, Kind
from partir_search.ir.local_context import LocalContext
from partir_search.ir.manual import Manual
from partir_search.ir.role import Role

NONE = -1  # no factor on this dim / no loop on this op / no dim tiled on this value
REPLICATED = -2  # decided to have no tile on this axis
DEFERRABLE = ("sum", "max", "min")  # reductions that may stay unfinished through later ops

Dims = tuple[int, ...]  # factor of each dim (the most major one of several), or NONE


Localize = Callable[[Mapping[str, Any], Sequence[Shape], Sequence[Shape]], dict[str, Any]]
LocalForm = Callable[[LocalContext, Op, Sequence[Any]], Sequence[Any]]
AtPositions = Callable[[Op, Sequence[Any], Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class InputWindow:
    """Window of an operand's dim read by a tile of the dim's factor, halo included.

    Point p of the factor reads ``width`` elements from ``step * p // over + first`` on.

    Attributes:
      operand / dim: positions of the operand and of its dim.
      propagates_both_ways: propagate tilings of the operand to the factor and back. False if most
        of a window lies on other devices: then the loop follows the result alone.
      beyond: elements beyond the ends of the dim; zeros if None.
    """

    operand: int
    dim: int
    step: int = 1
    first: int = 0
    width: int = 1
    propagates_both_ways: bool = True
    beyond: Beyond | None = None
    over: int = 1

    def tile_window(self, tile: int, points: int) -> tuple[int, int]:
        """Start and size of the window read by tile number `tile` of `points` points.

        The size is the same for all tiles.
        """
        start = min(self.step * tile * points, self.step * ((tile + 1) * points - 1))
        last = abs(self.step) * (points - 1)
        if self.step * points % self.over:
            last += self.over - 1  # a tile may start between two multiples of `over`
        return start // self.over + self.first, last // self.over + self.width


Resize = Callable[[Op, Sequence[Shape], Sequence[Shape]], Op]


@dataclasses.dataclass(frozen=True, slots=True)
class Resizing:
    """Forms of an op with windows on dims longer than in the program.

    Attributes:
      resize: (op, operand shapes, result shapes) to the op for these shapes, with correct results
        within the extents of the program.
      filler: monoid; its identity must fill the elements beyond the extent of dims in `masked`.
      masked: (operand, dim) pairs with elements beyond the extent read for valid results.
      fixed: (operand, dim) pairs that keep their extent.
    """

    resize: Resize
    filler: str = "sum"
    masked: frozenset[tuple[int, int]] = frozenset()
    fixed: frozenset[tuple[int, int]] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class OpRule:
    """Iteration space of one op.

    Attributes:
      kind: category of the op.
      sizes: extent of each factor; the number of tiles must divide it.
      operands: per operand, the factor of each dim (`NONE`: needed whole). Literals have ().
      results: per result, the factor of each dim.
      reducers: per factor, the monoid ("sum", "max", "min", "and", "or") that combines partial
        results without the factor; "" for factors of result dims.
      blocked: factors that no axis may loop over.
      major_factors: per factor, the more major factors of the same dim (a reshape of [h g] to [h,
        g]); () if every dim has at most one factor. A factor may be looped over only if loops of
        more major axes divide its major factors completely: then each tile is contiguous.
      linear: groups of operand positions. If all operands of one group are partial sums (or zeros)
        and the remaining operands are not, the results are partial sums.
      monotone: (monoid, operand positions). If some operands of one group are partial maxima (or
        minima, by the monoid) and all remaining operands are not, the results are partial likewise.
      flops_per_point: floating-point operations per point of the iteration space.
      one_hot: adds one number to each row of the first operand; a compiler fuses the op into its
        users if the operand is zeros.
      elementwise: a compiler fuses the op into its users and need not store the result.
      expensive: elementwise function of tens of instructions per element.
      localize: rewrites params with shapes to local shapes; None if no param has any.
      local: the op on one tile if rewritten params do not suffice; None: bind the primitive.
      at_positions: (op, operands, positions) to the elements at some positions of the result, of an
        op that makes elements from their positions. Positions are an int32 vector per result dim,
        None for all.
      reads: windows of operand dims read by tiles of their factors instead of the dim's own tile: a
        convolution's image with its halo, a reversed dim. Needed only under loops.
      indexed: factors indexed by an operand's values; no element beyond their extent is read.
      update_operand: operand with the new elements, of an update at indices.
      manual: the user's own `shard_map`, with fixed layouts of operands and results.
      fixed_by_user: results may have layouts fixed by the user, unlike those of their consumers.
      tolerates_padding: longer factors leave results unchanged within the extents of the program.
      features: factors of the input's and the result's features of a convolution without groups; ()
        otherwise.
      window_elements: elements of a convolution's window with the holes between, and without;
        (1, 1) for the gradient of a window, and where the ends of the image are padded alike.
      image_holes: elements of a convolution's image with the holes between, per element without.
      unsplit_pixels: pixels of the gradient of a window that strides, or of an image with holes; 0
        otherwise.
      grouped_window: a convolution with groups of features or of the batch.
      explicit_padding: elements of the first operand with its padding, over those without, for a
        convolution whose padding differs between the ends of a dim or lies between elements; 1.0
        otherwise.
      transform: lengths of the dims of a discrete Fourier transform, the last dims; () otherwise.
      accepts_haloed_tile: takes the window of its first operand as tile and halos (`ir.halos`).
      resizing: lengthens the dims of `reads`; None if their extents are fixed.
      blockwise: form that works on one block of a factor at a time, if any.
      debug_only: a debugging tool, ignored in all decisions (see `passes/debug_ops.py`).
      accepts_any_layout: accepts operands in any layout; costs nothing.
      has_collectives: the local form contains collectives and must run on all devices.
      row_major_on_cpu: results need a row-major layout on CPUs, in spite of all consumers.
      data_flow: edges between operands and results of the op and its regions.
      emit: runs the op, given emitters of its regions; None without regions.
      contracts: the op runs on matrix units; derived from `kind`.
      moves: the op moves elements without arithmetic; derived from `kind`.
      role: meaning of the op for pattern recognisers; None for most.
      implied_params: parameters implied by types and factors, left out of the printed IR.
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
    expensive: bool = False
    localize: Localize | None = None
    local: LocalForm | None = None
    at_positions: AtPositions | None = None
    reads: tuple[InputWindow, ...] = ()
    indexed: frozenset[int] = frozenset()
    update_operand: int = 1
    manual: Manual | None = None
    fixed_by_user: bool = False
    tolerates_padding: bool = True
    features: tuple[int, ...] = ()
    window_elements: tuple[int, int] = (1, 1)
    image_holes: int = 1
    unsplit_pixels: int = 0
    grouped_window: bool = False
    explicit_padding: float = 1.0
    transform: tuple[int, ...] = ()
    accepts_haloed_tile: bool = False
    resizing: Resizing | None = None
    blockwise: Blockwise | None = None
    debug_only: bool = False
    accepts_any_layout: bool = False
    has_collectives: bool = False
    row_major_on_cpu: bool = False
    role: Role | None = None
    implied_params: frozenset[str] = frozenset()
    data_flow: DataFlowEdges = NO_EDGES
    emit: Emit | None = None
    contracts: bool = dataclasses.field(init=False, repr=False, compare=False)
    moves: bool = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "contracts", self.kind is Kind.CONTRACTION)
        object.__setattr__(self, "moves", self.kind in MOVING)
        for factor in range(len(self.sizes)):
            in_results = [self.dim_of(dims, factor) >= 0 for dims in self.results]
            if factor not in self.blocked and not all(in_results) and not self.reducers[factor]:
                raise ValueError(f"factor {factor} is in no result and has no reducer: {self}")

    @property
    def opaque(self) -> bool:
        """True if the primitive has no rule."""
        return self.kind is Kind.OPAQUE

    @property
    def is_table_lookup(self) -> bool:
        """True if the op reads from a table at indices."""
        return self.kind is Kind.GATHER and bool(self.indexed)

    @property
    def reads_one_row(self) -> bool:
        """True if the op reads one row of a table, a layer of a stack for instance."""
        return self.is_table_lookup and set(self.results[0]) <= {NONE, *self.operands[0]}

    @property
    def is_indexed_update(self) -> bool:
        """True for an update of operand 0 at indices, with `update_operand`."""
        return self.kind is Kind.UPDATE and bool(self.indexed)

    @property
    def supports_ring(self) -> bool:
        """True if a summed factor may be sliced over time: a product of tiles, without changes."""
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
        """Factors of one of `dims`, major to minor."""
        if not self.major_factors:
            return () if dims[dim] < 0 else (dims[dim],)
        return tuple(f for f in range(len(self.sizes)) if self.dim_of(dims, f) == dim)

    def window_on(self, operand: int, dim: int) -> InputWindow | None:
        """Window of an operand's dim, or None if a loop reads the dim's tile."""
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
        """Einsum notation: `[a c], [c b] -> [a b] {a=8, b=16, c=8} sum={c}`."""

        def letters(dims: Dims) -> str:
            by_dim = (self.factors_on(dims, d) for d in range(len(dims)))
            return "[" + " ".join("*".join(map(_letter, fs)) or "." for fs in by_dim) + "]"

        text = ", ".join(map(letters, self.operands)) + " -> "
        text += ", ".join(map(letters, self.results))
        text += " {" + ", ".join(f"{_letter(f)}={s}" for f, s in enumerate(self.sizes)) + "}"
        for monoid in sorted(set(self.reducers) - {""}):
            reduced = [_letter(f) for f, r in enumerate(self.reducers) if r == monoid]
            text += f" {monoid}={{{', '.join(reduced)}}}"
        if self.blocked:
            text += f" blocked={{{', '.join(_letter(f) for f in sorted(self.blocked))}}}"
        if self.linear:
            text += f" linear={list(map(list, self.linear))}"
        for monoid in dict.fromkeys(m for m, _ in self.monotone):
            text += f" {monoid}-linear={[list(g) for m, g in self.monotone if m == monoid]}"
        for r in self.reads:
            over = f"/{r.over}" if r.over > 1 else ""
            point = f"{r.step}*{_letter(self.operands[r.operand][r.dim])}{over}{r.first:+}"
            apart = "" if r.propagates_both_ways else " apart"
            ends = f" {r.beyond}" if r.beyond else ""
            text += f" reads={{{r.operand}.{r.dim}: {r.width} from {point}{ends}{apart}}}"
        return text


def _letter(factor: int) -> str:
    return chr(ord("a") + factor) if factor < 26 else f"f{factor}"
