"""Files with the program after each pass."""

from __future__ import annotations

import pathlib

from partir_search.messages.files import make_folder, write_text
from partir_search.plan.plan import Plan


def dump(plan: Plan, folder: pathlib.Path) -> None:
    """Writes the program after each recorded pass to files, with a table of all passes.

    The files are `00_trace.ir` ... `23_emit.ir` and `passes.txt`.

    Raises:
      OSError: a file cannot be written.
    """
    make_folder(folder, "dump_dir")
    passes = plan.passes
    for record in passes:
        write_text(folder / record.file_name, record.text() + "\n")
    write_text(folder / "passes.txt", f"{passes}\n")
