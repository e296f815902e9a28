"""The default form: a block for each scope, operands sliced at the head of loops.

Runs of elementwise ops are one line, equal layers are printed once, and attributes are shown only
if types and factors do not imply them. Every line fits in `WIDTH` columns.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from partir_search.ir.core import Literal, Operand, Region, Value
from partir_search.ir.partition import Partition
from partir_search.ir.printing.attributes import telling_attributes
from partir_search.ir.printing.full import Keep
from partir_search.ir.printing.heads import LIST, arguments, returned, shown_results
from partir_search.ir.printing.loops import RING, head_text, passing
from partir_search.ir.printing.names import BlockNames, Names
from partir_search.ir.printing.nodes import Block, Looped, Made, Node, Run, Statement, Tree
from partir_search.ir.printing.slices import Aliases, Parts, slice_lines
from partir_search.ir.printing.text import assigned, fitted, literal_text, type_text
from partir_search.ir.printing.weights import Path
from partir_search.ir.rule import NONE

MANY_OPS = 4000  # of a program whose backward pass `print_beginning` leaves out
OF_RUNS = 4  # slices shown for the runs of one loop

Slices = dict[tuple[Value, Parts], int]  # id of an op that reads the slice


def print_blocks(partition: Partition, keep: Keep | None = None) -> str:
    """Text of the module under `partition`; with `keep`, only of the selected ops of the body."""
    module, names = partition.module, Names(partition.module)
    body = Tree(partition, names).of([op for op in module.body.ops if keep is None or keep(op)])
    printer = _Printer(partition, names, body, whole=keep is None)
    here = names.in_block(())
    lines = printer.nodes(body, here)
    if keep is None:
        lines += returned(partition, here)
    lines = [*arguments(partition, whole=keep is None), *_indented(lines), "}"]
    return "\n".join(piece for line in lines for piece in fitted(line))


def print_beginning(partition: Partition, most: int) -> list[str]:
    """At most `most` lines of the text of a module, and what is left out.

    Of programs with more than `MANY_OPS` ops the forward pass alone is printed, in a third of the
    time.
    """
    module, names = partition.module, Names(partition.module)
    ops = module.body.ops
    forward = next((i for i, op in enumerate(ops) if op.backward), 0)
    if not forward or len(module.ops) <= MANY_OPS:
        lines = print_blocks(partition).splitlines()
        return [*lines[:most], *([f"... {len(lines) - most} lines more"] if lines[most:] else [])]
    tree = Tree(partition, names)
    body = tree.of(ops[:forward])
    printer = _Printer(partition, names, body, whole=True)
    lines = _indented(printer.nodes(body, names.in_block(())))
    lines = [
        piece for line in [*arguments(partition, whole=True), *lines] for piece in fitted(line)
    ]
    return [
        *lines[:most],
        f"... and the backward pass: {len(ops) - forward} ops in print(plan.ir())",
    ]


class _Printer:
    def __init__(
        self, partition: Partition, names: Names, body: Sequence[Node], *, whole: bool
    ) -> None:
        self.partition, self.names = partition, names
        module = partition.module
        self.forward = {r.id for op in module.ops if not op.backward for r in op.results}
        self.seen = {at for node in body for at in self.mentions(node)}
        if whole:
            results = (module.body.results[i] for i in shown_results(partition))
            self.seen.update((x.id, NONE) for x in results if isinstance(x, Value))

    def mentions(self, node: Node) -> Iterator[tuple[int, int]]:
        """(value id, op id) of values printed as operands; `NONE` for results of regions."""
        inner: Sequence[Node] = ()
        if isinstance(node, Statement):
            yield from ((x.id, node.op.id) for x in node.op.operands[:LIST] if _is_value(x))
            for region, body in node.regions:
                yield from ((x.id, NONE) for x in region.results[:LIST] if _is_value(x))
                inner = (*inner, *body)
        elif isinstance(node, Looped) and not node.run:
            yield from ((v.id, op) for (v, _), op in self.slices(node).items())
            inner = node.body
        elif isinstance(node, Block):
            inner = node.body
        for n in inner:
            yield from self.mentions(n)

    def slices(self, node: Looped) -> Slices:
        """Operand slices at the head of a loop: of all statements, and up to `OF_RUNS` of runs.

        Values saved by the forward pass for a run of the backward pass are not shown.
        """
        found: Slices = {}
        runs: Slices = {}
        for inner in node.body:
            if isinstance(inner, Statement):
                found.update(dict.fromkeys(_sliced(inner), inner.op.id))
            elif isinstance(inner, Run):
                for s in inner.statements:
                    kept = self.forward if s.op.backward else ()
                    runs.update({at: s.op.id for at in _sliced(s) if at[0].id not in kept})
        new = [at for at in runs if at not in found][:OF_RUNS]
        return found | {at: runs[at] for at in new}

    def nodes(
        self, nodes: Sequence[Node], names: BlockNames, outer: Block | None = None
    ) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            if isinstance(node, Block):
                lines += self.block(node, outer)
            elif isinstance(node, Looped):
                lines += self.looped(node, names, {})
            elif isinstance(node, Run):
                lines.append(self.run(node, names))
            else:
                lines += self.statement(node, names, {})
        return lines

    def block(self, block: Block, outer: Block | None) -> list[str]:
        def title(path: Path) -> str:
            return "/".join(path[len(outer.path) if outer else 0 :])

        backward = block.backward and not (outer and outer.backward)
        head = ("backward of " if backward else "") + title(block.path)
        if block.repeats > 1:
            head += f" ... x {block.repeats} ({title(block.path)} .. {title(block.last)})"
        inner = self.nodes(block.body, self.names.in_block(block.path), block)
        return [f"{head} {{", *_indented(inner), "}"]

    def looped(self, node: Looped, names: BlockNames, outer: Aliases) -> list[str]:
        heads = ", ".join(head_text(self.partition, loop) for loop in node.loops)
        if node.run:
            loops = ", ".join(
                head_text(self.partition, loop).rpartition(" (")[0] for loop in node.loops
            )
            return [self.run(node.run, names, f" in {loops}")]
        results = self.listed(node.results, names)
        lines, aliases = slice_lines(self.slices(node), names, outer)
        for inner in node.body:
            if isinstance(inner, Statement):
                lines += self.statement(inner, names, aliases)
            elif isinstance(inner, Looped):
                lines += self.looped(inner, names, aliases)
            else:
                lines += self.nodes([inner], names)
        yields = results
        if node.loops[-1].kind == RING and isinstance(inner := node.body[-1], Statement):
            ring = self.partition.ring(inner.op)
            if ring:
                yields = passing(self.partition, inner.op, ring, results)
        return [f"{assigned(results)}{heads} {{", *_indented([*lines, f"yield {yields}"]), "}"]

    def run(self, run: Run, names: BlockNames, loops: str = "") -> str:
        kinds = collections.Counter(
            self.partition.rules[s.op.id].kind.value for s in run.statements
        )
        counts = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        text = f"... {counts} ops{loops}"
        if not run.results:
            return text
        text += f": {self.listed(run.results, names)}"
        shown = self.shown(run.results, names)
        return f"{text} : {type_text(self.partition, shown[0])}" if len(shown) == 1 else text

    def statement(self, node: Statement, names: BlockNames, aliases: Aliases) -> list[str]:
        op = node.op
        texts = [
            self.operand(x, parts, names, aliases)
            for x, parts in zip(op.operands[:LIST], node.slices, strict=False)
        ]
        if len(op.operands) > LIST:
            texts.append(f"... {len(op.operands) - LIST} more")
        attributes = telling_attributes(op, self.partition.rules[op.id])
        text = f"{op.prim}{attributes} {', '.join(texts)}".rstrip()
        if op.results:
            types = ", ".join(type_text(self.partition, r) for r in self.shown(node.results, names))
            text = f"{self.listed(node.results, names)} = {text} : {types}"
        if not node.regions:
            return [text]
        inner = [self.region(*region, self.names.in_block(names.block)) for region in node.regions]
        lines = [line for region in inner for line in region]
        return [f"{text} {{", *_indented(lines), "}"]

    def region(self, region: Region, body: Sequence[Node], names: BlockNames) -> list[str]:
        args = [f"%{names.of(v)}: {type_text(self.partition, v)}" for v in region.args[:LIST]]
        if len(region.args) > LIST:
            args.append(f"... {len(region.args) - LIST} more")
        results = [self.operand(x, (), names, {}) for x in region.results[:LIST]]
        if len(region.results) > LIST:
            results.append(f"... {len(region.results) - LIST} more")
        lines = [*self.nodes(body, names), f"yield {', '.join(results)}"]
        return [f"({', '.join(args)}) {{", *_indented(lines), "}"]

    def operand(self, x: Operand, parts: Parts, names: BlockNames, aliases: Aliases) -> str:
        if isinstance(x, Literal):
            return _short(literal_text(x))
        return f"%{aliases[x.id, parts] if parts else names.of(x)}"

    def shown(self, results: Sequence[Made], names: BlockNames) -> list[Value]:
        """Results printed elsewhere or main values of their block; if none, the last one."""
        found = [
            r.value
            for r in results
            if (r.value.id, NONE) in self.seen
            or any((r.value.id, user) in self.seen for user in r.users)
            or names.is_main(r.value)
        ]
        return found or [r.value for r in results[-1:]]

    def listed(self, results: Sequence[Made], names: BlockNames) -> str:
        shown = self.shown(results, names)
        texts = [f"%{names.of(r)}" for r in shown]
        more = len(results) - len(shown)
        return ", ".join([*texts, *([f"... {more} more"] if more else [])])


def _is_value(x: Operand) -> TypeGuard[Value]:
    return isinstance(x, Value)


def _sliced(statement: Statement) -> Iterator[tuple[Value, Parts]]:
    for x, parts in zip(statement.op.operands, statement.slices, strict=True):
        if parts and isinstance(x, Value):
            yield x, parts


def _short(number: str) -> str:
    """A literal with at most 6 digits."""
    return f"{float(number):.6g}" if re.fullmatch(r"-?\d+\.\d{6,}(e[-+]?\d+)?", number) else number


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]
