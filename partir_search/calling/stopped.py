"""Plans of plannings that ctrl-C has stopped, from the best strategies until then."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Hashable, Iterator

from partir_search.messages.files import make_folder
from partir_search.plan.plan import Plan
from partir_search.planning.interruption import SearchJournal
from partir_search.planning.options import Options

FILE = "best_so_far.json"  # in `dump_dir`


class StoppedPlannings:
    """Stopped plannings of one function, by call; each is completed into a plan on request.

    Attributes:
      journal: answers of the current planning.
    """

    def __init__(self, name: str, options: Options) -> None:
        """No stopped plannings yet.

        Args:
          name: name of the function, for messages.
          options: options of `auto_partition`.
        """
        self._name, self._options = name, options
        self.journal = SearchJournal()
        self._stopped: dict[Hashable, SearchJournal | Plan] = {}

    @contextlib.contextmanager
    def watched(self, key: Hashable, make: Callable[[Options], Plan]) -> Iterator[None]:
        """Context of the planning of a call; a KeyboardInterrupt tells how to get the best plan.

        With `dump_dir`, the plan is written there first, which takes the seconds of a planning
        without its searches; a second ctrl-C leaves it out.

        Args:
          key: the call.
          make: function from options to the call's plan.
        """
        self.journal.paths.clear()
        try:
            yield
        except KeyboardInterrupt as stop:
            if self.journal.paths:  # a search had begun
                self._stopped[key] = self.journal.completing()
                stop.add_note(
                    f"{self._name}.best_so_far(...), with the same arguments, is the plan of the"
                    " best strategy so far: save it, or pass it as schedule="
                )
                if self._options.dump_dir is not None:
                    stop.add_note(f"the plan is in {self._written(key, make)}")
            raise
        self._stopped.pop(key, None)

    def completed(self, key: Hashable, make: Callable[[Options], Plan]) -> Plan:
        """The plan of the best strategy of a stopped planning; made on first use.

        Raises:
          ValueError: no search of this call was stopped.
        """
        found = self._stopped.get(key)
        if found is None:
            raise ValueError(
                f"{self._name}.best_so_far: no search for these arguments was stopped by ctrl-C;"
                f" use {self._name}.plan(...)"
            )
        if isinstance(found, SearchJournal):
            options = dataclasses.replace(
                self._options,
                journal=found,
                cache=None,  # which keeps the plans of whole searches
                confirm=None,
                plan_on="every",
                progress=False,
            )
            found = self._stopped[key] = make(options)
        return found

    def clear(self) -> None:
        """Removes all stopped plannings."""
        self._stopped.clear()

    def _written(self, key: Hashable, make: Callable[[Options], Plan]) -> pathlib.Path:
        """Path of the file in `dump_dir` with the completed plan."""
        assert self._options.dump_dir is not None
        path = make_folder(self._options.dump_dir, "dump_dir") / FILE
        if self._options.progress is not False:
            text = f"stopped; the best plan so far goes to {path} (ctrl-C again: no file)"
            print(f"partir_search: {text}", file=sys.stderr, flush=True)
        self.completed(key, make).save(path)
        return path
