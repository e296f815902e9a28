"""Prints a partition in PartIR's loop form. Deterministic; the language of all goldens.

Neighbouring ops in the same loop nest are printed in one loop. An operand made outside of a loop
is sliced where it is used; values made inside are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.partition import Layout, Partition
from partir_search.ir.rule import NONE, Reads
from partir_search.ir.skewed_schedule import Ring

_HIDDEN = frozenset(
    [
        "sharding",
        "out_sharding",
        "shape",
        "new_sizes",
        "jaxpr",
        "update_jaxpr",
        "update_consts",
        "effects",
        "accuracy",
        "weak_type",
        "policy",
        "threefry_partitionable",
        "handle",
        "name",
        "out_dtype",
        "is_stable",
    ]
)
RING = "ring"
PASS, ZIGZAG = "pass", "pass zigzag"
Keep = Callable[[Op], bool]
WIDTH = 100  # columns, beyond which arguments and results stand one to a line
Loop = tuple[tuple[int, ...], str]  # axes, "tile 0", a monoid, "ring" or "pass"


def print_partition(partition: Partition, keep: Keep | None = None) -> str:
    """The module under `partition`; with `keep`, only the body's ops that it accepts."""
    printer = _Printer(partition)
    module = partition.module
    enters, leaves = dict(partition.modes.enters), dict(partition.modes.leaves)
    args = [
        f"%{v.name}: {printer.lying(v, enters[i]) if i in enters else printer.type(v)}"
        for i, v in enumerate(module.body.args)
    ]
    begin, end = f"func {module.name}(", f") mesh<{partition.mesh}> {{"
    head = _listed(begin, args if keep is None else ["..."], end)
    ops = [op for op in module.body.ops if keep is None or keep(op)]
    lines = printer.ops(ops, 0, _used_outside(module.body, ops))
    results = [
        printer.operand(r) + (f": {printer.lying(r, leaves[i])}" if i in leaves else "")
        for i, r in enumerate(module.body.results)
    ]
    tail = _listed("  return ", results, "") if keep is None else []
    return "\n".join([*head, *("  " + line for line in lines), *tail, "}"])


def _listed(begin: str, items: Sequence[str], end: str) -> list[str]:
    """A list in one line if it fits, else with a line for each item."""
    line = f"{begin}{', '.join(items)}{end}"
    if len(line) <= WIDTH or len(items) == 1:
        return [line]
    indent = " " * (len(begin) - len(begin.lstrip()))
    inside = [f"{indent}  {item}," for item in items]
    if not end:  # no bracket closes the list
        inside[-1] = inside[-1].removesuffix(",")
        return [begin.rstrip(), *inside]
    return [begin, *inside, indent + end]


def _used_outside(region: Region, ops: Sequence[Op]) -> set[int]:
    """Values used by something else than the given ops of a region."""
    inside = {op.id for op in ops}
    used = {x.id for x in region.results if isinstance(x, Value)}
    for op in region.ops:
        if op.id not in inside:
            used.update(v.id for _, v in op.inputs())
    return used


