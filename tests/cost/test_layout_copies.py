"""Rows of lanes: a copy is padded by part of a tile, and a row without elements has none."""

import numpy as np

from partir_search.simulator.time.layout_copies import padded_rows


def test_padded_rows() -> None:
    rows = np.array([0.0, 0.5, 16.0, 128.0, 192.0])
    np.testing.assert_allclose(padded_rows(rows, 128), [0.0, 256.0, 8.0, 0.0, 256 / 192])
    assert not padded_rows(rows[2:], 1).any()
    assert float(padded_rows(0.0, 128)) == 0.0
