"""Names of values and source lines of ops, from jax's source info."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import sysconfig
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import source_info_util

_WRAPPER = re.compile(r"\w+\(([^()]*)\)")
_LIBRARIES = (
    sysconfig.get_paths()["stdlib"],
    str(pathlib.Path(__file__).parent.parent),
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
)


@functools.lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    """True for a file of the standard library, this package or an installed package."""
    return file.startswith("<") or any(part in file for part in _LIBRARIES)


def source_line(info: Any) -> str:
    """``file:line (function)`` of the innermost frame in the user's code, or "".

    Frames of the standard library, this package and installed packages are skipped: jax's own
    summary names a line of flax or optax for most models.
    """
    frame = user_frame(info)
    if frame is None:
        return str(source_info_util.summarize(info))
    return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"


def user_frame(info: Any) -> Any:
    """Innermost frame in the user's code; None for an equation of a library's jitted function.

    jax traces jitted functions (`jnp.var`, `jax.nn.relu`) once, without the frames of the calls.
    """
    frames = info.traceback.frames if info.traceback else ()
    return next((frame for frame in frames if not _is_library(frame.file_name)), None)


@contextlib.contextmanager
def located(origin: Any, scope: str) -> Iterator[None]:
    """Context in which new jax equations have the source lines and the scope of an op.

    Args:
      origin: jax's source info of the op; None keeps the lines of the calling code.
      scope: the op's name stack, appended to the current one.
    """
    lines = source_info_util.user_context(origin.traceback) if origin else contextlib.nullcontext()
    with lines, jax.named_scope(scope) if scope else contextlib.nullcontext():
        yield


@functools.lru_cache(maxsize=4096)
def clean(scope: str) -> str:
    """Name stack with characters valid for `jax.named_scope`."""
    return re.sub(r"[^\w()./-]", "_", scope)


@functools.lru_cache(maxsize=16384)
def scope_path(scope: str) -> tuple[str, ...]:
    """Modules and named scopes of a name stack, outermost first, without transformations."""
    plain = scope
    while _WRAPPER.search(plain):
        plain = _WRAPPER.sub(r"\1", plain)
    return tuple(p for p in plain.split("/") if p and re.fullmatch(r"[\w.]+", p))


def is_backward(scope: str) -> bool:
    """True for the name stack of an equation made by reverse-mode differentiation."""
    return "transpose(" in scope


@functools.lru_cache(maxsize=16384)
def value_stem(scope: str, prim: str) -> str:
    """Readable name of a value: the user's scopes and the primitive; `d_` in the backward pass."""
    stem = ".".join([*scope_path(scope)[-3:], prim]).replace("-", "_")
    return f"d_{stem}" if is_backward(scope) else stem
