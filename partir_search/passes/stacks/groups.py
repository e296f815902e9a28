"""Groups of equal chains of a region."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.passes.stacks.chains import Chain, find_chains, is_heavy, updates
from partir_search.passes.stacks.fingerprint import Fingerprints


@dataclasses.dataclass(eq=False, slots=True)
class Group:
    """Equal chains of a region.

    Attributes:
      region: the region.
      members: [chains][ops] positions in the region, in order; ops at equal places are equal.
      entering: [values][chains] values read from outside, by first use.
    """

    region: Region
    members: list[list[int]]
    entering: list[tuple[Value, ...]]

    def ops(self, member: int) -> list[Op]:
        """Ops of a chain, in program order."""
        return [self.region.ops[i] for i in self.members[member]]

    def leaving(self) -> list[tuple[Value, ...]]:
        """[values][chains] results of ops with a use outside of their chain."""
        used = {x.id for x in self.region.results if isinstance(x, Value)}
        inside = [set(places) for places in self.members]
        home = {i: k for k, places in enumerate(self.members) for i in places}
        maker = {r.id: home[i] for i in home for r in self.region.ops[i].results}
        for i, op in enumerate(self.region.ops):
            used.update(
                v.id for _, v in op.inputs() if v.id in maker and i not in inside[maker[v.id]]
            )
        made = [[r for op in self.ops(k) for r in op.results] for k in range(len(self.members))]
        return [values for values in zip(*made, strict=True) if any(v.id in used for v in values)]


def is_shared(values: Sequence[Value]) -> bool:
    """True if all chains read one value."""
    return len({v.id for v in values}) == 1


def find_groups(region: Region, rules: Sequence[OpRule], prints: Fingerprints) -> Iterator[Group]:
    """Groups of two or more equal chains of a region, and of the regions of ops in no group.

    A heavy op of a group reads no array that its chains share: the layers of a network, with one
    activation for several weights, are no group.
    """
    allowed = updates(region)
    heavy = {i for i in allowed if is_heavy(region.ops[i], rules)}
    if len(heavy) < 2:
        yield from _inner(region, heavy, rules, prints)
        return
    chains = find_chains(region, allowed, heavy, ())
    groups = _equal(region, chains, heavy, prints)
    taken = {i for g in groups for places in g.members for i in places}
    joints = {i for i in heavy - taken if region.ops[i].regions}
    if joints:  # without them, what they join may fall into equal chains
        chains = find_chains(region, allowed, heavy, joints)
        groups = _equal(region, chains, heavy, prints)
    yield from groups
    yield from _inner(region, joints, rules, prints)


def _inner(
    region: Region, places: set[int], rules: Sequence[OpRule], prints: Fingerprints
) -> Iterator[Group]:
    for i in sorted(places):
        for inner in region.ops[i].regions:
            yield from find_groups(inner, rules, prints)


def _equal(
    region: Region, chains: Sequence[Chain], heavy: set[int], prints: Fingerprints
) -> list[Group]:
    """Groups of equal chains of one level, in order of their first ops."""
    alike: dict[Hashable, list[tuple[Chain, list[Value]]]] = collections.defaultdict(list)
    lengths = collections.Counter((chain.level, len(chain.places)) for chain in chains)
    for chain in chains:
        if lengths[chain.level, len(chain.places)] < 2:
            continue
        ops = [region.ops[i] for i in chain.places]
        if not any(op.effect for op in ops):
            key, values = prints.chain(ops)
            alike[chain.level, key].append((chain, values))
    groups = []
    for found in alike.values():
        members = [list(chain.places) for chain, _ in found]
        entering = list(zip(*(values for _, values in found), strict=True))
        group = Group(region, members, entering)
        if len(members) > 1 and _apart(group, heavy):
            groups.append(group)
    return groups


def _apart(group: Group, heavy: set[int]) -> bool:
    """True if chains read arrays of their own, and share none that a heavy op reads."""
    shared = {values[0].id for values in group.entering if is_shared(values)}
    own = any(values[0].id not in shared for values in group.entering)
    read = (v for i in group.members[0] if i in heavy for _, v in group.region.ops[i].inputs())
    return own and not any(v.id in shared and len(v.type.shape) > 1 for v in read)
