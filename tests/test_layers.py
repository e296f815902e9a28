"""Imports go downward through the layers, nothing private of jax is used, files stay small."""

from __future__ import annotations

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "partir_search"

# Lowest first. A file may import from its own floor's folder and from lower floors.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("wording", "validation", "files", "device_kinds", "tables", "version"),
    ("ir", "machine", "paths", "targets", "frontends", "plainly"),
    ("propagation",),
    ("lowering",),
    ("cost", "experts", "mcts"),
    (
        *(
            "tactics",
            "planned",
            "planner",
            "plan",
            "report",
            "verification",
            "search_record",
            "pressure",
            "saved",
            "unfold",
            "playing",
            "parallelism",
        ),
        *("constraints", "placement", "signature", "user_rules", "microbatch", "planning"),
        *("communication", "comparison", "questions", "options", "page"),
        *("agreement", "checking", "following", "groups", "layouts", "leaving", "plan_cache"),
        *("arguments", "calling", "executables"),
        *("argument_checks", "batch_checks", "option_checks", "schedule_checks"),
        *("interruption", "notices", "pickling", "shapes", "watched"),
    ),
    ("api",),
    ("known",),
    ("cli",),
    ("__init__",),
)
SIDEWAYS = {  # within the fifth and sixth floor, who may import whom
    "validation": {"wording"},
    "files": {"validation"},
    "cost": set(),
    "experts": set(),
    "mcts": {"cost", "experts"},
    "playing": set(),
    "parallelism": {"experts", "playing"},
    "tactics": {"parallelism", "playing"},
    "planned": {"playing"},
    "planner": {
        *("constraints", "interruption", "parallelism", "planned", "playing", "schedule_checks"),
        *("tactics", "unfold"),
    },
    "notices": {"planner"},
    "watched": {"planned", "planner"},
    "schedule_checks": {"parallelism", "tactics"},
    "option_checks": {"groups", "plan", "saved", "schedule_checks", "tactics"},
    "batch_checks": {"options", "plan", "saved", "tactics"},
    "argument_checks": set(),
    "interruption": set(),
    "pickling": set(),
    "unfold": {"playing"},
    "saved": set(),
    "communication": set(),
    "comparison": set(),
    "questions": {"constraints", "planned"},
    "plan": {
        *("checking", "communication", "comparison", "layouts", "leaving", "page", "pickling"),
        "planned",
        *("pressure", "questions", "report", "saved", "search_record", "verification"),
    },
    "pressure": {"planned", "planner"},
    "search_record": {"planned"},
    "verification": set(),
    "report": set(),
    "constraints": {"playing", "tactics"},
    "placement": {"signature"},
    "signature": {"argument_checks"},
    "user_rules": set(),
    "microbatch": {"signature"},
    "agreement": {"plan", "saved"},
    "checking": {"comparison"},
    "following": {"constraints", "plan"},
    "leaving": set(),
    "page": {"cost", "report"},
    "layouts": {"placement", "planned"},
    "plan_cache": {"plan", "saved"},
    "groups": {"tactics"},
    "options": {
        *("arguments", "groups", "option_checks", "plan", "plan_cache", "planner", "saved"),
        "tactics",
    },
    "planning": {
        *(
            "agreement",
            "batch_checks",
            "constraints",
            "following",
            "groups",
            "microbatch",
            "options",
            "parallelism",
            "plan",
        ),
        *("notices", "planned", "planner", "pressure", "report", "saved", "signature", "tactics"),
        "watched",
    },
    "shapes": {
        *("constraints", "options", "plan", "planned", "planner", "planning", "playing", "report"),
        *("saved", "schedule_checks", "signature", "tactics"),
    },
    "arguments": {"signature"},
    "executables": {
        *(
            "agreement",
            "arguments",
            "options",
            "placement",
            "plan",
            "planned",
            "planning",
            "pressure",
        ),
        *("shapes", "signature"),
    },
    "calling": {"arguments", "executables", "options", "placement", "plan", "signature"},
    "frontends": {"paths"},
    "plainly": set(),
    "machine": set(),
    "paths": set(),
    "targets": {"machine", "ir"},
    "ir": set(),
}

# They measure the engine, not the package, or fit it.
INSIDERS = (
    *("calibrate.py", "judge.py"),
    *("search_ablation.py", "search_quality.py", "small_programs.py"),
)


def part_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(part: str) -> int:
    return next(i for i, parts in enumerate(FLOORS) if part in parts)


def imports(path: pathlib.Path, *, types: bool = True) -> list[str]:
    """What a file imports; without `types`, not what it imports for annotations alone."""
    found, left = [], [ast.parse(path.read_text())]
    while left:
        node: ast.AST = left.pop()
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        left += ast.iter_child_nodes(node)  # type: ignore[arg-type]
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
        part, at_run_time = part_of(path), imports(path, types=False)
        for name in imports(path):
            if not name.startswith("partir_search."):
                continue
            other = name.split(".")[1]
            up = floor_of(other) > floor_of(part)
            beside = floor_of(other) == floor_of(part) and other != part
            beside &= name in at_run_time
            if up or (beside and other not in SIDEWAYS.get(part, set())):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_engine_knows_no_compiler() -> None:
    for name in ("game", "tree", "search", "anneal", "exact", "goals"):
        used = imports(PACKAGE / "mcts" / f"{name}.py")
        own = [u for u in used if u.startswith("partir_search")]
        assert all(u.startswith("partir_search.mcts") for u in own), (name, own)
        assert not any(u.split(".")[0] == "jax" for u in used), name


def test_algorithms_name_no_op() -> None:
    """Primitive names stand in rules and in the jaxpr reader only."""
    from partir_search.rules import RULES

    common = {"dot_general", "scatter-add", "reduce_sum", "gather", "scan", "random_bits"}
    assert common <= set(RULES)
    for folder in ("cost", "lowering", "mcts"):
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