class _Printer:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.mesh = partition.mesh
        self.local: dict[int, set[int]] = {}  # per axis, values made in the loop being printed

    def type(self, value: Value) -> str:
        p = self.partition
        notes = [
            f"{self.mesh.names[a]}:{d}"
            for a in p.order
            if value.type.shape and (d := p.tiles[a][value.id]) >= 0
        ]
        notes += [f"{self.mesh.names[a]}:{monoid}" for a, monoid in p.rest_pending(value)]
        return f"{value.type}{{{', '.join(notes)}}}" if notes else str(value.type)

    def lying(self, x: Operand, layout: Layout) -> str:
        """The type of what enters or leaves in a layout of its own."""
        notes = [f"{self.mesh.names[a]}:{d}" for d, axes in enumerate(layout) for a in axes]
        return f"{x.type}{{{', '.join(notes)}}}"

    def nest(self, op: Op) -> list[Loop]:
        p, loops = self.partition, list[Loop]()
        rule, ring = p.rules[op.id], p.ring(op)
        for axis in p.order:
            f = p.loops[axis][op.id]
            if f >= 0 and not op.regions and not (ring and axis in ring.axes):
                places = [rule.dim_of(r, f) for r in rule.results]
                dims = [str(d) for d in places if d >= 0]
                same = dims[:1] if len(set(dims)) == 1 else dims
                loops.append(((axis,), f"tile {','.join(same)}" if dims else rule.reducers[f]))
        for axes in dict.fromkeys(p.passed(op).values()):
            loops.append((axes, ZIGZAG if p.zigzags(op, axes) else PASS))
        return [*loops, (ring.axes, RING)] if ring else loops

    def ops(self, ops: Sequence[Op], level: int, outside: set[int]) -> list[str]:
        """Lines of ops that share their first `level` loops."""
        lines: list[str] = []
        last = {v.id: at for at, op in enumerate(ops) for _, v in op.inputs()}
        i = 0
        while i < len(ops):
            nest = self.nest(ops[i])
            if len(nest) <= level:
                lines += self.statement(ops[i])
                i += 1
                continue
            loop, j, made = nest[level], i, set[int]()
            while j == i or (j < len(ops) and self.joins(made, ops[j], loop, level)):
                made.update(r.id for r in ops[j].results)
                j += 1
            results = [r for op in ops[i:j] for r in op.results]
            shown = [r for r in results if r.id in outside or last.get(r.id, NONE) >= j]
            lines += self.loop(ops[i:j], loop, level, shown)
            i = j
        return lines

    def joins(self, made: Set[int], op: Op, loop: Loop, level: int) -> bool:
        """Tells whether `op` can go into a loop in which values are `made`."""
        nest = self.nest(op)
        if len(nest) <= level or nest[level] != loop or loop[1] in (RING, PASS, ZIGZAG):
            return False
        (axis, *_), kind = loop
        for i, value in op.inputs():
            if value.id in made:
                if not kind.startswith("tile"):
                    return False
                rule = self.partition.rules[op.id]
                dim = rule.dim_of(rule.operands[i], self.partition.loops[axis][op.id])
                if f"tile {dim}" != kind or rule.reads_on(i, dim):
                    return False
        return True

    def loop(self, run: Sequence[Op], loop: Loop, level: int, shown: Sequence[Value]) -> list[str]:
        (axis, *_), kind = loop
        name, size = self.mesh.names[axis], self.mesh.sizes[axis]
        before = self.local.get(axis, set())
        if kind not in (RING, PASS, ZIGZAG):
            self.local[axis] = {r.id for op in run for r in op.results}
        inner = self.ops(run, level + 1, {r.id for r in shown})
        self.local[axis] = before
        names = ", ".join(f"%{r.name}" for r in shown)
        head = f'{kind} "{name}" (%{name}: range<{size}>)'
        if kind == RING:
            other = self.mesh.names[loop[0][1]]
            head = f'{kind} "{name}" "{other}" (%{name}, %{other}, %t: steps<{size}>)'
        elif kind in (PASS, ZIGZAG):
            name, size = self.mesh.label(loop[0]), self.mesh.size(loop[0])
            head = f'{kind} "{name}" (%{name}, %t: steps<{size}>)'
        ring = self.partition.ring(run[0]) if kind == RING else None
        return [
            f"{names} = {head} {{",
            *("  " + line for line in inner),
            f"  yield {self.passing(run[0], ring)}" if ring else f"  yield {names}",
            "}",
        ]

    def passing(self, op: Op, ring: Ring) -> str:
        """The result of a ring, with the slice of it that a turn adds to if that changes."""
        rule, text = self.partition.rules[op.id], self.operand(op.results[0])
        places = {ring.place(ring.held(rule, rule.results[0]), t) for t in range(ring.size)}
        r, c, _ = ring.axes
        for which in ring.held(rule, rule.results[0]) if len(places) > 1 else ():
            dim = rule.dim_of(rule.results[0], ring.factors[which])
            index = ring.index(which, (self.mesh.names[r], self.mesh.names[c]))
            text = f"(slice {dim} {text}[{index}])"
        return text

    def statement(self, op: Op) -> list[str]:
        operands = ", ".join(self.sliced(op, i, x) for i, x in enumerate(op.operands))
        results = ", ".join(f"%{r.name}" for r in op.results)
        types = ", ".join(self.type(r) for r in op.results)
        text = f"{results} = {op.prim}{_attributes(op)} {operands}".rstrip()
        if not op.regions:
            return [f"{text} : {types}"]
        lines = [f"{text} : {types} {{"]
        for region in op.regions:
            args = ", ".join(f"%{v.name}: {self.type(v)}" for v in region.args)
            lines.append(f"  ({args}) {{")
            inner = self.ops(region.ops, 0, _used_outside(region, region.ops))
            lines += ["    " + line for line in inner]
            lines.append(f"    yield {', '.join(map(self.operand, region.results))}")
            lines.append("  }")
        return [*lines, "}"]

    def sliced(self, op: Op, position: int, operand: Operand) -> str:
        text = self.operand(operand)
        if isinstance(operand, Literal) or op.regions:
            return text
        rule, ring = self.partition.rules[op.id], self.partition.ring(op)
        told: set[int] = set()  # dims whose stretch stands for all axes
        for axis in self.partition.order:
            f = self.partition.loops[axis][op.id]
            dim = rule.dim_of(rule.operands[position], f) if f >= 0 else NONE
            reads = rule.reads_on(position, dim)
            if reads and dim not in told:
                text = self.window(op, f, reads, text)
                told.add(dim)
            elif dim >= 0 and not reads and operand.id not in self.local.get(axis, ()):
                index = f"%{self.mesh.names[axis]}"
                if ring and axis in ring.axes:
                    r, c, _ = ring.axes
                    names = self.mesh.names[r], self.mesh.names[c]
                    index = ring.index(ring.axes.index(axis), names)
                text = f"(slice {dim} {text}[{index}])"
        axes = self.partition.passed(op).get(position)
        if axes and rule.blockwise:
            dim, n = rule.operands[position].index(rule.blockwise.factor), self.mesh.size(axes)
            name = f"%{self.mesh.label(axes)}"
            index = f"({name} + %t) mod {n}"
            if self.partition.zigzags(op, axes):  # an early and a late chunk
                index = f"{index}, {2 * n - 1} - {index}"
            text = f"(slice {dim} {text}[{index}])"
        return text

    def window(self, op: Op, factor: int, reads: Reads, text: str) -> str:
        """`(window 1 %x[4*%b-1, 6 wrap/wrap])`: from there on, so many elements, and what stands
        beyond the ends if not zeros.
        """
        p = self.partition
        points = p.rules[op.id].sizes[factor] // p.tiles_of(op, factor)
        start, size = reads.stretch(0, points)
        index = ""
        for axis in [a for a in p.order if p.loops[a][op.id] == factor]:
            name = f"%{self.mesh.names[axis]}"
            index = f"({index}*{self.mesh.sizes[axis]}+{name})" if index else name
        ends = f" {reads.beyond}" if reads.beyond else ""
        over = f"/{reads.over}" if reads.over > 1 else ""
        at = f"{reads.step * points}*{index}{over}{start:+}"
        return f"(window {reads.dim} {text}[{at}, {size}{ends}])"

    def operand(self, operand: Operand) -> str:
        if isinstance(operand, Literal):
            value = operand.value
            return str(value.item() if hasattr(value, "item") else value)
        return f"%{operand.name}"


def _attributes(op: Op) -> str:
    shown = {k: v for k, v in op.params.items() if k not in _HIDDEN and _plain(v)}
    if not shown:
        return ""
    return "[" + " ".join(f"{k}={_text(v)}" for k, v in sorted(shown.items())) + "]"


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    return value is not None and isinstance(value, int | float | str | bool)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return str(value)
