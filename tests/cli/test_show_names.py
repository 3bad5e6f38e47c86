"""``shh show`` on reports of mode `looks`: levels, sizes, and what the legend says of them."""

from __future__ import annotations

import json
import re

import pytest

from dp_transforms.monitor.window_report import HeavyHitter
from dp_transforms.reports import ReportHeader, write_report_file
from dp_transforms.views.report_table import legend
from tests.cli.shown_reports import HOSTILE, LABELS, NAMES, NAMES_HEADER, hostile_characters, report
from tests.helpers.shh_process import shh

pytestmark = pytest.mark.usefixtures("terminal")


@pytest.mark.parametrize("ending", ["avro", "jsonl", "parquet"])
def test_names_have_a_size_and_the_legend_says_how_often_it_is_wrong(show, ending):
    out, err, code = show(NAMES, "--all", ending=ending, header=NAMES_HEADER)
    assert (err, code) == ("", 0)
    assert re.search(r"2017-10-01 03:00 +1h +big≥240  new≥12 *$", out, re.MULTILINE)
    assert re.search(r"2017-10-01 04:00 +1h +big  old *$", out, re.MULTILINE)  # at least nobody says nothing
    assert "ε spent" not in out.partition("≥N")[0], "a column that is 2 in every row tells nothing"
    said = " ".join(out.split())
    assert "≥N: at least N users; that any of the run's sizes is wrong has a probability of at most 0.001." in said
    assert "ε spent: all of 2 in every window. A user may have spent it; no report tells." in said
    assert "estimate" not in said
    assert "above" not in said
    assert "~N" not in said


@pytest.mark.parametrize(
    ("hits", "said"),
    [
        (0, "no report tells. Users paid for looks alone."),
        (1, "those with many paid less, and for 1 hit each, after which they no longer count."),
        (10, "those with many paid less, and for 10 hits each"),
        *((hostile, "") for hostile in (None, True, -1, 10**9, 1.5, "\x1b[31m", [3])),
    ],
)
def test_the_legend_of_names_says_what_users_paid_for(hits, said):
    shown = legend(NAMES, plan={**NAMES_HEADER.plan, **({} if hits == 0 else {"hits": {"per_user": hits}})})
    assert said in shown
    assert ("paid" in shown) == bool(said)
    assert "paid" not in legend(LABELS, plan={"hits": {"per_user": 3}})


def test_names_without_a_size_need_no_word_on_it():
    said = legend(NAMES[1:], plan=NAMES_HEADER.plan)
    assert "at least" not in said
    assert "ε spent: all of 2" in said
    assert "≥" not in legend(LABELS, plan=NAMES_HEADER.plan)
    assert "running estimate, of 2" in legend(LABELS, plan=NAMES_HEADER.plan)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (0.001, "0.001"),
        (1e-6, "1e-06"),
        (0.05, "0.05"),
        (0.0010001, "0.00101"),  # a probability is never told too small
        (1.2345e-7, "1.24e-07"),
        (0.99999, "1"),
    ],
)
def test_the_probability_of_a_wrong_size_is_rounded_up(error, said):
    told = float(re.search(r"of at most (\S+)\. ", legend(NAMES, plan={"looks": {"size_error": error}}))[1])
    assert told == float(said)
    assert told >= error


@pytest.mark.parametrize(
    "plan",
    [
        {},
        *(
            {"looks": {"size_error": value}}
            for value in (0, 0.0, -0.1, 1, 1.0, 7, True, False, None, "0.001", HOSTILE, [0.1], {})
        ),
        {"looks": {"size_error": 10**4000}},
        {"looks": {"size_error": -(10**4000)}},
        {"looks": {"size_error": {"\x1b[2J": [0.1]}}},
        *({"looks": value} for value in (0, None, HOSTILE, [0.1])),
    ],
    ids=lambda _: "case",
)
def test_a_header_without_a_probability_makes_no_claim(show, plan):
    header = ReportHeader("run-2", "news", "Each user's log.", plan)
    out, err, code = show(NAMES, header=header, ending="avro")
    assert (err, code) == ("", 0)
    assert "≥N: at least N users; the report does not state how often that is wrong." in " ".join(out.split())
    assert hostile_characters(out) == []
    assert legend(NAMES, plan=plan).startswith(legend(NAMES))


def test_an_item_of_names_can_be_followed_and_is_whole_as_json(show):
    out, _, _ = show(NAMES, "--json", "--item", "big", header=NAMES_HEADER)
    assert [json.loads(line)["heavy_hitters"] for line in out.splitlines()] == [
        [{"item": "big", "zone": None, "noisy_count": None, "level": level, "at_least_users": users}]
        for level, users in ((3, 240), (1, 0))
    ]


def test_a_terminal_without_utf_8_gets_sizes_in_ascii(tmp_path):
    path = tmp_path / "report.avro"
    labels = ("a", "x>=5", "x≥5", "*starred", "=equal")
    write_report_file(path, NAMES_HEADER, [report(0, *(HeavyHitter(label, None, None, 1, 7) for label in labels))])
    shown = shh("show", path, cwd=tmp_path, COLUMNS="150", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.isascii()
    assert r' a>=7  "x>=5">=7  "x\u22655">=7  "*starred">=7  "=equal">=7 ' in shown.stdout
    assert "is wrong has a probability of at most 0.001. epsilon spent: all of 2" in " ".join(shown.stdout.split())
    assert "epsilon spent: all of 2" in " ".join(shown.stdout.split())
