"""The plots of the documents: well-formed, every line and label there, points where they belong."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from dp_transforms.views.line_plot import line_plot_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_a_plot_is_well_formed_and_shows_all_names():
    plot = line_plot_svg("Noise & <more>", "hits", "scale", {"a < b": [(1, 2), (10, 5)], "other": [(1, 1)]}, log_x=True)
    root = ElementTree.fromstring(plot)
    texts = "".join(root.itertext())
    assert all(name in texts for name in ("Noise & <more>", "hits", "scale", "a < b", "other"))
    assert root.find(f"{SVG}title") is not None


def test_points_on_a_logarithmic_axis_are_evenly_spaced():
    plot = line_plot_svg("t", "x", "y", {"line": [(1, 3), (10, 3), (100, 3)]}, log_x=True)
    ((first, last),) = re.findall(r'<path d="M([\d.]+) [\d.]+L317.0 [\d.]+L([\d.]+) ', plot)
    x = [float(first), 317.0, float(last)]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert x[1] > x[0]


@pytest.mark.parametrize("series", [{}, {"line": []}, {"line": [(1, math.nan)]}, {str(n): [(1, 1)] for n in range(9)}])
def test_what_cannot_be_drawn_is_refused(series):
    with pytest.raises(ValueError, match=r"series must hold|points must be finite"):
        line_plot_svg("t", "x", "y", series)
