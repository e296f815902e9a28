"""Head and end of a module's text: arguments, grouped by similar paths, and results."""

from __future__ import annotations

import re
from collections.abc import Sequence

from partir_search.ir.core import Value
from partir_search.ir.partition import Partition
from partir_search.ir.printing.names import BlockNames
from partir_search.ir.printing.text import layout_text, listed, literal_text, order_text, type_text

LIST = 12  # items shown of a list; the rest is counted
_NUMBER = re.compile(r"\d+")


def arguments(partition: Partition, *, whole: bool) -> list[str]:
    """`func name(arguments) mesh<...> {`; arguments as "..." if not `whole`."""
    module, enters = partition.module, dict(partition.modes.argument_layouts)
    groups: dict[tuple[str, str], list[str]] = {}
    for i, v in enumerate(module.body.args) if whole else ():
        text = layout_text(partition, v, enters[i]) if i in enters else type_text(partition, v)
        text += order_text(module, i)
        module_path, dot, leaf = v.name.rpartition(".")
        groups.setdefault((_NUMBER.sub("#", module_path) + dot + leaf, text), []).append(v.name)
    args = [
        f"%{_common(names)}: {text}" + (f" x {len(names)}" if len(names) > 1 else "")
        for (_, text), names in groups.items()
    ]
    begin, end = f"func {module.name}(", f") {partition.mesh.text} {{"
    return listed(begin, args if whole else ["..."], end)


def _common(names: Sequence[str]) -> str:
    """The name with "#" for numbers that differ between `names`."""
    numbers = [_NUMBER.findall(name) for name in names]
    same = iter([len(set(each)) == 1 for each in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda found: found[0] if next(same) else "#", names[0])


def shown_results(partition: Partition) -> list[int]:
    """Positions of the results shown: all if at most `LIST`, or the first ones without ties."""
    module = partition.module
    places = range(len(module.body.results))
    if len(places) <= LIST:
        return list(places)
    tied = {result for _, result in module.ties}
    return [i for i in places if i not in tied][:LIST]


def returned(partition: Partition, names: BlockNames) -> list[str]:
    """Lines of the return statement, with layouts of results that differ from those at rest.

    For example `return %loss, ... 198 more`.
    """
    results, leaves = partition.module.body.results, dict(partition.modes.result_layouts)
    shown = shown_results(partition)
    texts = []
    for i in shown:
        x = results[i]
        text = f"%{names.of(x)}" if isinstance(x, Value) else literal_text(x)
        texts.append(text + (f": {layout_text(partition, x, leaves[i])}" if i in leaves else ""))
    more = len(results) - len(shown)
    return listed("return ", [*texts, *([f"... {more} more"] if more else [])], "")
