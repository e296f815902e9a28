"""Known changes of collectives by XLA: each function explains some differences from a plan.

`missing` holds predicted collectives without a compiled match, `extra` compiled ones without a
predicted match. A function removes the collectives that it explains, and yields a sentence on them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence

from partir_search.aot.hlo import CompiledCollective, axes_of
from partir_search.ir.mesh import MeshShape

Key = tuple[str, tuple[str, ...]]  # kind and axes
Rest = dict[Key, "collections.Counter[int]"]  # unmatched collectives by number of elements
WHOLE = ("reduce_scatter", "all_gather")  # kinds that XLA may turn into an all_reduce
# (elements, runs per step) of each collective; None in a loop of unknown trip count.
Runs = Mapping[Key, Sequence[tuple[int, int | None]]]


def surplus(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> collections.Counter[int]:
    """Number of collectives in `a` beyond those in `b`, by number of elements."""
    return collections.Counter(n for n, _ in a) - collections.Counter(n for n, _ in b)


def complex_parts(missing: Rest, extra: Rest, pairs: Rest) -> Iterator[str]:
    """XLA:TPU moves the real and imaginary parts of complex numbers as real ones, separately or as
    one array of twice the elements, each perhaps as an all_reduce (`whole_reductions`).

    Args:
      pairs: predicted collectives of complex numbers.
    """
    for (kind, axes), counts in pairs.items():
        kinds = tuple(dict.fromkeys((kind, *(["all_reduce"] if kind in WHOLE else []))))
        second = counts  # parts beside the predicted ones
        for into in kinds:
            found = extra.get((into, axes), collections.Counter())
            twice = collections.Counter({n // 2: c for n, c in found.items() if not n % 2})
            both = second & missing.get((kind, axes), collections.Counter()) & twice
            if both:
                doubled = collections.Counter({2 * n: c for n, c in both.items()})
                extra[into, axes], second = found - doubled, second - both
                missing[kind, axes] = missing[kind, axes] - both
                yield (
                    f"{both.total()} {kind} along {', '.join(axes)} move both parts of complex"
                    f" numbers as one {into}"
                )
        together = counts - second
        for into in kinds:
            both = extra.get((into, axes), collections.Counter()) & second
            if both:
                extra[into, axes] = extra[into, axes] - both
                second = second - both
        parts = (counts - together - second).total()
        if parts:
            yield f"{parts} {kind} along {', '.join(axes)} of complex numbers move in parts"


def gathered_sources(
    missing: Rest, extra: Rest, repeated: Mapping[Key, Sequence[tuple[int, int]]]
) -> Iterator[str]:
    """XLA gathers the source of a broadcast instead of the result, once for several broadcasts
    (`AllGatherBroadcastReorder`).

    Args:
      repeated: (elements, elements of the source) of each predicted all_gather of a broadcast.
    """
    for key, sizes in repeated.items():
        smaller = {small for _, small in sizes}
        found = collections.Counter({n: c for n, c in extra[key].items() if n in smaller})
        moved = collections.Counter(whole for whole, small in sizes if found[small])
        gone = missing[key] & moved
        if gone and all(found[n] <= sum(small == n for _, small in sizes) for n in found):
            extra[key], missing[key] = extra[key] - found, missing[key] - gone
            kind, axes = key
            yield (
                f"{gone.total()} {kind} of broadcast values along {', '.join(axes)} became"
                f" {found.total()} of the values before the broadcast"
            )


def unrolled(
    missing: Rest,
    extra: Rest,
    planned: Runs,
    compiled: Runs,
) -> Iterator[str]:
    """XLA:GPU peels iterations off loops: more collectives in the text, equal elements per step."""
    for key in list(missing):
        wanted, got = _elements(planned.get(key, ())), _elements(compiled.get(key, ()))
        if wanted is None or not got or not (missing[key] or extra[key]):
            continue
        if sum(n for n, _ in planned[key]) >= wanted:  # none in a loop
            continue
        spare = wanted - got
        merged = spare > 0 and sum(n == spare for n, _ in planned[key]) >= 2
        if spare == 0 or merged:
            missing[key] = extra[key] = collections.Counter()
            kind, axes = key
            same = "after 1 merged with an equal one" if merged else "as before"
            yield (
                f"{len(planned[key])} {kind} along {', '.join(axes)} became {len(compiled[key])}:"
                f" iterations were taken out of loops; {got:,} elements a step, {same}"
            )


def _elements(runs: Sequence[tuple[int, int | None]]) -> int | None:
    """Elements per step; None with a loop of unknown trip count."""
    if any(times is None for _, times in runs):
        return None
    return sum(n * (times or 0) for n, times in runs)


def run_differences(planned: Runs, compiled: Runs) -> tuple[list[str], list[str]]:
    """Collectives as many as predicted, of equal sizes, that run more or less often in a step.

    Returns:
      Known changes (fewer runs: XLA moves collectives out of loops; unknown trip counts), and
      unexplained differences (more runs).
    """
    changes, unexplained = [], []
    for key in planned.keys() & compiled.keys():
        sizes: dict[int, tuple[list[int | None], list[int | None]]] = {}
        for side, runs in enumerate((planned[key], compiled[key])):
            for n, times in runs:
                sizes.setdefault(n, ([], []))[side].append(times)
        along = f"{key[0]} along {', '.join(key[1])}"
        for n, (wanted, got) in sorted(sizes.items()):
            known = [times for times in got if times is not None]
            if len(wanted) != len(got):
                continue
            if len(known) < len(got):
                changes.append(
                    f"{len(got) - len(known)} {along} of {n:,} elements: in a loop of unknown"
                    " trip count, its runs are not checked"
                )
                continue
            total, compiled_total = sum(t or 0 for t in wanted), sum(known)
            told = f"{len(got)} {along} of {n:,} elements: {compiled_total} runs a step"
            if compiled_total < total:
                changes.append(f"{told}, not {total}: taken out of a loop")
            elif compiled_total > total:
                unexplained.append(f"{told}, {total} predicted")
    return sorted(changes), sorted(unexplained)


def whole_reductions(missing: Rest, extra: Rest) -> Iterator[str]:
    """XLA turns some reduce_scatters into all_reduces and slices, and some small all_gathers into
    all_reduces of zero-padded tiles, to combine them with further all_reduces.
    """
    for (kind, axes), counts in list(missing.items()):
        other = extra.get(("all_reduce", axes))
        if kind not in WHOLE or not other:
            continue
        both = counts & other
        if both:
            missing[kind, axes] = counts - both
            extra["all_reduce", axes] = other - both
            became = "all_reduce + slice" if kind == "reduce_scatter" else "all_reduce"
            yield f"{both.total()} {kind} along {', '.join(axes)} became {became}"


def halos(extra: Rest, found: list[CompiledCollective], mesh: MeshShape) -> Iterator[str]:
    """XLA corrects padded tiles of a reduce_scatter by a permute between neighbours."""
    for (kind, axes), counts in list(extra.items()):
        padded = sum(c.padded and axes_of(c.groups, mesh) == axes for c in found)
        if kind == "collective_permute" and 0 < counts.total() <= padded:
            extra[kind, axes] = collections.Counter()
            yield (
                f"{counts.total()} collective_permute of {sum(counts.elements()):,} elements along"
                f" {', '.join(axes)}: halo of reduce_scatters whose tiles it pads"
            )


def rematerialized(extra: Rest, found: list[CompiledCollective], mesh: MeshShape) -> Iterator[str]:
    """Near the memory limit XLA rematerializes values, and repeats their collectives."""
    repeated: Rest = collections.defaultdict(collections.Counter)
    for c in found:
        if c.again:
            repeated[c.kind, axes_of(c.groups, mesh) or ("?",)][c.elements] += 1
    for (kind, axes), counts in repeated.items():
        both = counts & extra[kind, axes]
        if both:
            extra[kind, axes] = extra[kind, axes] - both
            yield f"{both.total()} {kind} along {', '.join(axes)} made again to save memory"


def merged(missing: Rest, extra: Rest, compiled: dict[Key, list[tuple[int, int]]]) -> Iterator[str]:
    """XLA merges equal collectives, sums of one total, and reduce_scatters or all_gathers turned
    into an equal all_reduce.
    """
    for key, counts in list(missing.items()):
        there = {n for n, _ in compiled[key]}
        if key[0] in WHOLE:
            there |= {n for n, _ in compiled.get(("all_reduce", key[1]), ())}
        merged = collections.Counter({n: c for n, c in counts.items() if n in there})
        if merged:
            missing[key] = counts - merged
            kind, axes = key
            yield f"{merged.total()} {kind} along {', '.join(axes)} merged with equal ones"


def joined(missing: Rest, smaller: Mapping[Key, Sequence[int]]) -> Iterator[str]:
    """XLA adds padded partial sums before their all_reduces, and reduces the total alone.

    Args:
      smaller: elements of predicted all_reduces whose results are added to a larger sum
        (`joined_sums`).
    """
    for key, sizes in smaller.items():
        if both := missing[key] & collections.Counter(sizes):
            missing[key] = missing[key] - both
            kind, axes = key
            yield f"{both.total()} {kind} along {', '.join(axes)} joined with that of the total"


def combined(
    missing: Rest, extra: Rest, compiled: dict[Key, list[tuple[int, int]]]
) -> Iterator[str]:
    """XLA:GPU concatenates small reductions of one kind into one buffer."""
    for key, counts in list(missing.items()):
        other = extra.get(key, collections.Counter())
        if key[0] != "all_reduce" or not other:
            continue
        spare = sum(counts.elements()) - sum(other.elements())
        # Equal ones may have merged first: all with a compiled one, or all but one of them.
        there = {n for n, _ in compiled[key]}
        most = {n: c if n in there else c - 1 for n, c in counts.items()}
        before = (k for n, c in most.items() for k in range(c + 1) if n * k == spare)
        if (times := next(before, None)) is not None:
            missing[key] = extra[key] = collections.Counter()
            kind, axes = key
            merged = f", after {times} merged with equal ones" if times else ""
            along = f"{kind} along {', '.join(axes)}"
            yield f"{counts.total()} {along} combined into {other.total()}{merged}"


def narrowed(
    planned: dict[Key, list[tuple[int, int]]], compiled: dict[Key, list[tuple[int, int]]]
) -> dict[Key, int]:
    """Number of collectives with narrower elements than predicted, by kind and axes."""
    out = {}
    for key, moved in compiled.items():
        widest: dict[int, int] = {}
        for n, size in planned[key]:
            widest[n] = max(size, widest.get(n, 0))
        narrower = sum(size < widest.get(n, 0) for n, size in moved)
        if narrower:
            out[key] = narrower
    return out
