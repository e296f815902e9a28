"""Imports go down through the rooms, nothing private of jax is used, files stay small."""

from __future__ import annotations

import ast
import graphlib
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "partir_search"

# Lowest first. A file may import from its own room and from those before it, for annotations too.
ROOMS = (
    *("messages", "mcts", "exact", "profile", "ir", "frontends", "arguments", "rules", "passes"),
    *("propagation", "constraints", "lowering", "simulator", "machine", "theory", "aot"),
    "segments",
    *("strategies", "plan", "planning", "shapes", "calling", "api", "known", "commands", "cli"),
    *("profiling", "__init__"),
)
FILES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}


def room(module: str) -> str:
    return module.split(".")[1]


def imports(path: pathlib.Path) -> set[str]:
    """Modules that a file imports from, and the names that it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            found |= {str(node.module), *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_imports_go_down() -> None:
    """From the file's own room or a lower one; the engine from no other and not from jax."""
    assert {room(name) for name in FILES} == set(ROOMS)
    assert {p.stem for p in PACKAGE.glob("*.py")} == {"__init__", "api", "cli", "known", "machine"}
    for name, path in FILES.items():
        used = imports(path)
        rooms = {room(u) for u in used if u.startswith("partir_search.")}
        assert rooms <= set(ROOMS[: ROOMS.index(room(name)) + 1]), name
        if room(name) in ("mcts", "exact"):
            assert rooms <= {room(name)}, name
            assert "jax" not in {u.split(".")[0] for u in used}, name


def test_no_file_circles() -> None:
    graph = {name: (imports(path) & FILES.keys()) - {name} for name, path in FILES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_nothing_private_of_jax() -> None:
    for path in [
        p for d in (PACKAGE, ROOT / "experiments", ROOT / "models") for p in d.rglob("*.py")
    ]:
        assert not any(name.startswith("jax._src") for name in imports(path)), path


def test_files_are_small() -> None:
    lines = {name: len(p.read_text().splitlines()) for name, p in FILES.items()}
    assert max(lines.values()) <= 400, max(lines, key=lambda name: lines[name])
    assert sorted(lines.values())[len(lines) // 2] <= 200
