"""Labels that try to write on the terminal or into a log: shown harmless wherever they are shown."""

import json
import re
import unicodedata

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.views.report_words import label_text
from tests.helpers.replay_logs import BUDGET, START
from tests.helpers.shh_here import shh

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
LABELS = list(HOSTILE.values())
# A reader of a table takes one of these for something that it is not.
MISLEADING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def report(labels, stream="events"):
    heavy = [HeavyHitter(label, ABOVE if number % 2 else BETWEEN, None) for number, label in enumerate(labels)]
    heavy += [HeavyHitter(label, None, None, 1 + number, 7 * number) for number, label in enumerate(labels)]
    return WindowReport(stream, 0, HOUR, heavy, 1.0, 1e-9, 0.5)


def misleading(text):
    return {character for character in text if unicodedata.category(character) in MISLEADING} - {"\n"}


@pytest.mark.parametrize("ending", ["avro", "jsonl"])
def test_show_prints_them_harmless(tmp_path, ending):
    """Everything that a file tells: labels, and the names of run and stream, and the guarantee."""
    path = tmp_path / f"report.{ending}"
    words = "".join(LABELS)
    header = ReportHeader(words, words, words, {})
    write_report_file(path, header, [report(LABELS), *(report("a", label) for label in LABELS)])
    shown = shh("show", path, "--last", "100", cwd=tmp_path, COLUMNS="200")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert not misleading(shown.stdout)


def test_json_for_pipes_is_ascii_and_says_the_labels_exactly(tmp_path):
    path = tmp_path / "report.avro"
    write_report_file(path, ReportHeader("r", "events", "g", {}), [report(LABELS)])
    (line,) = shh("show", path, "--json", cwd=tmp_path).stdout.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert sorted(hitter["item"] for hitter in json.loads(line)["heavy_hitters"]) == sorted(LABELS * 2)


IN_PROCESS = ("--clock", "event", "--idle-timeout", "1s")
COMMANDS = {
    "replay": ["replay", "logs", *BUDGET, "--output", "report.jsonl"],
    "stream": ["stream", "--input", "logs", *BUDGET, *IN_PROCESS, "--output", "reports"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_prints_them_harmless(tmp_path, command):
    """Each label of 300 users, five in an hour; on a terminal, where colours are the only escapes of a replay. A stream
    prints JSON lines there too."""
    (tmp_path / "logs").mkdir()
    labels = [label for label in LABELS if label and len(label.encode()) < 10_000]
    with (tmp_path / "logs" / "log.jsonl").open("w") as file:
        for number, label in enumerate(labels):
            for user in range(300):
                row = {"user": f"{number}-{user}", "item": label, "timestamp": START + 3600 * (number // 5)}
                file.write(json.dumps(row) + "\n")
    done = shh(*COMMANDS[command], "--time-format", "s", cwd=tmp_path, COLUMNS="200", FORCE_COLOR="1", TERM="xterm")
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert (printed == done.stdout) == (command == "stream")
    assert not misleading(printed)
    shown = json.dumps if command == "stream" else label_text
    assert all(shown(label) in printed for label in ("x~100", "{0} %s {x!r}", "a\x00b"))


def test_two_labels_never_look_alike():
    """Within what is shown: long ones are cut."""
    for label in LABELS:
        shown = label_text(label)
        others = {*LABELS, label.strip(), f"{label} ", f"{label}\u200b", f'"{label}"', f"\u115f{label}"} - {label}
        short = {other for other in others if other[:80] != label[:80]}
        assert shown not in {label_text(other) for other in short}
        assert len(shown) < 1000
