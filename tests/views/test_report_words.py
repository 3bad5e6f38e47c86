"""Labels that try to write on the terminal or into a log are shown harmless; times and sizes in words."""

import dataclasses
import datetime
import json
import re
import unicodedata
import zoneinfo

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.reports.trends import trends
from dp_transforms.views.report_words import label_text, legend, local_text
from tests.helpers.page_reports import NAMES, hourly_plan
from tests.helpers.replay_logs import BUDGET, START
from tests.helpers.report_samples import report
from tests.helpers.shh_here import shh

HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[1;1H",
    "sets the title": "\x1b]0;owned\x07",
    "8-bit escapes": "\x9b31m\x9d0;owned\x9c",
    "line ends": "a\nb\r\nc\rd\x0be\x0cf\x85g\u2028h\u2029i",
    "right to left": "\u202egpj.exe\u202c\u2066x\u2069\u200f\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "invisible letters": "\u115f\u3164\u2800\u034f\uffa0\ufe0f\U000e0101",
    "markup": "[red]x[/red][link=http://x]y[link][/] :smile:",
    "html": "<script>alert(1)</script>&lt;&amp;\"'><img src=x onerror=alert(1)>",
    "looks like a count": "x~100",
    "looks like JSON": '"}]}\n{"item": "x',
    "empty": "",
    "very long": "x" * 16_384,
    "no characters": "\ufffe\uffff\ue000\U0010ffff",
    "formats of Python": "{0} %s {x!r}",
}
LABELS = list(HOSTILE.values())
# A reader of a table takes one of these for something that it is not.
MISLEADING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def heavy(labels):
    found = [HeavyHitter(label, ABOVE if number % 2 else BETWEEN, None) for number, label in enumerate(labels)]
    return found + [HeavyHitter(label, None, None, 1 + number, 7 * number) for number, label in enumerate(labels)]


def misleading(text):
    return {character for character in text if unicodedata.category(character) in MISLEADING} - {"\n"}


def test_show_prints_them_harmless_and_json_exactly(tmp_path):
    """Everything that a file tells: labels, and the names of run and stream, and the guarantee."""
    path, words = tmp_path / "report.avro", "".join(LABELS)
    others = [report(1 + number, *heavy("a"), stream=label) for number, label in enumerate(LABELS)]
    write_report_file(path, ReportHeader(words, words, words, {}), [report(0, *heavy(LABELS)), *others])
    shown = shh("show", path, "--last", "100", cwd=tmp_path, COLUMNS="200")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert not misleading(shown.stdout)
    first = shh("show", path, "--json", cwd=tmp_path).stdout.splitlines()[0]
    assert first.isascii()
    assert first.isprintable()
    assert sorted(hitter["item"] for hitter in json.loads(first)["heavy_hitters"]) == sorted(LABELS * 2)


def test_a_replay_prints_them_harmless(tmp_path):
    """Each label of 300 users, five in an hour; on a terminal, where colours are the only escapes. A stream prints JSON
    lines: tests/cli/test_stream.py."""
    with (tmp_path / "log.jsonl").open("w") as file:
        for number, label in enumerate(label for label in LABELS if label):
            for user in range(300):
                row = {"user": f"{number}-{user}", "item": label, "timestamp": START + 3600 * (number // 5)}
                file.write(json.dumps(row) + "\n")
    terminal = {"COLUMNS": "200", "FORCE_COLOR": "1", "TERM": "xterm"}
    words = ("replay", "log.jsonl", "--output", "report.jsonl", *BUDGET, "--time-format", "s")
    done = shh(*words, cwd=tmp_path, **terminal)
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert printed != done.stdout
    assert not misleading(printed)
    assert all(label_text(label) in printed for label in ("x~100", "{0} %s {x!r}"))


def test_two_labels_never_look_alike():
    """Within what is shown: long ones are cut."""
    for label in LABELS:
        shown = label_text(label)
        others = {*LABELS, label.strip(), f"{label} ", f"{label}\u200b", f'"{label}"', f"\u115f{label}"} - {label}
        short = {other for other in others if other[:80] != label[:80]}
        assert shown not in {label_text(other) for other in short}
        assert len(shown) < 1000


@pytest.mark.parametrize(("error", "said"), [(0.001, "0.001"), (0.0010001, "0.00101"), (1.2345e-7, "1.24e-07")])
def test_the_probability_of_a_wrong_size_is_rounded_up(error, said):
    plan = hourly_plan()
    paid = dataclasses.replace(plan.paid_contributions, size_error=error)
    told = legend(trends(None, NAMES), dataclasses.replace(plan, contributions=paid))
    assert f"has a probability of at most {said}. " in told
    assert float(said) >= error


def test_a_header_without_a_plan_makes_no_claim():
    assert "≥N: at least N users; the report does not state how often that is wrong." in legend(
        trends(None, NAMES), None
    )


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = round(datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("micros", "zone", "text"),
    [
        (NOON, BERLIN, "2026-07-01 14:00"),
        (NOON + 5_000_000, datetime.UTC, "2026-07-01 12:00:05"),
        (NOON + 500_000, datetime.UTC, "2026-07-01 12:00:00.500000"),
        (-62_135_596_800_000_000, BERLIN, None),
        (253_402_300_799_999_999, BERLIN, None),
    ],
)
def test_a_time_has_seconds_in_its_text_only_if_it_has_them(micros, zone, text):
    """At the ends of the calendar any text."""
    assert local_text(micros, zone) == text or text is None
