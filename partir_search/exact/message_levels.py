"""One direction of message passing, level by level.

The level of a variable is one above the highest level of the neighbours earlier in the pass. The
variables of a level depend on lower levels alone: all messages of a level are computed at once, in
arrays without a loop over variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partir_search.exact.arrays import Bools, Floats, Ints

TOGETHER = 1 << 15  # entries of tables whose messages are computed at once, at most
PADDED = 0.75  # of the labels of a variable: others with at least this share are padded


class Message(NamedTuple):
    """A message from a sender to a receiver.

    Attributes:
      costs: place of the sender's first label among all labels.
      received: place of the first entry of the message from the receiver to the sender.
      to: place of the message's first entry.
      table: [labels of the sender, labels of the receiver] costs.
    """

    costs: int
    received: int
    to: int
    table: Floats


class Sender(NamedTuple):
    """A variable of a level.

    Attributes:
      first / size: place of the first label among all labels, and number of labels.
      received: place of the first entry of the first message received; the messages of all
        neighbours lie side by side.
      degree: number of neighbours.
      unary: [size] costs.
      weight: share of the costs in each message.
      messages: to the neighbours of higher levels.
    """

    first: int
    size: int
    received: int
    degree: int
    unary: Floats
    weight: float
    messages: Sequence[Message]


class Level:
    """Variables whose messages are computed at once."""

    def __init__(self, senders: Sequence[Sender], no_message: int, no_label: int) -> None:
        """Places of labels and messages of a level.

        Args:
          no_message: place of an entry 0 behind all messages.
          no_label: place of a label of infinite cost behind all labels.
        """
        sizes = np.array([s.size for s in senders], dtype=np.int64)
        self._labels = np.concatenate([np.arange(s.first, s.first + s.size) for s in senders])
        self._owners = np.repeat(np.arange(len(senders)), sizes)
        self._firsts = np.cumsum(sizes) - sizes
        self._unary = np.concatenate([s.unary for s in senders])
        self._weights = np.array([s.weight for s in senders])[self._owners]
        received = [
            s.received + np.arange(s.size)[:, None] + s.size * np.arange(s.degree)
            if s.degree
            else np.full((s.size, 1), no_message)
            for s in senders
        ]
        self._received = np.concatenate([each.ravel() for each in received])
        counts = np.repeat([max(s.degree, 1) for s in senders], sizes)
        self._starts = np.cumsum(counts) - counts
        messages = [message for s in senders for message in s.messages]
        self._groups = [_Group(some, no_message, no_label) for some in _together(messages)]

    def send(self, messages: Floats, costs: Floats, shares: Floats) -> float:
        """Writes the messages and costs of the level; returns the sum of the least entries of all.

        Args:
          messages: all messages.
          costs: costs of all labels under the messages received, above the least of the variable.
          shares: part of these costs in each message, and an infinite entry at the end.
        """
        own = np.add.reduceat(messages[self._received], self._starts) + self._unary
        least = np.minimum.reduceat(own, self._firsts)
        own -= least[self._owners]
        costs[self._labels] = own
        shares[self._labels] = own * self._weights
        bound = float(least.sum())
        for group in self._groups:
            bound += group.send(messages, shares)
        return bound


class _Group:
    """Messages of senders with about the same number of labels, padded to the same.

    Arrays have a row per label of the senders, and a column per entry of the messages.
    """

    def __init__(self, group: Sequence[Message], no_message: int, no_label: int) -> None:
        rows, widths = len(group[0].table), [m.table.shape[1] for m in group]
        self._starts = np.array([0, *itertools.accumulate(widths[:-1])], dtype=np.int64)
        self._message = np.repeat(np.arange(len(group)), widths)  # of each column
        shift = np.array([m.to for m in group], dtype=np.int64) - self._starts
        self._to = np.arange(len(self._message)) + shift[self._message]
        sizes = np.array([len(m.table) for m in group], dtype=np.int64)
        row = np.arange(rows)[:, None]
        known: Bools = row < sizes
        self._shares: Ints = np.where(known, row + [m.costs for m in group], no_label)
        self._received: Ints = np.where(known, row + [m.received for m in group], no_message)
        self._table = np.zeros((rows, len(self._message)))
        for message, start, width in zip(group, self._starts.tolist(), widths, strict=True):
            self._table[: len(message.table), start : start + width] = message.table

    def send(self, messages: Floats, shares: Floats) -> float:
        """Writes the messages; returns the sum of the least entries, subtracted from each."""
        rest = shares[self._shares] - messages[self._received]
        if len(self._starts) == 1:
            rest = rest + self._table
        else:
            rest = rest.take(self._message, axis=1)
            rest += self._table
        found = rest.min(axis=0)
        lows = np.minimum.reduceat(found, self._starts)
        messages[self._to] = found - lows[self._message]
        return float(lows.sum())


def _together(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Groups of messages, the most labels of a sender first."""
    group: list[Message] = []
    rows = entries = 0
    for message in sorted(messages, key=lambda m: -len(m.table)):
        size, width = message.table.shape
        if group and (size < PADDED * rows or entries + rows * width > TOGETHER):
            yield group
            group = []
        if not group:
            rows, entries = size, 0
        group.append(message)
        entries += rows * width
    if group:
        yield group
