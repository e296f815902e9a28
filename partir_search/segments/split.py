"""The split of a plan's device-local program into unique segments."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from partir_search.lowering.local_ir import (
    Instruction,
    LocalOp,
    LocalProgram,
    LocalRegion,
    Reshard,
)
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.shard_map import partition_spec
from partir_search.segments.atoms import Atom, atoms_of, free
from partir_search.segments.blocks import ParallelBlock, parallel_blocks
from partir_search.segments.cut import Cut, Cutter
from partir_search.segments.find import MIN_WEIGHT, Finder
from partir_search.segments.names import Names
from partir_search.segments.segment import Entry, Segment, Segments, Simulated, type_text
from partir_search.segments.text import Texts
from partir_search.simulator.instruction_seconds import Spent, instruction_seconds
from partir_search.simulator.simulator import CostModel


def segments_of(program: LocalProgram, model: CostModel) -> Segments:
    """Unique segments of a program.

    Segments are repeated layers, and the stretches between layers. A loop over a body with layers
    (a loop over microbatches) is replaced by the segments of the body. Further loops, a scan over
    layers too, stay whole: the compile time of a loop does not depend on the trips.

    Args:
      program: complete program, scheduled for the devices of the segments.
      model: of the program's module, not of a quotient.
    """
    return _Splitter(program, model).segments()


class _Splitter:
    """Split of one program.

    Attributes:
      complete: no loop was entered.
    """

    def __init__(self, program: LocalProgram, model: CostModel) -> None:
        self.program, self.complete = program, True
        self._partition = partition = program.partition
        self._texts = Texts(partition)
        self._prints: dict[str, int] = {}
        self._spent: Mapping[int, Spent] = instruction_seconds(
            model, program, model.simulate(program, record=True)
        )
        lifted = set(program.lifted)
        self._inlined = frozenset(x.id for i, x in program.constants.items() if i not in lifted)
        self._given = {x.id for x in (*program.body.args, *program.constants.values())}
        self._blocks: tuple[ParallelBlock, ...] = parallel_blocks(partition.module, partition.rules)
        self._stored = model.memory.stored
        self._positions = partition.def_use.position

    def segments(self) -> Segments:
        names = Names(self._partition.module, self.program.body)
        found: dict[tuple[str, int], Segment] = {}
        order: list[tuple[tuple[str, int], int]] = []
        for copies, trips in self._stretches(self.program.body, 1):
            made = self._segment(names.of(copies), copies, trips)
            key = made.key, trips
            known = found.get(key)
            first = len(known.copies) if known else 0
            found[key] = known.joined(made) if known else made
            order += [(key, first + i) for i in range(len(copies))]
        numbers = {key: i for i, key in enumerate(found)}
        return Segments(
            unique=tuple(found.values()),
            sequence=tuple((numbers[key], copy) for key, copy in order),
            whole=self._whole(),
            complete=self.complete,
        )

    def _whole(self) -> Segment:
        body = self.program.body
        atoms = atoms_of(body.steps)
        return self._segment(
            self._partition.module.name, self._cutter(body, atoms).cut([range(len(atoms))]), 1
        )

    def _cutter(self, body: LocalRegion, atoms: Sequence[Atom]) -> Cutter:
        return Cutter(body, atoms, self._inlined, self._stored)

    def _stretches(self, body: LocalRegion, times: int) -> Iterator[tuple[Sequence[Cut], int]]:
        """(copies, runs of each) of a region's stretches, in order of execution."""
        atoms = atoms_of(body.steps)
        loops = [self._entered(body.steps[atom.start : atom.stop]) for atom in atoms]
        groups: list[tuple[list[int], ...]] = []  # stretches, or one loop, by copy
        for stretch in self._finder(body, atoms).stretches():
            if not any(loops[at] for copy in stretch.copies for at in copy):
                groups.append(tuple(map(list, stretch.copies)))
                continue
            self.complete = False
            for copy in stretch.copies:
                for is_loop, part in itertools.groupby(copy, lambda at: bool(loops[at])):
                    places = list(part)
                    groups += [([at],) for at in places] if is_loop else [(places,)]
        plain = [group for group in groups if not loops[group[0][0]]]
        entered = [at for at, regions in enumerate(loops) if regions]
        cuts = iter(self._cutter(body, atoms).cut([c for g in plain for c in g], entered))
        for group in groups:
            regions = loops[group[0][0]]
            for inner, trips in regions:
                yield from self._stretches(inner, times * trips)
            if not regions:
                yield [next(cuts) for _ in group], times

    def _entered(self, steps: Sequence[Instruction]) -> list[tuple[LocalRegion, int]]:
        """(region, trips) of a loop whose stretches are segments; [] for further instructions."""
        if len(steps) != 1 or not isinstance(item := steps[0], LocalOp) or not item.regions:
            return []
        trips = self._partition.rules[item.op.id].data_flow.trip_counts
        regions = list(zip(item.regions, map(int, trips), strict=True))
        large = [each for each in regions if len(each[0].steps) >= MIN_WEIGHT]
        if len(large) != 1:
            return []
        region = large[0][0]
        inside = any(self._entered([step]) for step in region.steps)
        layers = self._finder(region, atoms_of(region.steps)).layers()
        return large if inside or layers else []

    def _finder(self, body: LocalRegion, atoms: Sequence[Atom]) -> Finder:
        steps = body.steps
        nbytes = {x.id: x.nbytes for x in (*body.args, *free(body))}
        nbytes |= {x.id: x.nbytes for item in steps for x in item.outs}
        return Finder(
            atoms,
            [self._print(steps[atom.start : atom.stop]) for atom in atoms],
            [sum(map(_weight, steps[atom.start : atom.stop])) for atom in atoms],
            nbytes,
            [x.id for x in body.results if isinstance(x, LocalValue)],
        )

    def _print(self, steps: Sequence[Instruction]) -> int:
        """Number, equal for equal instructions of the same pass."""
        text = "\n".join(self._texts.of(item) for item in steps)
        backward = any(item.op is not None and item.op.backward for item in steps)
        return self._prints.setdefault(f"{backward} {text}", len(self._prints))

    def _segment(self, name: str, copies: Sequence[Cut], trips: int) -> Segment:
        middle = copies[len(copies) // 2]
        body = middle.region
        text = self._texts.flow(body.steps, body.args, body.results)
        spent = [self._spent[id(item)] for item in middle.originals]
        compute = sum(each.compute for each in spent) / trips
        exposed = sum(each.exposed for each in spent) / trips
        ops = {item.op.id for item in body.steps if isinstance(item, LocalOp)}
        return Segment(
            name=name,
            key=hashlib.sha256(text.encode()).hexdigest(),
            copies=tuple(copy.region for copy in copies),
            trips=trips,
            ops=tuple(self._range(copy.region) for copy in copies),
            blocks=tuple(block for block in self._blocks if block.ops[0] in ops),
            entry=tuple(map(self._entry, body.args)),
            simulated=Simulated(compute + exposed, compute),
            program=self.program,
        )

    def _range(self, copy: LocalRegion) -> tuple[int, int]:
        places = [int(self._positions[x.op.id]) for x in copy.steps if isinstance(x, LocalOp)]
        return (min(places), max(places)) if places else (0, -1)

    def _entry(self, local: LocalValue) -> Entry:
        return Entry(
            name=local.value.name,
            type=type_text(local.value.type.dtype, local.shape),
            spec=partition_spec(self._partition.mesh, local.layout),
            nbytes=local.nbytes,
            argument=local.id in self._given,
        )


def _weight(item: Instruction) -> int:
    """Number of instructions in an instruction at every depth, itself included."""
    if isinstance(item, Reshard):
        return 1
    return 1 + sum(_weight(inner) for region in item.regions for inner in region.steps)
