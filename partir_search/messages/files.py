"""File access with errors that name the path and the remedy."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from partir_search.messages.validators import path as as_path


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Writes a text file, creating missing folders.

    Raises:
      OSError: the file cannot be written; the message names the path.
    """
    write_bytes(path, content.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file, creating missing folders.

    Raises:
      OSError: the file cannot be written; the message names the path.
    """
    file = pathlib.Path(as_path("path", path))
    make_folder(file.parent, "path")
    try:
        file.write_bytes(content)
    except OSError as error:
        what = "it is a folder; give the path of a file" if file.is_dir() else f"{error.strerror}"
        raise type(error)(f"cannot write {file}: {what}") from error


def make_folder(path: str | os.PathLike[str], name: str = "folder") -> pathlib.Path:
    """Creates a folder if missing, and returns its path.

    Args:
      path: the folder.
      name: name of the user's argument, for messages.

    Raises:
      OSError: the folder cannot be created, or the path is a file; the message names the path.
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
    """Text of a file.

    Args:
      path: the file.
      what: kind of content, for messages: "plan".

    Raises:
      OSError: the file does not exist or cannot be read; the message names the path.
      ValueError: the file holds no text.
    """
    file = pathlib.Path(as_path("path", path))
    try:
        return file.read_text()
    except FileNotFoundError as error:
        found = sorted(p.name for p in file.parent.glob(f"*{file.suffix}")) if file.suffix else []
        nearby = f"; {file.parent} has {', '.join(found[:5])}" if found else ""
        raise type(error)(f"there is no {what} at {file}{nearby}") from error
    except OSError as error:
        why = "it is a folder; give the path of a file" if file.is_dir() else error.strerror
        raise type(error)(f"cannot read the {what} at {file}: {why}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} holds no {what}: it is not a text file") from error
