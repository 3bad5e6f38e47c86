"""Labels that try to write on the terminal, into a picture or into a log: shown harmless wherever they are shown."""

from __future__ import annotations

import datetime
import io
import json
import pathlib
import unicodedata
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from rich.console import Console

from dp_transforms.cli import replay, stream_status
from dp_transforms.cli.main import main
from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader, write_report_file
from dp_transforms.views.page import picture
from dp_transforms.views.page.report_columns import report_columns
from dp_transforms.views.report_table import label_text, shown_text

HOUR = 3_600_000_000
HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[1;1H",
    "sets the title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\",
    "8-bit escapes": "\x9b31m\x9d0;owned\x9c",
    "line ends": "a\nb\r\nc\rd\x0be\x0cf\x85g\u2028h\u2029i",
    "tabs and backspaces": "a\tb\x08\x08\x08c\x7f",
    "nul": "a\x00b",
    "right to left": "\u202egpj.exe\u202c\u2066x\u2069\u200f\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "invisible letters": "\u115f\u3164\u2800\u034f\uffa0\ufe0f\U000e0101",
    "tags": "a\U000e0041\U000e0042",
    "markup": "[red]x[/red][link=http://x]y[/link][/]",
    "emoji code": ":smile: :skull:",
    "html": "<script>alert(1)</script>&lt;&amp;\"'><img src=x onerror=alert(1)>",
    "xml": "]]></text><![CDATA[<rect/>]]><!-- -->&#0;&bomb;",
    "looks like two": "●x  ○y~7",
    "looks like a count": "x~100",
    "looks like a size": "x≥100",
    "looks like a size in ASCII": "x>=100",
    "looks like JSON": '"}]}\n{"item": "x',
    "marks": "\u0301\u0300" * 50,
    "blanks": "  a  ",
    "empty": "",
    "very long": "x" * 16_384,
    "very long and wide": "界" * 5_000,
    "no characters": "\ufffe\uffff\ue000\U0010ffff",
    "formats of Python": "{0} %s {x!r}",
}
PARAMETERS = pytest.mark.parametrize("label", [pytest.param(label, id=name) for name, label in HOSTILE.items()])
# A reader of a table takes one of these for something that it is not.
MISLEADING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def report(*labels: str) -> WindowReport:
    heavy = [HeavyHitter(label, ABOVE if number % 2 else BETWEEN, None) for number, label in enumerate(labels)]
    heavy += [HeavyHitter(label, None, None, 1 + number, 7 * number) for number, label in enumerate(labels)]
    return WindowReport("events", 0, HOUR, heavy, 1.0, 1e-9, 0.5)


def assert_harmless(text: str, plain: str) -> None:
    """text: what is shown; plain: the same with a harmless label, which shows what belongs to the table itself."""
    odd = {character for character in text if unicodedata.category(character) in MISLEADING}
    assert odd <= {"\n", *plain}, odd


def shown_by(show: Callable[[str], str], label: str) -> str:
    text, plain = show(label), show("harmless")
    assert "harmless" in plain
    assert_harmless(text, plain)
    return text


@PARAMETERS
@pytest.mark.parametrize("ending", ["avro", "jsonl", "parquet"])
def test_show_prints_it_harmless(
    tmp_path: pathlib.Path,
    label: str,
    ending: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that a file tells: labels, and the names of run and stream, and the guarantee."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(words: str) -> str:
        path = tmp_path / f"report.{ending}"
        path.unlink(missing_ok=True)
        named = report("a", words)._replace(stream=words)
        write_report_file(path, ReportHeader(words, words, words, {}), [report(words), named])
        main(["show", str(path), "--all"])
        main(["show", str(path), "--all", "--item", words])
        with pytest.raises(SystemExit):
            main(["show", str(path), "--item", f"{words} is not there"])
        printed = capsys.readouterr()
        assert printed.err.startswith("shh: no window reports ")
        assert printed.err.count("\n") == 1
        return printed.out + printed.err

    text = shown_by(show, label)
    assert len(text) < 20_000 or len(label) > 1000


@PARAMETERS
def test_json_for_pipes_is_ascii_and_says_the_label_exactly(
    tmp_path: pathlib.Path, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.avro"
    write_report_file(path, ReportHeader("r", "events", "g", {}), [report(label)])
    main(["show", str(path), "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["heavy_hitters"][0]["item"] == label


@PARAMETERS
def test_a_picture_holds_it_as_text(label: str) -> None:
    pytest.importorskip("vl_convert", reason="the extra charts is missing")

    def drawn(words: str) -> str:
        columns = report_columns([report("a", words, "c")], None)
        made = picture.picture(columns, "Title", "guarantee", datetime.UTC, kind=".svg", most_items=40)
        return made.decode()

    text, plain = drawn(label), drawn("harmless")
    trees = [ElementTree.fromstring(each) for each in (text, plain)]
    tags, names = (
        [{element.tag for element in tree.iter()} for tree in trees],
        [{name for element in tree.iter() for name in element.attrib} for tree in trees],
    )
    assert tags[0] == tags[1]
    assert names[0] == names[1]
    texts = {element.text or "" for element in trees[0].iter() if element.tag.endswith("text")}
    assert_harmless("".join(texts), "")
    if len(shown_text(label)) <= 30:
        assert shown_text(label) in texts


@PARAMETERS
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_stream_prints_it_harmless(label: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(words: str) -> str:
        screen = io.StringIO()

        def console(**options: bool) -> Console:
            options.pop("stderr", None)
            return Console(file=screen, force_terminal=is_terminal, width=200, **options)

        monkeypatch.setattr(stream_status, "Console", console)
        status = stream_status.StreamStatus()
        status.announce("guarantee")
        status.show_reports([report(words, "a")])
        return screen.getvalue()

    shown_by(show, label)


@PARAMETERS
def test_a_replay_prints_it_harmless(
    tmp_path: pathlib.Path, label: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def show(words: str) -> str:
        path = tmp_path / "report.avro"
        path.unlink(missing_ok=True)
        write_report_file(path, ReportHeader("r", "events", "g", {}), [report(words)])
        request = replay.ReplayRequest.__new__(replay.ReplayRequest)
        object.__setattr__(request, "output", "report.avro")
        object.__setattr__(request, "plan", _Plan())
        replay._print_report(request)
        return capsys.readouterr().out

    shown_by(show, label)


class _Plan:
    guarantee = "guarantee"


@PARAMETERS
def test_two_labels_never_look_alike(label: str) -> None:
    """Within what is shown: long ones are cut."""
    shown = label_text(label)
    others = {*HOSTILE.values(), label.strip(), f"{label} ", f"{label}\u200b", f'"{label}"', f"\u115f{label}"} - {label}
    short = {other for other in others if other[:80] != label[:80]}
    assert shown not in {label_text(other) for other in short}
    assert len(shown) < 1000


def test_letters_and_marks_that_show_as_nothing_are_escaped() -> None:
    assert label_text("\u115f\u3164\u2800\ufe0f\U000e0101") == r"\u115f\u3164\u2800\ufe0f\U000e0101"
    assert label_text("\u0301a") == '"\u0301a"'  # else it would stand on the sign before it
    assert label_text("e\u0301") == "e\u0301"
