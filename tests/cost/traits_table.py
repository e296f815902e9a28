"""Writes docs/evidence/traits.md: `python -m tests.cost.traits_table`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from partir_search.simulator.target.known_traits import TRAITS, UNKNOWN
from partir_search.simulator.target.trait_values import value_text
from partir_search.simulator.target.traits import XlaTraits

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "evidence" / "traits.md"

HEAD = """# Traits of XLA, per target

Made by `python -m tests.cost.traits_table`; a test holds it up to date.

A program does not say everything that a compiler does with it. Each row is a field of `XlaTraits`,
which `Machine.traits` holds. The simulator and the lowering read these fields and compare no names
of platforms. `other` is a target about which nothing is known: the default of a `Machine` of your
own. `machine.with_traits(defers_weight_gradients=True)` changes some. `plan.breakdown()` names the
traits that the price of each kernel and each collective depends on.
"""


def page() -> str:
    """The text of docs/evidence/traits.md."""
    alike: dict[str, list[str]] = {}
    for name, traits in TRAITS.items():
        alike.setdefault(repr(traits), []).append(name)
    targets = {", ".join(names): TRAITS[names[0]] for names in alike.values()}
    targets |= {"other": UNKNOWN}
    fields = dataclasses.fields(XlaTraits)
    out = [HEAD, "## Values", ""]
    out.append("| trait | " + " | ".join(targets) + " |")
    out.append("|---" * (len(targets) + 1) + "|")
    for f in fields:
        values = (value_text(getattr(traits, f.name)) for traits in targets.values())
        out.append(f"| [`{f.name}`](#{f.name}) | " + " | ".join(values) + " |")
    out += ["", "## Meaning and evidence"]
    for f in fields:
        meta: Any = f.metadata
        out += ["", f"### {f.name}", "", f"{meta['meaning']} Unit: {meta['unit']}.", ""]
        out += [f"Evidence: {meta['evidence']}"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
