"""Pictures of an argument's tiles and the devices that hold each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout

SIDE, MAX_TILES = 60.0, 16  # pixels of the longer side; tiles drawn per dim
HUES = 330


def shards_picture(shape: Sequence[int], layout: Layout, mesh: MeshShape) -> str:
    """SVG of an argument as a rectangle of its two most tiled dims.

    Colors number the tiles; a tile's title lists its devices (positions in the mesh, row-major).
    """
    sizes = [mesh.size(axes) for axes in layout]
    ranked = sorted(range(len(shape)), key=lambda d: (-sizes[d], -shape[d]))[:2]
    down, across = sorted(ranked) if len(ranked) > 1 else (-1, ranked[0])
    rows = sizes[down] if down >= 0 else 1
    cols = sizes[across]
    width, height = _extent(shape[across], shape[down] if down >= 0 else 1)
    shown_rows, shown_cols = min(rows, MAX_TILES), min(cols, MAX_TILES)
    holders = _holders(layout, mesh, down, across)
    out = []
    for r, c in itertools.product(range(shown_rows), range(shown_cols)):
        devices = holders.get((r, c), [])
        hue = (r * cols + c) * HUES / max(rows * cols, 1)
        names = ", ".join(map(str, devices[:16])) + (" ..." if len(devices) > 16 else "")
        title = f"tile {r}, {c}: devices {names}"
        x, y = c * width / shown_cols, r * height / shown_rows
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width / shown_cols:.1f}"'
            f' height="{height / shown_rows:.1f}" fill="hsl({hue:.0f} 60% 72%)">'
            f"<title>{escape(title)}</title></rect>"
        )
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    label = f"{rows * cols} tiles"
    return f'<svg class="shards" {size} role="img" aria-label="{label}">{"".join(out)}</svg>'


def _extent(across: int, down: int) -> tuple[float, float]:
    """Width and height in pixels: proportional to the dims, but at least two fifths of SIDE."""
    longest = max(across, down, 1)
    return max(SIDE * across / longest, SIDE / 2.5), max(SIDE * down / longest, SIDE / 2.5)


def _holders(
    layout: Layout, mesh: MeshShape, down: int, across: int
) -> dict[tuple[int, int], list[int]]:
    """Devices by (row, column) of the tile they hold in the dims `down` and `across`."""
    found: dict[tuple[int, int], list[int]] = {}
    for device, place in enumerate(itertools.product(*map(range, mesh.device_sizes))):

        def tile(dim: int, place: tuple[int, ...] = place) -> int:
            index = 0
            for axis in layout[dim] if dim >= 0 else ():
                index = index * mesh.sizes[axis] + mesh.coordinate(axis, place)
            return index

        found.setdefault((tile(down), tile(across)), []).append(device)
    return found
