"""Names of segments, from scopes, weights' modules and passes of instructions."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence, Set

from partir_search.ir.core import Module
from partir_search.ir.printing.gaps import layer_of
from partir_search.ir.printing.paths import op_paths
from partir_search.ir.printing.weights import common_path
from partir_search.lowering.local_ir import Instruction, LocalRegion, Reshard
from partir_search.segments.atoms import read_by
from partir_search.segments.cut import Cut

MOST_PATHS = 3  # in a name
SHARE = 0.2  # of a segment's ops with a path, for a path in the name
_NUMBER = re.compile(r"\d+")
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class Names:
    """Names of the segments of one region.

    The pass of an instruction is the pass of the op; instructions after the backward pass, and
    dependent on the backward pass, update the state. A segment with ops of both passes holds
    the loss.
    """

    def __init__(self, module: Module, body: LocalRegion) -> None:
        self._paths = op_paths(module)
        self._outer = common_path([*{path for path in self._paths if path}])
        self._arguments = {
            v.id: path for v, path in zip(module.body.args, module.arg_paths, strict=True)
        }
        self._everywhere = _components(module.arg_paths)
        self._late: set[int] = set()  # ids of instructions that depend on the backward pass
        late: set[int] = set()  # ids of local values
        for item in body.steps:
            backward = item.op is not None and item.op.backward
            if backward or any(x.id in late for x in read_by(item)):
                late.update(x.id for x in item.outs)
                if not backward:
                    self._late.add(id(item))
        self._used: collections.Counter[str] = collections.Counter()

    def of(self, copies: Sequence[Cut]) -> str:
        """Name of a segment with all copies, unlike all names before."""
        phase = self._phase(copies[len(copies) // 2].originals)
        if phase == UPDATE:
            paths = [self._updated(copy.region) for copy in copies]
        else:
            paths = [self._path(copy.originals) for copy in copies]
        path = _joined(paths)
        if phase == f"{FORWARD} and {BACKWARD}":
            name = f"{path} and loss" if path else "loss"
        else:
            name = f"{phase} of {path}" if path else phase
        self._used[name] += 1
        return name if self._used[name] == 1 else f"{name} ({self._used[name]})"

    def _phase(self, steps: Iterable[Instruction]) -> str:
        found: collections.Counter[str] = collections.Counter()
        for item in steps:
            if isinstance(item, Reshard):
                continue
            late = id(item) in self._late
            found[BACKWARD if item.op.backward else UPDATE if late else FORWARD] += 1
        if found[FORWARD] and found[BACKWARD] > found[UPDATE]:
            few = SHARE * found[BACKWARD]
            return BACKWARD if found[FORWARD] < few else f"{FORWARD} and {BACKWARD}"
        return max((FORWARD, BACKWARD, UPDATE), key=found.__getitem__)

    def _path(self, steps: Iterable[Instruction]) -> tuple[str, ...]:
        """Blocks of most ops, in program order: numbered ones, or the outermost."""
        counted: collections.Counter[tuple[str, ...]] = collections.Counter()
        for item in steps:
            if isinstance(item, Reshard):
                continue
            path = self._paths[item.op.id][len(self._outer) :]
            counted[layer_of(path) or path[:1]] += 1
        del counted[()]
        few = SHARE * counted.total()
        return tuple("/".join(p) for p, n in counted.items() if n >= few)[:MOST_PATHS]

    def _updated(self, copy: LocalRegion) -> tuple[str, ...]:
        """Parts of argument paths shared by the copy's weights alone."""
        paths = [self._arguments[x.value.id] for x in copy.args if x.value.id in self._arguments]
        arrays = [path for path in paths if len(path.split("/")) > 1]
        inside = _components(arrays)
        own = {part: n for part, n in inside.items() if n > 0.5 and self._everywhere[part] < 0.5}
        return ("/".join(own),) if own else ()


def _components(paths: Iterable[str]) -> dict[str, float]:
    """Share of the paths with each component; a number counts with the one before."""
    found: collections.Counter[str] = collections.Counter()
    count = 0
    for path in paths:
        count += 1
        parts = path.split("/")
        pairs = zip(["", *parts], parts, strict=False)
        each = [f"{last}/{x}" if last and x.isdecimal() else x for last, x in pairs]
        found.update(dict.fromkeys(each).keys())
    return {part: n / count for part, n in found.items()}


def _joined(paths: Sequence[tuple[str, ...]]) -> str:
    """Name of all copies: differing numbers as first..last."""
    middle = paths[len(paths) // 2]
    same = [path for path in paths if len(path) == len(middle)]
    texts: list[str] = []
    for shown, each in zip(middle, zip(*same, strict=True), strict=True):
        alike = len({_NUMBER.sub("#", text) for text in each}) == 1
        columns = zip(*(_NUMBER.findall(text) for text in each), strict=True) if alike else ()
        spans = iter([_span({int(n) for n in column}) for column in columns])
        texts.append("".join(_spanned(shown, spans)) if alike else shown)
    return ", ".join(dict.fromkeys(texts))


def _spanned(text: str, spans: Iterator[str]) -> Iterator[str]:
    """A text in pieces, with numbers replaced."""
    at = 0
    for number in _NUMBER.finditer(text):
        yield text[at : number.start()]
        yield next(spans)
        at = number.end()
    yield text[at:]


def _span(numbers: Set[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first}..{last}"
