"""Reads and writes files; errors name the path and the remedy."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from partir_search.messages.validators import path as as_path


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Writes a file, and makes the folders above it where they are missing.

    Raises:
      OSError: it cannot be written; names the path.
    """
    file = pathlib.Path(as_path("path", path))
    make_folder(file.parent, "path")
    try:
        file.write_text(content)
    except OSError as error:
        what = "it is a folder; give the path of a file" if file.is_dir() else f"{error.strerror}"
        raise type(error)(f"cannot write {file}: {what}") from error


def make_folder(path: str | os.PathLike[str], name: str = "folder") -> pathlib.Path:
    """A folder that exists from now on.

    Args:
      name: of the argument that asks for it, for messages.

    Raises:
      OSError: it cannot be made, or there is a file of that name; names the path.
    """
    folder = pathlib.Path(as_path(name, path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of that name" if folder.is_file() else error.strerror
        raise type(error)(
            f"{name}: cannot make the folder {folder}: {why}; choose another one"
        ) from error
    return folder


def read_text(path: Any, what: str) -> str:
    """The text of a file.

    Args:
      what: stands in it, for messages: "plan".

    Raises:
      OSError: there is no such file, or it cannot be read; names the path.
      ValueError: it holds no text.
    """
    file = pathlib.Path(as_path("path", path))
    try:
        return file.read_text()
    except FileNotFoundError as error:
        found = sorted(p.name for p in file.parent.glob(f"*{file.suffix}")) if file.suffix else []
        there = f"; {file.parent} has {', '.join(found[:5])}" if found else ""
        raise type(error)(f"there is no {what} at {file}{there}") from error
    except OSError as error:
        why = "it is a folder; give the path of a file" if file.is_dir() else error.strerror
        raise type(error)(f"cannot read the {what} at {file}: {why}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} holds no {what}: it is not a text file") from error
