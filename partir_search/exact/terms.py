"""Tables over two variables each as one array: subsets of labels and sums without a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partir_search.exact.arrays import Bools, Floats, Ints, Pair
from partir_search.exact.ragged import Ragged, cells, joined, lengths_of, starts_of

ALONE = -1  # in place of a second variable: a table over the first alone, with one column


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Subset:
    """Some labels of each of n variables, and the only label of `ALONE`.

    Attributes:
      labels: of all variables, one after another.
      starts: [n + 1] first place of each variable's labels; `ALONE` comes last.
      lengths: [n + 1] numbers of labels of each.
    """

    labels: Ints
    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, kept: Sequence[Ints]) -> Subset:
        """Subset with the labels `kept`, in ascending order by variable."""
        lengths = np.append(lengths_of(kept), 1)
        return cls(np.concatenate((*kept, [0])), starts_of(lengths)[:-1], lengths)

    def positions(self, labels: Ints) -> Ints:
        """[n] position of a label of each variable in the subset."""
        owners, places = cells(self.lengths[:-1])
        found: Ints = places[self.labels[:-1] == labels[owners]]
        return found

    def picks(self, ends: Ints, strides: Ints) -> tuple[Ints, Ints]:
        """Entries of tables at the labels of the subset, by rows.

        Args:
          ends: [t, 2] variables of each table.
          strides: [t, 2] of the table's entries along each.

        Returns:
          Number of the table of each entry, and the entry's place within the table.
        """
        rows, columns = self.lengths[ends].T
        owners, places = cells(rows * columns)
        row = places // columns[owners]
        at = self.starts[ends][owners]
        first = self.labels[at[:, 0] + row] * strides[:, 0][owners]
        column = places - row * columns[owners]
        return owners, first + self.labels[at[:, 1] + column] * strides[:, 1][owners]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Terms:
    """A sum of tables over two variables each, or one; several may be over the same.

    Attributes:
      ends: [t, 2] ascending variables of each table, or one and `ALONE`.
      entries: tables one after another, each by rows.
      starts: [t + 1] first place of each table, and the end of the last.
    """

    ends: Ints
    entries: Floats
    starts: Ints

    @classmethod
    def of(cls, tables: Sequence[tuple[Pair, Floats]]) -> Terms:
        """Terms of tables by their two variables."""
        ends = np.array([sorted(pair) for pair, _ in tables], dtype=np.int64).reshape(-1, 2)
        flat = [(table if u < v else table.T).ravel() for (u, v), table in tables]
        return cls(ends, joined(flat), starts_of(lengths_of(flat)))

    @classmethod
    def of_rows(cls, ends: Sequence[Pair], rows: Sequence[Floats]) -> Terms:
        """Terms of tables by rows, over ascending variables, or one and `ALONE`."""
        pairs = np.array(ends, dtype=np.int64).reshape(-1, 2)
        return cls(pairs, joined(rows), starts_of(lengths_of(rows)))

    @classmethod
    def single(cls, costs: Ragged) -> Terms:
        """Terms of the costs of single variables."""
        ends = np.full((len(costs), 2), ALONE, dtype=np.int64)
        ends[:, 0] = np.arange(len(costs))
        return cls(ends, costs.entries, costs.starts)

    def at_labels(self, some: Subset, sizes: Sequence[int]) -> Terms:
        """Terms over subsets of the labels.

        Args:
          sizes: [variables] numbers of labels of these terms.
        """
        columns = np.append(sizes, 1)[self.ends[:, 1]]
        strides = np.stack((columns, np.ones_like(columns)), axis=1)
        owners, places = some.picks(self.ends, strides)
        entries = self.entries[self.starts[owners] + places]
        counts = some.lengths[self.ends].prod(axis=1)
        return Terms(self.ends, entries, starts_of(counts))

    def part(self, chosen: Bools) -> Terms:
        """Some of the tables.

        Args:
          chosen: [t] True for tables of the part.
        """
        counts = np.diff(self.starts)
        return Terms(
            self.ends[chosen], self.entries[np.repeat(chosen, counts)], starts_of(counts[chosen])
        )

    def joined(self, other: Terms) -> Terms:
        """The tables of both."""
        starts = np.concatenate((self.starts, self.starts[-1] + other.starts[1:]))
        ends = np.concatenate((self.ends, other.ends))
        return Terms(ends, np.concatenate((self.entries, other.entries)), starts)

    @classmethod
    def all(cls, parts: Sequence[Terms]) -> Terms:
        """The tables of all parts."""
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        ends = np.concatenate([part.ends for part in parts])
        return cls(ends, np.concatenate([part.entries for part in parts]), starts_of(counts))

    def times(self, factor: float) -> Terms:
        """The sum times a factor."""
        return Terms(self.ends, self.entries * factor, self.starts)

    def energies(self, labels: Ints, sizes: Sequence[int]) -> Floats:
        """[...] values at labellings [..., variables]."""
        total: Floats = self.values(labels, sizes).sum(axis=-1)
        return total

    def values(self, labels: Ints, sizes: Sequence[int]) -> Floats:
        """[..., t] values of the tables at labellings [..., variables]."""
        first, second = self.ends.T
        columns, alone = np.append(sizes, 1)[second], second == ALONE
        at = labels[..., first] * columns + np.where(alone, 0, labels[..., second])
        found: Floats = self.entries[self.starts[:-1] + at]
        return found

    def energy(self, labels: Ints, sizes: Sequence[int]) -> float:
        """Value at a labelling."""
        return float(self.energies(labels, sizes))


class PairTables(Mapping[Pair, Floats]):
    """Tables by pair of ascending variables, as parts of one array.

    Attributes:
      terms: the tables, of which no two are over the same variables.
    """

    def __init__(self, terms: Terms, sizes: Sequence[int]) -> None:
        """Tables of variables with `sizes` labels."""
        self.terms, self._sizes = terms, sizes
        self._tables: dict[Pair, Floats] | None = None

    @classmethod
    def of(cls, pairs: Mapping[Pair, Floats], sizes: Sequence[int]) -> PairTables:
        """Tables of a mapping; `PairTables` are returned as is."""
        return pairs if isinstance(pairs, PairTables) else cls(Terms.of([*pairs.items()]), sizes)

    def _views(self) -> dict[Pair, Floats]:
        if self._tables is None:
            terms, sizes = self.terms, np.array(self._sizes, dtype=np.int64)
            shapes, stops = sizes[terms.ends].tolist(), terms.starts.tolist()
            self._tables = {
                (u, v): terms.entries[a:b].reshape(shape)
                for (u, v), shape, a, b in zip(
                    terms.ends.tolist(), shapes, stops[:-1], stops[1:], strict=True
                )
            }
        return self._tables

    def __getitem__(self, pair: Pair) -> Floats:
        return self._views()[pair]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._views())

    def __len__(self) -> int:
        return len(self.terms.ends)


def summed(sizes: Sequence[int], parts: Sequence[Terms]) -> tuple[Ragged, PairTables]:
    """Sum of terms: [variables] costs of single variables, and tables of pairs.

    Tables over a variable of one label are costs of the other.

    Args:
      sizes: [variables] numbers of labels.
    """
    ends = np.concatenate([part.ends for part in parts])
    entries = np.concatenate([part.entries for part in parts])
    lengths = np.append(sizes, 1)
    rows, columns = lengths[ends].T
    paired = (rows > 1) & (columns > 1)
    own = np.where(columns == 1, ends[:, 0], ends[:, 1])
    keys = ends[:, 0] * len(sizes) + ends[:, 1]
    distinct, at = np.unique(keys[paired], return_inverse=True)
    both = np.stack(np.divmod(distinct, max(len(sizes), 1)), axis=1)
    unary, tables = starts_of(lengths[:-1]), starts_of(lengths[both].prod(axis=1))
    begins = np.zeros(len(ends), dtype=np.int64)
    begins[~paired], begins[paired] = unary[own[~paired]], unary[-1] + tables[at]
    owners, places = cells(rows * columns)
    count = int(unary[-1] + tables[-1])
    total: Floats = np.asarray(np.bincount(begins[owners] + places, entries, count), np.float64)
    costs, rest = total[: unary[-1]], total[unary[-1] :]
    return Ragged(costs, lengths[:-1]), PairTables(Terms(both, rest, tables), sizes)
