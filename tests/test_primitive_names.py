"""Primitives are named in rules and in the jaxpr reader; algorithms ask rules for roles."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

from partir_search.rules import RULES

PACKAGE = pathlib.Path(__file__).parent.parent / "partir_search"

# `ir/reading/` are the parts of the reader, of which `ir/from_jaxpr.py` is the front.
AT_HOME = ("rules/", "ir/reading/", "ir/from_jaxpr.py")

# Names of primitives that are other words too, and the places where they are these.
WORDS = {
    "and": ("",),  # monoids of reducers
    "max": ("",),
    "min": ("",),
    "or": ("",),
    "check": ("plan/plan.py",),  # name of a method
    "complex": ("ir/core.py",),  # stem of a dtype
    "gather": ("ir/kind.py", "aot/judge.py"),  # categories of ops, opcodes of compiled programs
    "scatter": ("ir/kind.py", "aot/judge.py"),
    "name": ("aot/", "ir/core.py", "ir/printing/", "plan/report/data.py", "plan/profiles/"),
    "pad": ("plan/pass_record.py", "planning/"),  # name of a pass and of an option
    "slice": ("ir/printing/", "lowering/"),  # word of the printed IR, local step of a reshard
    "stack": ("plan/pass_record.py", "planning/"),  # name of a pass and of an option
    "add": ("aot/loops.py",),  # opcodes of compiled programs
    "copy": ("aot/loops.py", "aot/judge.py"),
    "reshape": ("aot/loops.py",),
    "reduce": ("aot/judge.py",),
    "sort": ("aot/judge.py",),
    "transpose": ("aot/judge.py",),
    "while": ("aot/loops.py", "aot/judge.py", "plan/profiles/"),
    "cond": ("plan/profiles/",),  # words of the name stacks in compiled programs
    "shard_map": ("plan/profiles/",),
    "tile": ("ir/halos.py", "ir/printing/", "propagation/"),  # of loops and actions
}


def documentation(tree: ast.AST) -> set[int]:
    """Ids of the constants that are docstrings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def is_prim(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("prim", "primitive")


def is_fixed(node: ast.expr) -> bool:
    """True for a literal, and for a constant of a module."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List | ast.Starred | ast.Constant):
        return True
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(node, ast.Name | ast.Attribute) and name.isupper()


def named(source: str) -> Iterator[str]:
    """Primitives that a file names: as strings, as jax's objects, in comparisons and look-ups."""
    tree = ast.parse(source)
    docs = documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docs and node.value in RULES:
            yield node.value
        elif isinstance(node, ast.Attribute) and node.attr.endswith("_p"):
            yield f"lax.{node.attr}"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_prim, sides)) and any(map(is_fixed, sides)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Subscript) and is_prim(node.slice) and is_fixed(node.value):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and any(map(is_prim, node.args)):
            function = node.func
            if isinstance(function, ast.Attribute) and is_fixed(function.value):
                yield ast.unparse(node)


def test_algorithms_name_no_primitive() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        at = path.relative_to(PACKAGE).as_posix()
        if not at.startswith(AT_HOME):
            wrong += [
                f"{at}: {name}"
                for name in named(path.read_text())
                if name not in WORDS or not at.startswith(WORDS[name])
            ]
    assert not wrong


def test_names_are_seen() -> None:
    assert len(RULES) > 150
    for source, seen in (
        ("x = op.prim == 'slice'", {"slice", "op.prim == 'slice'"}),
        ("x = {'dot_general': 1}", {"dot_general"}),
        ("'dot_general'", set()),
        ("x = lax.add_p", {"lax.add_p"}),
        ("x = op.prim in WORDS or op.prim in seen", {"op.prim in WORDS"}),
        ("x = TABLE[op.prim], TABLE.get(op.prim)", {"TABLE[op.prim]", "TABLE.get(op.prim)"}),
        ("x = one.prim == other.prim", set()),
    ):
        assert set(named(source)) == seen
