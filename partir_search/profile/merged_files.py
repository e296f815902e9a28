"""Files that several processes add to."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from partir_search.messages.files import make_folder

try:
    import fcntl
except ImportError:  # not on this platform: a write of two processes at once keeps the later one
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(file: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a file, a file beside it, for reading, merging and writing."""
    make_folder(file.parent, "path")
    if fcntl is None:
        yield
        return
    with pathlib.Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_text(file: pathlib.Path, text: str) -> None:
    """Writes a file in one step: a reader sees the old content or the new.

    Raises:
      OSError: the file cannot be written; the message names the path.
    """
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
        new.write(text)
    try:
        os.replace(new.name, file)
    except OSError as error:
        os.unlink(new.name)
        raise type(error)(f"cannot write {file}: {error.strerror}") from error
