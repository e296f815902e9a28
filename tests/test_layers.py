"""Imports go down through the rooms, nothing private of jax is used, files stay small."""

from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "partir_search"

# Lowest first. A file may import from its own room and from those before it, for annotations too.
ROOMS = (
    "messages",
    "mcts",
    "ir",
    "frontends",
    "arguments",
    "rules",
    "passes",
    "propagation",
    "constraints",
    "lowering",
    "simulator",
    "machine",
    "aot",
    "strategies",
    "plan",
    "planning",
    "shapes",
    "calling",
    "api",
    "known",
    "cli",
    "__init__",
)

# They measure the engine, not the package, or fit it.
INSIDERS = (
    *("calibrate.py", "judge.py"),
    *("search_ablation.py", "search_quality.py", "small_programs.py"),
)


def part_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: pathlib.Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names]
    return found


def files() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_go_down() -> None:
    wrong = []
    for path in files():
        for name in imports(path):
            if name.split(".")[0] == "partir_search":
                other = name.split(".")[1]
                if other not in ROOMS or ROOMS.index(other) > ROOMS.index(part_of(path)):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_rooms_are_all() -> None:
    assert {part_of(path) for path in files()} == set(ROOMS)
    loose = {path.stem for path in files() if path.parent == PACKAGE}
    assert loose == {"__init__", "api", "cli", "known", "machine"}


def test_engine_knows_no_compiler() -> None:
    for path in (PACKAGE / "mcts").rglob("*.py"):
        used = [u.split(".") for u in imports(path)]
        assert not [u for u in used if u[0] == "jax"], path
        assert not [u for u in used if u[0] == "partir_search" and u[1] != "mcts"], path


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_circles(room: str) -> None:
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in files()}
    here = {n: p for n, p in names.items() if part_of(p) == room}
    graph = {
        name: {
            module
            for used in imports(path)
            for module in (used, used.rpartition(".")[0])
            if module in here and module != name
        }
        for name, path in here.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_algorithms_name_no_op() -> None:
    """Primitive names stand in rules and in the jaxpr reader only."""
    from partir_search.rules import RULES

    common = {"dot_general", "scatter-add", "reduce_sum", "gather", "scan", "random_bits"}
    assert common <= set(RULES)
    for folder in ("lowering", "mcts", "propagation", "simulator"):
        for path in (PACKAGE / folder).rglob("*.py"):
            strings = {
                n.value
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            }
            assert not strings & common, path


def test_nothing_private_of_jax() -> None:
    for path in [*files(), *(ROOT / "experiments").rglob("*.py"), *(ROOT / "models").rglob("*.py")]:
        assert not any(name.startswith("jax._src") for name in imports(path)), path


def test_models_and_experiments_stand_outside() -> None:
    for path in (ROOT / "models").rglob("*.py"):
        assert not any(n.startswith("partir_search") for n in imports(path)), path
    for path in (ROOT / "experiments").rglob("*.py"):
        for name in imports(path) if path.name not in INSIDERS else ():
            assert not name.startswith("partir_search.") or name.count(".") == 1, (path, name)


def test_files_are_small() -> None:
    lines = {p: len(p.read_text().splitlines()) for p in files()}
    assert max(lines.values()) <= 400, max(lines, key=lambda p: lines[p])
    sizes = sorted(lines.values())
    assert sizes[len(sizes) // 2] <= 200
