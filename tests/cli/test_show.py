"""``shh show``: a report file as people and as pipes read it, also where its labels are hostile."""

import csv
import io
import json
import re

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.reports import decode_report
from dp_transforms.reports.files import write_report_file
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.trends import trends
from dp_transforms.views.report_words import windows_table
from tests.helpers.page_reports import LABELS, NAMES_HEADER, header_of, hourly_plan, reports_of
from tests.helpers.report_samples import HEADER, report
from tests.helpers.shh_here import said
from tests.helpers.shh_process import shh

pytestmark = pytest.mark.usefixtures("terminal")


@pytest.fixture
def terminal(monkeypatch):
    """100 columns wide, whatever the environment says."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def show(tmp_path, terminal):
    """Runs ``shh show`` on a file of the reports; returns what it prints, its errors and its exit code."""

    def run(reports, *options, ending="avro", header=HEADER):
        path = tmp_path / f"report.{ending}"
        if reports is not None:
            path.unlink(missing_ok=True)
            write_report_file(path, header, reports)
        return said("show", path, *options)

    return run


@pytest.mark.parametrize("ending", ["avro", "jsonl"])
def test_people_see_the_guarantee_and_the_windows(show, ending):
    out, err, code = show(LABELS, ending=ending)
    assert (err, code) == ("", 0)
    lines = out.splitlines()
    assert lines[0] == HEADER.guarantee
    assert lines[1] == "Stream news, run run-1."
    (row,) = [line for line in lines if "iphone" in line]
    assert re.fullmatch(r' *2017-10-01 03:00 +1h +●iphone  ○"the beatles"~812 +0\.01 *', row)
    (row,) = [line for line in lines if "android" in line]
    assert re.fullmatch(r" *2017-10-01 08:00 +36h +★●android  2 gone +0\.06 *", row)
    assert "● above" in out
    assert "○ between" in out
    assert "running estimate, of 2" in out
    assert "--last" not in out


def many(windows, items=1):
    return [report(w, *(HeavyHitter(f"w{w}i{i}", None, 9) for i in range(items))) for w in range(windows)]


def shown(out):
    return sorted(map(int, set(re.findall(r"w(\d+)i0~9", out))))


def test_the_latest_windows_are_shown_unless_asked_otherwise(show):
    out, _, _ = show(many(30))
    assert shown(out) == list(range(6, 30))
    assert "The latest 24 of 30 windows with heavy items; --last 30 shows all." in out
    out, _, _ = show(many(30), "--last", "3")
    assert shown(out) == [27, 28, 29]
    out, _, _ = show(many(30, 10), "--last", "30")
    assert shown(out) == list(range(30))
    assert "latest" not in out
    assert "w29i9" in out
    assert "w29i9" not in show(many(30, 10))[0]
    assert show(many(3), "--last", "0")[2] == 2


def test_json_holds_all_records_in_time_order_and_nothing_else(show):
    out, _, _ = show(many(30), "--json")
    assert list(map(without_trend, out.splitlines())) == many(30)
    out, _, _ = show(many(30), "--json", "--last", "2")
    assert list(map(without_trend, out.splitlines())) == many(30)[-2:]
    assert [json.loads(line)["gone"] for line in out.splitlines()] == [["w27i0"], ["w28i0"]]


def without_trend(line):
    """The report of a line of --json."""
    fields = json.loads(line)
    del fields["gone"]
    for entry in fields["heavy_hitters"]:
        del entry["rank"], entry["change"]
    return decode_report(json.dumps(fields))


def test_signs_say_what_has_changed_and_titles_stand_for_labels(show, tmp_path):
    held = {"a": {0: 300, 1: 500, 2: 200}, "b": {1: 60, 2: 60}, "c": {1: 50}}
    titles = tmp_path / "titles.csv"
    titles.write_text("item,title\na,First of all\nb,Twice\nc,Twice\n")
    plan = hourly_plan()
    out, err, code = show(reports_of(plan, held), "--titles", str(titles), header=header_of(plan))
    assert (err, code) == ("", 0)
    rows = [line.partition("1h")[2].strip() for line in out.splitlines() if " 1h " in line]
    assert rows == [
        '"First of all"≥300',
        '▲"First of all"≥500  ★"Twice (b)"≥60  ★"Twice (c)"≥50',
        '▼"First of all"≥200  "Twice (b)"≥60  1 gone',
    ]
    assert "★ new, ▲ rising, ▼ falling against the window before. Rising: at least 1.5 times" in " ".join(out.split())
    # Compared with the window before, whichever windows and items are shown.
    out, _, _ = show(None, "--last", "1")
    assert "▼a≥200 " in out
    assert show(None, "--json", "--titles", str(titles))[2] == 1
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(windows_table(list(trends(plan, reports_of(plan, held))), ascii_only=True))
    in_ascii = console.file.getvalue()
    assert "+a>=500  !b>=60  !c>=50" in in_ascii
    assert "-a>=200  b>=60  1 gone" in in_ascii


def test_a_terminal_without_utf_8_gets_ascii(tmp_path):
    path = tmp_path / "report.avro"
    labels = ("a", "x>=5", "x≥5", "*starred", "=equal", "é")
    sized = report(9, *(HeavyHitter(label, None, None, 1, 7) for label in labels))
    write_report_file(path, NAMES_HEADER, [*LABELS, sized])
    shown = shh("show", path, cwd=tmp_path, COLUMNS="150", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.isascii()
    assert "*iphone" in shown.stdout
    assert '="the beatles"~812' in shown.stdout
    assert "* above" in shown.stdout
    assert r' !"*starred">=7  !"=equal">=7  !a>=7  !"x>=5">=7  !"x\u22655">=7  !\xe9>=7 ' in shown.stdout
    assert "is wrong has a probability of at most 0.001." in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("ended", "last_words"),
    [
        (None, "The run goes on: further windows may follow."),
        (RunEnded("news", 8760, 2), "The run has ended: all of its 8,760 windows are closed."),
    ],
)
def test_the_folder_of_a_stream_is_shown_in_order_and_says_whether_it_goes_on(tmp_path, ended, last_words):
    folder = tmp_path / "reports"
    writer = ReportFolder(str(folder)).open(HEADER)
    for window in LABELS[::-1]:
        writer.write(window)
    if ended is not None:
        writer.end(ended)
    out, _, _ = said("show", folder)
    assert out.splitlines()[0] == HEADER.guarantee
    assert out.index("iphone") < out.index("android")
    assert out.splitlines()[-1] == last_words
    assert list(map(without_trend, said("show", folder, "--json")[0].splitlines())) == LABELS


def test_the_files_of_one_run_are_one_report_by_name_and_as_a_folder(tmp_path):
    folder, whole = tmp_path / "parts", tmp_path / "whole.avro"
    folder.mkdir()
    files = [
        folder / f"{window.window_start}.{ending}" for window, ending in zip(LABELS, ("avro", "jsonl"), strict=True)
    ]
    for path, window in zip(files, LABELS, strict=True):
        write_report_file(path, HEADER, [window])
    write_report_file(whole, HEADER, LABELS)
    expected, _, _ = said("show", whole)
    for words in ([folder], files[::-1]):
        out, err, code = said("show", *words)
        assert (code, err) == (0, "")
        assert out == f"{expected}These files are parts of a run, and do not say whether it has ended.\n"
        assert list(map(without_trend, said("show", *words, "--json")[0].splitlines())) == LABELS
        assert "3 items were named in 2 windows" in said("explain", *words)[0]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--html", "x.txt"], 2, "--html must end in .html"),
        (["--output", "table.xlsx"], 2, "--output must end in .csv or .parquet"),
        (["--time-zone", "Berln"], 1, "Use a name such as Europe/Berlin"),
        (
            ["--html", "x.html", "--titles", "bad.csv"],
            1,
            "--titles bad.csv must be CSV in UTF-8",
        ),
        (["--html", "x.html", "--titles", "comma.csv"], 1, "titles with commas stand in quotes"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_remedy(show, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("secret,cells\n1,2\n")
    (tmp_path / "comma.csv").write_text("item,title\na,secret, and more\n")
    _, err, found = show(LABELS, *words)
    assert found == code
    assert told in " ".join(err.split())
    assert "secret" not in err
    assert not list(tmp_path.glob("x.*"))


def test_a_table_has_a_row_for_each_item_and_no_formula(show, tmp_path):
    """Ranks and changes are those of the whole report, whatever of it is written."""
    formulas = ["\ta", "+1", "-1", "=1+1", "@a", "＝1"]  # equal sizes stand by name
    sizes = {"big": 900, **dict.fromkeys(formulas, 12), 'a "b", é': 7}
    found = [HeavyHitter(item, None, None, 1, size) for item, size in sizes.items()]
    reports = [report(0, *found), report(1, *found[:2])]
    for ending in ("csv", "parquet"):
        path = tmp_path / f"table.{ending}"
        assert show(reports, "--output", str(path), header=NAMES_HEADER) == (f"Table written to {path}.\n", "", 0)
        assert show(reports, "--output", str(path))[2] == 1, "it exists"
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        of_csv = list(csv.DictReader(file))
    of_parquet = pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert [row["item"] for row in of_parquet] == [*sizes, "big", "\ta"]
    assert [row["item"] for row in of_csv[:8]] == ["big", *("'" + item for item in formulas), 'a "b", é']
    assert of_csv[4] == {
        **{"window_start": "2017-10-01T03:00:00Z", "window_end": "2017-10-01T04:00:00Z", "rank": "2"},
        **{"item": "'=1+1", "change": "", "zone": "", "at_least_users": "12", "noisy_count": "", "level": "1"},
    }
    show(reports, "--output", str(tmp_path / "one.parquet"), "--last", "1", header=NAMES_HEADER)
    one = pq.read_table(tmp_path / "one.parquet").to_pylist()
    assert one == of_parquet[-2:]
    assert (one[-1]["rank"], one[-1]["change"]) == (2, "same")
