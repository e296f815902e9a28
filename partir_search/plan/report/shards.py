"""Pictures of an argument's tiles and the devices that hold each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.plan.planned_array import tile_index

SIDE, MAX_TILES = 60.0, 64  # pixels of the longer side; tiles drawn per dim
MAX_LISTED = 8  # devices named on a tile
HUES = 330


class ShardsPictures:
    """Pictures of arguments' tiles; equal tilings share their drawing."""

    def __init__(self, mesh: MeshShape) -> None:
        self._mesh = mesh
        self._drawn: dict[tuple[object, ...], int] = {}

    def picture(self, shape: Sequence[int], layout: Layout) -> str:
        """SVG of an argument as a rectangle of its two most tiled dims.

        Colors number the tiles; a tile's title lists its devices (positions in the mesh,
        row-major). Beyond 64 tiles on a dim, the first 64 are drawn, as a caption says.
        """
        sizes = [self._mesh.size(axes) for axes in layout]
        ranked = sorted(range(len(shape)), key=lambda d: (-sizes[d], -shape[d]))[:2]
        down, across = sorted(ranked) if len(ranked) > 1 else (-1, ranked[0])
        rows, cols = sizes[down] if down >= 0 else 1, sizes[across]
        shown_rows, shown_cols = min(rows, MAX_TILES), min(cols, MAX_TILES)
        width, height = _extent(shape[across], shape[down] if down >= 0 else 1)
        key = (layout[down] if down >= 0 else (), layout[across])
        if key in self._drawn:
            body = f'<use href="#tiles{self._drawn[key]}"/>'
        else:
            self._drawn[key] = len(self._drawn)
            tiles = "".join(self._tiles(layout, down, across, shown_rows, shown_cols))
            body = f'<g id="tiles{self._drawn[key]}">{tiles}</g>'
        drawn, total = shown_rows * shown_cols, rows * cols
        label = f"{total} tiles"
        caption = f"<p class=note>{drawn} of {total} tiles</p>" if drawn < total else ""
        return (
            f'<svg class="shards" width="{width:.0f}" height="{height:.0f}" viewBox="0 0'
            f' {shown_cols} {shown_rows}" preserveAspectRatio="none" role="img"'
            f' aria-label="{label}">{body}</svg>{caption}'
        )

    def _tiles(self, layout: Layout, down: int, across: int, rows: int, cols: int) -> Iterator[str]:
        """Rectangles of unit size with their devices."""
        holders = _holders(layout, self._mesh, down, across)
        for r, c in itertools.product(range(rows), range(cols)):
            devices = holders.get((r, c), [])
            more = " ..." if len(devices) > MAX_LISTED else ""
            names = ", ".join(map(str, devices[:MAX_LISTED])) + more
            hue = (r * cols + c) * HUES / max(rows * cols, 1)
            yield (
                f'<rect x="{c}" y="{r}" width="1" height="1" fill="hsl({hue:.0f} 60% 72%)">'
                f"<title>{escape(f'tile {r}, {c}: devices {names}')}</title></rect>"
            )


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
        tile = tile_index(layout, mesh, place)
        found.setdefault((tile[down] if down >= 0 else 0, tile[across]), []).append(device)
    return found
