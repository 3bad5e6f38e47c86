"""Labels that try to write on the terminal or into a log are shown harmless; times, sizes and hits paid in words."""

import datetime
import json
import re
import unicodedata
import zoneinfo

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.views.report_words import label_text, local_text
from tests.helpers.calibrated_plans import calibrated_plan
from tests.helpers.replay_logs import BUDGET, START
from tests.helpers.shh_here import shh
from tests.helpers.shown_reports import NAMES, legend_of, rendered, report

HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[1;1H",
    "sets the title": "\x1b]0;owned\x07",
    "8-bit escapes": "\x9b31m\x9d0;owned\x9c",
    "line ends": "a\nb\r\nc\rd\x0be\x0cf\x85g\u2028h\u2029i",
    "tabs and backspaces": "a\tb\x08\x08\x08c\x7f\x00",
    "right to left": "\u202egpj.exe\u202c\u2066x\u2069\u200f\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "invisible letters": "\u115f\u3164\u2800\u034f\uffa0\ufe0f\U000e0101",
    "markup": "[red]x[/red][link=http://x]y[link][/] :smile:",
    "html": "<script>alert(1)</script>&lt;&amp;\"'><img src=x onerror=alert(1)>",
    "looks like two": "●x  ○y~7",
    "looks like a count": "x~100",
    "looks like a size": "x≥100",
    "looks like JSON": '"}]}\n{"item": "x',
    "marks": "\u0301\u0300" * 50,
    "blanks": "  a  ",
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


@pytest.mark.parametrize("command", ["replay", "stream"])
def test_a_run_prints_them_harmless(tmp_path, command):
    """Each label of 300 users, five in an hour; on a terminal, where colours are the only escapes of a replay. A stream
    prints JSON lines there too."""
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "log.jsonl").open("w") as file:
        for number, label in enumerate(label for label in LABELS if label):
            for user in range(300):
                row = {"user": f"{number}-{user}", "item": label, "timestamp": START + 3600 * (number // 5)}
                file.write(json.dumps(row) + "\n")
    words = {
        "replay": ["replay", "logs", "--output", "report.jsonl"],
        "stream": ["stream", "--input", "logs", "--output", "reports", "--clock", "event", "--idle-timeout", "1s"],
    }[command]
    terminal = {"COLUMNS": "200", "FORCE_COLOR": "1", "TERM": "xterm"}
    done = shh(*words, *BUDGET, "--time-format", "s", cwd=tmp_path, **terminal)
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert (printed == done.stdout) == (command == "stream")
    assert not misleading(printed)
    shown = json.dumps if command == "stream" else label_text
    assert all(shown(label) in printed for label in ("x~100", "{0} %s {x!r}"))


def test_two_labels_never_look_alike():
    """Within what is shown: long ones are cut."""
    for label in LABELS:
        shown = label_text(label)
        others = {*LABELS, label.strip(), f"{label} ", f"{label}\u200b", f'"{label}"', f"\u115f{label}"} - {label}
        short = {other for other in others if other[:80] != label[:80]}
        assert shown not in {label_text(other) for other in short}
        assert len(shown) < 1000


HITS = {"hits-with-counts": 10, "kms21": 40, "hits": 1}


@pytest.mark.parametrize(("mode", "keys"), [*((mode, 1) for mode in HITS), ("hits-with-counts", 2)])
def test_hits_paid_are_exact_also_where_the_running_estimate_is_the_same(mode, keys):
    """The last hit and the one before it have one estimate; of kms21 also many others. A later part of a run does not
    say what was paid before: then it is the most that can have been. Under several keys: those under one."""
    most, plan = HITS[mode], calibrated_plan(mode=mode, hits_per_user=HITS[mode], most_keys=keys)
    limit, after = plan.charged_hits.max_items_per_user, plan.epsilon_after_hits[(keys - 1) * HITS[mode] :]
    windows, paid = [], [0]
    while paid[-1] < most + 2:
        charged = (1, 0, 2)[len(windows) % 3]
        paid.append(paid[-1] + min(limit, charged))
        zones = [*([None if mode != "hits" else BETWEEN] * charged), *([ABOVE] * (mode == "hits"))]
        named = [HeavyHitter(f"i{number}", zone, None) for number, zone in enumerate(zones)]
        spent = after[min(paid[-1], most - 1)]
        windows.append(report(len(windows) + 3, *named)._replace(epsilon_spent=spent, epsilon_total=plan.epsilon))
    expected, stored = [min(most, number) for number in paid[1:]], json.loads(plan.to_json())

    def shown(reports, **options):
        text = rendered(reports, plan=stored, with_epsilon=True, width=500, **options)
        return [int(number) for number in re.findall(rf"≤(\d+) of {most}", text)]

    assert shown(windows, are_all=True) == expected
    if most > 1:
        assert shown(windows)[-8:] == expected[-8:], "the first figure says what was paid before"
    for first in (1, len(windows) - 2):
        assert all(found >= number for found, number in zip(shown(windows[first:]), expected[first:], strict=True))
    other_hits = [{**stored, "hits": {**stored["hits"], "per_user": hits}} for hits in (most + 1, 10**9)]
    for hostile in (*other_hits, {**stored, "hits": 3}, {**stored, "delta": []}, {}):
        assert "hits paid" not in rendered(windows, plan=hostile, with_epsilon=True)


@pytest.mark.parametrize(
    ("error", "said"),
    [(0.001, "0.001"), (1e-6, "1e-06"), (0.99999, "1"), (0.0010001, "0.00101"), (1.2345e-7, "1.24e-07")],
)
def test_the_probability_of_a_wrong_size_is_rounded_up(error, said):
    told = re.search(r"of at most (\S+)\. ", legend_of(NAMES, plan={"contributions": {"size_error": error}}))[1]
    assert float(told) == float(said) >= error


NO_SIZE_ERRORS = [0, -0.1, 1, 7, True, None, "0.001", "\x1b", [0.1], {}, 10**4000]


def test_a_header_without_a_probability_makes_no_claim():
    no_plans = [{}, *({"contributions": {"size_error": error}} for error in NO_SIZE_ERRORS)]
    for plan in [*no_plans, {"contributions": None}, {"contributions": "\x1b"}]:
        assert "≥N: at least N users; the report does not state how often that is wrong." in legend_of(NAMES, plan=plan)


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
