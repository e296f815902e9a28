"""Writes docs/primitives.md: `python -m tests.propagation.primitives_table`."""

from __future__ import annotations

import collections
import pathlib

from partir_search.ir.from_jaxpr import INLINED, REGIONS, TAKEN_APART
from partir_search.ir.reading.foreign_primitives import CHOSEN, IDENTITIES, REDUCED
from partir_search.ir.reading.refs.discharge import READ
from partir_search.rules import RULES
from partir_search.rules.unruled import UNRULED
from tests.propagation.cases import CASES

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "primitives.md"
GOLDENS = ROOT / "tests" / "golden"

HEAD = """# Primitives

Made by `python -m tests.propagation.primitives_table`; a test holds it up to date.

A rule names the dims of operands and results by letters, as an einsum does. `sum={c}`: looping over
c leaves partial sums. `blocked={c}`: c stays whole. `linear=[[0]]`: partial sums of operand 0 may
stay unfinished through the op; `max-linear=[[0]]`: partial maxima may. `reads={0.1: 3 from 2*d-1}`:
point d reads three elements of operand 0 along dim 1, from 2d - 1 on; where tiles overlap,
neighbours exchange halos (`apart`: only the result's tiling makes a loop). `a*b`: two factors share
a dim. `.`: needed whole, or not tiled.
The examples are tests of `tests/propagation/test_rules.py`: each is printed, run by the evaluator
and run on devices in every loop that its rule allows.
"""

FOREIGN = """Any other primitive is read through its definition: the Python function that jax
lowers, or `impl`. So are jax's sparse arrays and the primitives of equinox, diffrax, lineax and
optimistix. It stays one op, replicated and named in a warning, if its lowering calls Python on the
host, if it has effects, or if the definition does not trace."""


def page() -> str:
    """The text of docs/primitives.md."""
    examples: dict[str, list[str]] = collections.defaultdict(list)
    for case, (prim, _, _) in sorted(CASES.items()):
        golden = GOLDENS / f"test_rules.test_rule_line_{case}.txt"
        rule = golden.read_text().splitlines()[0].split(": ", 1)[1]
        examples[RULES[prim].make.__name__].append(f"`{case}`: `{rule}`")
    families: dict[str, dict[str, list[str]]] = {}
    roles: dict[str, list[str]] = {}
    for prim, entry in sorted(RULES.items()):
        rule = entry.make
        if entry.role is not None:
            roles.setdefault(entry.role.value, []).append(prim)
        room, family = rule.__module__.rsplit(".", 1)
        if room == "partir_search.rules" and family != "user":
            families.setdefault(family, {}).setdefault(rule.__name__, []).append(prim)
    out = [HEAD]
    for family, rules in sorted(families.items()):
        out += [f"## {family.replace('_', ' ').capitalize()}", ""]
        out += ["| primitives | rule | examples |", "|---|---|---|"]
        for name, prims in sorted(rules.items()):
            function = RULES[prims[0]].make
            first = (function.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
            first = " ".join(first.split()).replace("|", "\\|")
            cells = " ".join(f"`{p}`" for p in prims), first, "<br>".join(examples[name])
            out.append("| " + " | ".join(cells) + " |")
        out.append("")
    out += ["## Roles", "", "Meanings that recognisers of patterns ask for.", ""]
    out += ["| role | primitives |", "|---|---|"]
    out += [f"| {role} | {_list(prims)} |" for role, prims in sorted(roles.items())]
    out += ["", "## Read through", ""]
    out += ["Calls whose body takes their place: " + _list(INLINED) + ".", ""]
    out += ["Read as slices: " + _list(TAKEN_APART) + ".", ""]
    out += ["Mutable refs, read as the values that they hold: " + _list(READ) + ".", ""]
    out += ["Ops with regions, into which tilings flow: " + _list(REGIONS) + ".", ""]
    out += ["Identities, which pass their operands (or one of them) on: "]
    out[-1] += _list({*IDENTITIES, *CHOSEN}) + "."
    out += ["", "Reductions over dims by position, as `vmap` leaves them: " + _list(REDUCED) + "."]
    out += ["", FOREIGN, ""]
    out += ["## Without a rule", "", "| primitives | why |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for prim, why in UNRULED.items():
        reasons.setdefault(why, []).append(prim)
    out += [f"| {_list(prims)} | {why} |" for why, prims in reasons.items()]
    return "\n".join(out) + "\n"


def _list(names: object) -> str:
    return ", ".join(f"`{n}`" for n in sorted(names))  # type: ignore[call-overload]


if __name__ == "__main__":
    PAGE.write_text(page())
