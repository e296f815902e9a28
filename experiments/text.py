"""Byte-level text for language models: real files, no downloads."""

from __future__ import annotations

import glob
import pathlib
import sysconfig
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MAX_BYTES = 8_000_000


def read_bytes(pattern: str | None = None) -> npt.NDArray[np.uint8]:
    """Bytes of the files that `pattern` matches; by default the standard library's sources."""
    if pattern:
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise ValueError(f"--text={pattern!r} matches no file")
    else:
        stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])
        paths = sorted(map(str, stdlib.glob("*.py")))
    parts, total = [], 0
    for path in paths:
        data = pathlib.Path(path).read_bytes()
        parts.append(data)
        total += len(data)
        if total > MAX_BYTES:
            break
    return np.frombuffer(b"\n".join(parts), dtype=np.uint8)


def batches(
    data: npt.NDArray[np.uint8], batch: int, seq: int, vocab: int, seed: int
) -> Iterator[npt.NDArray[np.int32]]:
    """Random windows [batch, seq + 1] of the text, for ever; equal for equal seeds."""
    if len(data) <= seq + 1:
        raise ValueError(f"the text has {len(data)} bytes, fewer than seq + 1 = {seq + 1}")
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(data) - seq - 1, size=batch)
        windows = np.stack([data[s : s + seq + 1] for s in starts])
        yield (windows.astype(np.int32)) % vocab
