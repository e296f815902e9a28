"""Flags of the command as options of `auto_partition`: donation, goals, remat, schedules."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Literal

from partir_search.commands.named_objects import UsageError, named_object
from partir_search.mcts.goals import Fastest, FewestBytes, Fit
from partir_search.messages.wording import did_you_mean
from partir_search.plan.known_strategies import KnownStrategies
from partir_search.plan.plan import Plan
from partir_search.planning.confirm.request import Confirm

POSITIONS = re.compile(r"-?\d+(,-?\d+)*")
UNITS = {"": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
GOALS = "fit=16GB (bytes of a device), fastest, sent=AXIS (bytes along an axis)"


def joined_positions(argv: Sequence[str]) -> list[str]:
    """Rewrites ``--donate 0 1`` as ``--donate=0,1``, since the step may follow the positions."""
    words, found = list(argv), list[str]()
    while words:
        word = words.pop(0)
        if word == "--donate" and words and POSITIONS.fullmatch(words[0]):
            given = [words.pop(0)]
            while words and POSITIONS.fullmatch(words[0]):
                given.append(words.pop(0))
            word = f"--donate={','.join(given)}"
        found.append(word)
    return found


def positions(text: str) -> tuple[int, ...]:
    """Parses argument positions, ``0`` or ``0,1``."""
    if not POSITIONS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no position of an argument; write 0 or 0,1")
    return tuple(map(int, text.split(",")))


def counts(text: str) -> tuple[int, ...]:
    """Parses numbers of microbatches, ``4`` or ``1,2,4``."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of microbatches; write 4 or 1,2,4")
    return tuple(map(int, text.split(",")))


def goals(text: str) -> list[Any]:
    """Parses goals, ``fit=16GB,fastest``."""
    found: list[Any] = []
    for entry in text.split(","):
        name, _, value = entry.strip().partition("=")
        if name == "fastest" and not value:
            found.append(Fastest())
        elif name == "sent" and value:
            found.append(FewestBytes(value))
        elif name == "fit" and (size := re.fullmatch(r"([\d.]+) *([A-Za-z]*)", value)):
            if size[2] not in UNITS:
                raise argparse.ArgumentTypeError(f"{value!r} has none of the units {list(UNITS)}")
            found.append(Fit(float(size[1]) * UNITS[size[2]]))
        else:
            near = did_you_mean(name, ("fit", "fastest", "sent"))
            raise argparse.ArgumentTypeError(f"{entry!r} is no goal: write {GOALS}{near}")
    return found


def three_ways(text: str) -> bool | Literal["auto"]:
    """Parses auto, always or never."""
    known: dict[str, bool | Literal["auto"]] = {"auto": "auto", "always": True, "never": False}
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is none of auto, always, never")
    return known[text]


def confirm(target: str | None, memory: bool) -> Any:
    """Option `confirm` of ``--confirm`` and ``--confirm-memory``."""
    if target is None and not memory:
        return None
    return Confirm(target=None if target == "own" else target, cycles=not memory)


def schedule_of(name: str, known: KnownStrategies) -> Plan:
    """Plan of the known strategy named on the command line.

    Args:
      name: a full name, ``BP(data)+MP(model)+Z3``, or codes without axes, ``bp+z3``: the fastest
        strategy of the codes, fitting ones first.
      known: strategies of the step.

    Raises:
      UsageError: no strategy has the name.
    """
    if name in known:
        return known[name]
    wanted = sorted(name.lower().split("+"))
    for each in known:
        if sorted(re.sub(r"\([^()]*\)", "", each).lower().split("+")) == wanted:
            return known[each]
    codes = dict.fromkeys(re.sub(r"\([^()]*\)", "", each).lower() for each in known)
    raise UsageError(
        f"--schedule: no strategy {name!r}; write a full name such as {next(iter(known))!r}, codes"
        f" ({', '.join(list(codes)[:8])}), none, or package.module:tactics"
        f"{did_you_mean(name, [*known, *codes])}"
    )


def tactics(name: str) -> list[Any]:
    """Tactics named ``package.module:name``: a list, or a function returning one."""
    found = named_object(name)
    found = found() if callable(found) else found
    if not isinstance(found, list | tuple):
        raise UsageError(f"--schedule: {name} is no list of tactics")
    return list(found)
