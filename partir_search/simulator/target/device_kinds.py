"""Names of machines by jax's device kinds: ``TPU v5 lite``, ``NVIDIA A100-SXM4-40GB``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Patterns of jax's device kinds and names of machines; the first match counts.
_KINDS = (
    ("v5 lite", "tpu_v5e"),
    ("v5litepod", "tpu_v5e"),
    ("v5e", "tpu_v5e"),
    ("v6 lite", "tpu_v6e"),
    ("v6e", "tpu_v6e"),
    (r"(tpu ?)?v?7x", "tpu_v7x"),
    ("v5p", "tpu_v5p"),
    ("tpu v5", "tpu_v5p"),
    ("tpu v4", "tpu_v4"),
    ("tpu v3", "tpu_v3"),
    ("gb200", "gb200"),
    ("b200", "b200"),
    ("l40s", "l40s"),
    (r"l4\b", "l4"),
    ("mi300x", "mi300x"),
    ("h200", "h200"),
    ("h100", "h100"),
    ("a100", "a100"),
    ("v100", "v100"),
    ("cpu", "cpu"),
)
_MEMORY = re.compile(r"(?<!\d)(\d+) ?gb\b")


def machine_name(device_kind: str) -> str:
    """Name of the known machine of a device kind, or "".

    A name must begin a word of the kind: a GH200 is not an H200.
    """
    kind = device_kind.lower()
    found = (n for pattern, n in _KINDS if re.search(rf"(?<![a-z0-9]){pattern}", kind))
    return next(found, "")


def platform_of(device_kind: str) -> str:
    """Platform of a device kind or machine, by jax's name; "" if unknown."""
    kind = device_kind.lower()
    name = machine_name(kind)
    if kind.startswith("tpu") or name == "cpu":
        return kind[:3]
    return "rocm" if re.match("amd|mi", kind) else name and "cuda"


def memory_of(device_kind: str) -> int:
    """Gigabytes of memory named in a device kind, the least of several; 0 if none."""
    return min(map(int, _MEMORY.findall(device_kind.lower())), default=0)


def nearest_names(device_kind: str, machines: Iterable[str]) -> list[str]:
    """Names of three known machines of the same maker, most similar to a device kind first."""
    kind = device_kind.lower()
    alike = [n for n in machines if n.startswith("tpu") == ("tpu" in kind) and n != "cpu"]
    words = re.findall(r"[a-z0-9]+", re.sub(r"tpu|nvidia|tesla", " ", kind))

    def likeness(name: str) -> float:
        short = name.removeprefix("tpu_")
        return max((difflib.SequenceMatcher(None, w, short).ratio() for w in words), default=0.0)

    ranked = sorted(alike, key=lambda name: (likeness(name), alike.index(name)))
    return ranked[-1:-4:-1]
