"""``shh show --chart``: a picture of all windows of the most frequent items."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from dp_transforms.monitoring.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.pipelines.report_table import label_text
from dp_transforms.report_files import ReportHeader
from tests.pipelines.shown_reports import HOSTILE, LABELS, NAMES_HEADER, report

pytestmark = pytest.mark.usefixtures("terminal")


def drawn(path):
    """The picture, through an XML parser: labels in order, and the bars as (row, zone by height)."""
    root = ElementTree.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}"
    labels = [text.text for text in root.iter(f"{name}text") if float(text.get("y")) > 60]
    bars = [bar for bar in root.iter(f"{name}rect") if bar.get("width") != "100%"]
    rows = [(int(float(bar.get("y")) - 64) // 20, bar.get("height"), float(bar.get("x"))) for bar in bars]
    return labels, rows


def boxes(path):
    """Of the bars: y and height."""
    root = ElementTree.parse(path).getroot()
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("width") != "100%"]
    return [(bar.get("y"), bar.get("height")) for bar in bars]


def test_a_chart_shows_every_window_of_the_most_frequent_items(show, tmp_path):
    reports = [report(w, HeavyHitter("long", ABOVE, None), HeavyHitter("short", BETWEEN, 5)) for w in (0, 1, 99)]
    reports += [report(w, HeavyHitter("long", ABOVE, None)) for w in range(40, 80)]
    out, err, code = show(reports, "--chart", str(tmp_path / "chart.svg"))
    assert (err, code) == ("", 0)
    assert "The latest 24 of 43 windows" in out
    labels, bars = drawn(tmp_path / "chart.svg")
    assert labels == ["long", "short"]
    # Windows that touch are one bar; from the first to the last there are 100, 9 units wide each.
    assert bars == [(0, "14", 220), (0, "14", 580), (0, "14", 1111), (1, "8", 220), (1, "8", 1111)]


def test_a_chart_takes_windows_of_different_modes(show, tmp_path):
    """shh writes one mode into a file; who made another one must not end the command."""
    path = tmp_path / "chart.svg"
    mixed = [report(0, HeavyHitter("a", None, 5), HeavyHitter("b", ABOVE, None))]
    assert show(mixed, "--chart", str(path))[1:] == ("", 0)
    assert drawn(path)[0] == ["a", "b"]


def test_a_chart_escapes_labels_and_overwrites_nothing(show, tmp_path):
    path = tmp_path / "chart.svg"
    label = "</text><script>&" + HOSTILE[-12:]
    show([report(0, HeavyHitter(label, ABOVE, None))], "--chart", str(path), header=ReportHeader("", "", HOSTILE, {}))
    assert drawn(path)[0] == [label_text(label)]
    before = path.read_bytes()
    assert "overwritten" in show(LABELS, "--chart", str(path))[1]
    assert path.read_bytes() == before
    assert show(LABELS, "--chart", str(tmp_path / "chart.png"))[2] == 2
    assert show(LABELS, "--chart", str(tmp_path / "none" / "chart.svg"))[2] == 1
    assert show([], "--chart", str(tmp_path / "empty.svg"))[2] == 0
    assert drawn(tmp_path / "empty.svg") == ([], [])


def test_a_chart_of_names_draws_a_thicker_bar_for_a_higher_level(show, tmp_path):
    levels = {0: 1, 1: 1, 2: 2, 3: 3, 4: 4, 5: 90, 99: 1}
    reports = [report(w, HeavyHitter("a", None, None, level, 5)) for w, level in levels.items()]
    assert show(reports, "--chart", str(tmp_path / "chart.svg"), header=NAMES_HEADER)[1:] == ("", 0)
    labels, bars = drawn(tmp_path / "chart.svg")
    assert labels == ["a"]
    # Two windows of level 1 are one bar, and so are level 4 and all above it.
    assert [(height, x) for _, height, x in bars] == [("5", 220), ("8", 238), ("11", 247), ("14", 256), ("5", 1111)]
    middle = {float(y) + float(height) / 2 for y, height in boxes(tmp_path / "chart.svg")}
    assert len(middle) == 1
    assert "thicker: a higher level (1, 2, 3, 4 or more)" in (tmp_path / "chart.svg").read_text()
    show(LABELS, "--chart", str(tmp_path / "labels.svg"))
    assert "thicker" not in (tmp_path / "labels.svg").read_text()
