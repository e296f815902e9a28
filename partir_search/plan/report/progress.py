"""Progress of a search, or of steps: a bar on a terminal or in a notebook, lines otherwise."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from partir_search.mcts.game import Record
from partir_search.messages.console import new_console
from partir_search.messages.wording import milliseconds
from partir_search.plan.report.progress_cell import in_notebook, progress_cell
from partir_search.simulator.cost import Cost

LOG = logging.getLogger("partir_search")
LOG_SECONDS = 10.0  # between lines of a log

Watch = Callable[[Record], None]


class Progress:
    """Progress of one search.

    Attributes:
      watch: callback with the search's record after each episode; None to watch nothing.
    """

    def __init__(self, watch: Watch | None, end: Callable[[Cost], None] | None = None) -> None:
        self.watch, self._end = watch, end

    def planned(self, cost: Cost) -> None:
        """Shows the cost of the plan found: of the whole program."""
        if self._end is not None:
            self._end(cost)


@contextlib.contextmanager
def search_progress(wanted: bool | Watch | None, episodes: int) -> Iterator[Progress]:
    """Progress of a search: the user's own callback, a bar, or lines.

    Args:
      wanted: option `progress` of `auto_partition`. None gives a bar on a terminal (stderr) and in
        a notebook, and lines in the log `partir_search` without both; True gives lines on stderr
        instead of the log.
      episodes: most episodes of the search.
    """
    if callable(wanted):
        yield Progress(wanted)
    elif wanted is False:
        yield Progress(None)
    elif sys.stderr.isatty():
        with _bar(episodes) as progress:
            yield progress
    elif in_notebook():
        yield _cell(episodes)
    else:
        logged = LOG.info if LOG.isEnabledFor(logging.INFO) else None
        write = _to_stderr if wanted else logged
        yield Progress(None) if write is None else _lines(episodes, write)


def show_planned(wanted: bool | Watch | None, name: str, cost: Cost) -> None:
    """Shows the cost of a plan after the last search, beside `search_progress`."""
    if callable(wanted) or wanted is False:
        return
    line = f"plan of {name}: {cost}"
    if wanted or sys.stderr.isatty():
        _to_stderr(line)
    else:
        LOG.info(line)


@contextlib.contextmanager
def step_progress(
    wanted: bool | Watch | None, what: str, total: int
) -> Iterator[Callable[[str], None]]:
    """Progress of steps of some seconds or minutes, as a function to call after each step.

    Args:
      wanted: as for `search_progress`; with the user's own callback, which takes the record of a
        search, nothing is shown.
      what: name of the steps.
      total: number of steps, at most.
    """
    write = _to_stderr if wanted else LOG.info if LOG.isEnabledFor(logging.INFO) else None
    if callable(wanted) or wanted is False:
        yield lambda text: None
    elif sys.stderr.isatty():
        with _step_bar(what, total) as done:
            yield done
    elif in_notebook():
        show, passed = progress_cell(total, what), itertools.count(1)
        yield lambda text: show(next(passed), text, True)
    else:
        begin, steps = time.monotonic(), itertools.count(1)

        def line(text: str) -> None:
            if write is not None:
                spent = time.monotonic() - begin
                write(f"{what} {next(steps)}/{total}, {spent:.0f} s{': ' * bool(text)}{text}")

        yield line


@contextlib.contextmanager
def _step_bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    from rich import progress as rich

    columns = (
        rich.TextColumn(f"[bold]{what}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[text]}"),
    )
    with rich.Progress(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda text: bar.update(task, advance=1, text=text)


@contextlib.contextmanager
def _bar(episodes: int) -> Iterator[Progress]:
    from rich import progress as rich

    columns = (
        rich.TextColumn("[bold]search"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[best]}"),
    )
    with rich.Progress(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task("search", total=episodes, best="")

        def show(record: Record) -> None:
            if record.episodes % 10 == 0 or record.exhausted:
                done = min(record.episodes, episodes)
                bar.update(task, completed=done, best=_best(record))

        yield Progress(show, lambda cost: bar.update(task, best=_found(cost)))


def _cell(episodes: int) -> Progress:
    """Progress as a bar in a notebook's output."""
    show = progress_cell(episodes)
    return Progress(
        lambda record: show(record.episodes, _best(record), record.exhausted),
        lambda cost: show(episodes, _found(cost), True),
    )


def _lines(episodes: int, write: Callable[[str], Any]) -> Progress:
    """Progress as a line every ten seconds, and one for the plan found."""
    begin = last = time.monotonic()

    def show(record: Record) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOG_SECONDS:
            last = now
            write(f"search {record.episodes}/{episodes}, {now - begin:.0f} s: {_best(record)}")

    def end(cost: Cost) -> None:
        write(f"search ended after {time.monotonic() - begin:.1f} s: {_found(cost)}")

    return Progress(show, end)


def _to_stderr(line: str) -> None:
    print(f"partir_search: {line}", file=sys.stderr, flush=True)


def _best(record: Record) -> str:
    """Best score so far; seconds by the default goals, of the program with equal layers folded."""
    best = record.best.score
    excess = " (does not fit yet)" if best.excess > 0 else ""
    return f"best so far {milliseconds(best.objective)}, layers folded{excess}"


def _found(cost: Cost) -> str:
    return f"found {milliseconds(cost.seconds)} a step"
