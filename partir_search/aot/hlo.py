"""Collectives in the text of lowered and compiled programs, for comparison with a plan."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from partir_search.aot.computations import Computation, array_sizes, computations
from partir_search.aot.loops import runs
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.reshard_steps import COLLECTIVES
from partir_search.messages.wording import shown

_STABLEHLO = re.compile(
    r'"?stablehlo\.(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute)"?\('
)
_HLO = re.compile(
    r"=\s+(?P<type>\(.*?\)|\S+)\s+"
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
    r"(?P<start>-start)?\((?P<operands>[^)]*)\)(?P<attributes>.*)"
)
_GROUPS = re.compile(
    r"replica_groups=(?P<groups>\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\]\s*\{[^}]*\})"
)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>.*?)\}\}")
_AGAIN = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+\.remat\d*(?:\.[\w.-]+)? =")
_CHAIN = re.compile(r'chain_id="(?P<chain>\d+)"')
FUSED_SCATTER = "all-reduce-scatter"  # XLA:TPU's fusion of an all_reduce and a slice

Groups = frozenset[frozenset[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledCollective:
    """One operand of a collective in a compiled program.

    Attributes:
      kind: name as in jax ("all_gather" ...).
      elements: number of elements on one device, of the larger of operand and result.
      itemsize: bytes of an element.
      groups: participants by position in the mesh; None for one group of all devices.
      padded: a reduce_scatter with tiles padded by the compiler.
      times: runs per step; None if unknown, inside of a loop of unknown trip count.
      again: rematerialized by the compiler, to save memory.
    """

    kind: str
    elements: int
    itemsize: int
    groups: Groups | None
    padded: bool = False
    times: int | None = 1
    again: bool = False

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


def stablehlo_counts(text: str) -> dict[str, int]:
    """Number of emitted collectives by kind in StableHLO text (`lowered.as_text()`)."""
    _check_text("stablehlo_counts", text, "lowered.as_text()")
    found = collections.Counter(m.group(1) for m in _STABLEHLO.finditer(text))
    return {kind: found[kind] for kind in COLLECTIVES}


def hlo_counts(text: str) -> dict[str, int]:
    """Number of collective operands by kind in optimized HLO text (`compiled.as_text()`).

    Operands are counted, not ops: XLA combines collectives into one with many operands. An
    all-to-all of XLA:CPU, with one operand per participant, counts once.
    """
    _check_text("hlo_counts", text, "compiled.as_text()")
    found = collections.Counter(c.kind for c in hlo_collectives(text))
    return {kind: found[kind] for kind in COLLECTIVES}


def _check_text(name: str, text: object, source: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} takes the text of a program, {source}, not {shown(text)}")


def hlo_collectives(text: str) -> list[CompiledCollective]:
    """Collective operands in optimized HLO text of XLA:CPU, GPU or TPU, in the order of the text.

    On XLA:TPU several fusions with one `chain_id` count as one asynchronous collective, and a
    fusion of an all_reduce with a slice counts as a reduce_scatter.
    """
    chains: set[tuple[str, str]] = set()
    found = computations(text)
    times = runs(found)
    return [c for each in found for c in collectives_of(each, chains, times[each.name])]


def collectives_of(
    computation: Computation,
    chains: set[tuple[str, str]] | None = None,
    times: int | None = 1,
) -> Iterator[CompiledCollective]:
    """Collective operands in the lines of a computation.

    Args:
      chains: (kind, chain id) of collectives seen already, skipped here; extended in place.
      times: runs of the computation per step; None if unknown.
    """
    chains = set() if chains is None else chains
    for line in computation.lines:
        match = _HLO.search(line)
        if not match:
            continue
        chain = _CHAIN.search(match["attributes"])
        if chain:
            key = (match["kind"], chain["chain"])
            if key in chains:
                continue
            chains.add(key)
        padded = False
        kind, groups = match["kind"].replace("-", "_"), _groups(match["attributes"])
        if kind == "all_reduce" and computation.name.startswith(FUSED_SCATTER):
            kind, whole = "reduce_scatter", list(array_sizes(match["type"]))
            arrays = list(array_sizes(computation.arguments))
            padded = whole != arrays
        else:
            arrays = _payloads(match, groups)
        again = _AGAIN.match(line) is not None
        for n, size in arrays:
            yield CompiledCollective(
                kind=kind,
                elements=n,
                itemsize=size,
                groups=groups,
                padded=padded,
                times=times,
                again=again,
            )


def _payloads(match: re.Match[str], groups: Groups | None) -> list[tuple[int, int]]:
    """(elements, itemsize) per operand, of the larger of operand and result."""
    kind, arrays = match["kind"], list(array_sizes(match["type"]))
    if kind == "collective-permute" and match["start"]:
        arrays = arrays[:1]  # the operand; its result and two semaphores follow
    elif match["start"]:  # operands, then an equal number of results
        n = len(match["operands"].split(","))
        arrays = arrays[:n] if kind == "reduce-scatter" else arrays[-n:]
    elif kind == "all-to-all":
        arrays = [(sum(n for n, _ in arrays), arrays[0][1])]
    elif kind == "reduce-scatter":
        participants = len(next(iter(groups))) if groups else 1
        arrays = [(n * participants, size) for n, size in arrays]
    return arrays


def _groups(attributes: str) -> Groups | None:
    pairs = _PAIRS.search(attributes)
    if pairs:
        return frozenset(frozenset(_numbers(p)) for p in pairs["pairs"].split("},{"))
    found = _GROUPS.search(attributes)
    if not found:
        return None
    text = found["groups"]
    if text.startswith("{{"):
        return frozenset(frozenset(_numbers(g)) for g in text.split("},{"))
    if text.startswith("mesh"):
        sizes = [int(n) for n in re.findall(r"=(\d+)", text)]
        names = re.findall(r"'([^']+)'=", text)
        used = re.findall(r"'([^']+)'", text[text.index("]") :])
        return _along(sizes, [names.index(n) for n in used])
    shape, rest = text.split("<=")
    iota, _, order = rest.partition("T")
    ids = np.arange(math.prod(_numbers(iota))).reshape(_numbers(iota))
    if order:
        ids = ids.transpose(_numbers(order))
    return frozenset(map(frozenset, ids.reshape(_numbers(shape)).tolist()))


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _along(sizes: list[int] | tuple[int, ...], axes: list[int] | tuple[int, ...]) -> Groups:
    """Groups of devices with equal coordinates on all axes but `axes`."""
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    kept = [a for a in range(len(sizes)) if a not in axes]
    rows = ids.transpose([*kept, *axes]).reshape(-1, math.prod(sizes[a] for a in axes))
    return frozenset(map(frozenset, rows.tolist()))


def axes_of(groups: Groups | None, mesh: MeshShape) -> tuple[str, ...] | None:
    """Mesh axes of a collective's participants; None if no set of axes gives the groups.

    For the pairs of a permute: the axes with different coordinates of source and target.
    """
    used = [a for a, n in enumerate(mesh.device_sizes) if n > 1]
    if groups is None:
        return tuple(mesh.names[a] for a in used)
    for n in range(1, len(used) + 1):
        for axes in itertools.combinations(used, n):
            whole = _along(mesh.device_sizes, axes)
            if groups == whole:
                return tuple(mesh.names[a] for a in axes)
    for n in range(1, len(used) + 1):
        for axes in itertools.combinations(used, n):
            whole = _along(mesh.device_sizes, axes)
            if all(any(g <= w for w in whole) for g in groups):
                return tuple(mesh.names[a] for a in axes)
    return None
