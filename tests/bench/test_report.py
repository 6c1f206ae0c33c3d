"""Plots of the benchmark's tables."""

import sys
from xml.etree import ElementTree as ET

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark needs Linux", allow_module_level=True)

from bench.report import Sheet, bars

SVG = "{http://www.w3.org/2000/svg}"


def test_plot_has_a_bar_for_each_row_as_long_as_its_figure() -> None:
    rows = [["<bare> & fast", "1,000", "µ"], ["credhook, strict", "4,000", "µ"], ["a peer", "500", "µ"]]
    root = ET.fromstring(bars(Sheet("As much as each takes", ["competitor", "deliveries/s", "cost"], rows)))
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
    assert [width / max(widths) for width in widths] == pytest.approx([0.25, 1, 0.125], abs=0.001)
    assert [text.text for text in root.iter(f"{SVG}text")] == [cell for row in rows for cell in row[:2]]
    assert [title.text for title in root.iter(f"{SVG}title")] == ["As much as each takes: deliveries/s"]
