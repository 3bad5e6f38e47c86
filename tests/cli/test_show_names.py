"""``shh show`` on reports of mode `looks`: levels, sizes, and what the legend says of them."""

import json
import re

import pytest

from dp_transforms.reports import ReportHeader
from tests.cli.shown_reports import NAMES, NAMES_HEADER, legend_of

pytestmark = pytest.mark.usefixtures("terminal")


@pytest.mark.parametrize("ending", ["avro", "jsonl"])
def test_names_have_a_size_and_the_legend_says_how_often_it_is_wrong(show, ending):
    out, err, code = show(NAMES, ending=ending, header=NAMES_HEADER)
    assert (err, code) == ("", 0)
    assert re.search(r"2017-10-01 03:00 +1h +big≥240  new≥12 *$", out, re.MULTILINE)
    assert re.search(r"2017-10-01 04:00 +1h +★old  big  1 gone *$", out, re.MULTILINE)  # at least nobody says nothing
    assert "ε spent" not in out.partition("≥N")[0], "a column that is 2 in every row tells nothing"
    said = " ".join(out.split())
    assert "≥N: at least N users; that any of the run's sizes is wrong has a probability of at most 0.001." in said
    assert "Without ≥N: many users, too few for a number that is safe to state." in said
    assert "ε spent: all of 2 in every window. A user may have spent it; no report tells." in said
    assert "★ new against the window before." in said
    for word in ("estimate", "above", "~N"):
        assert word not in said
    out, _, _ = show(None, "--json", ending=ending)
    found = {"item": "big", "zone": None, "noisy_count": None}
    lines = [json.loads(line)["heavy_hitters"] for line in out.splitlines()]
    assert [[each for each in line if each["item"] == "big"] for line in lines] == [
        [{**found, "level": level, "at_least_users": users, "rank": rank, "change": change}]
        for level, users, rank, change in ((3, 240, 1, None), (1, 0, 2, "same"))
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        *((0.001, "0.001"), (1e-6, "1e-06"), (0.05, "0.05"), (0.99999, "1")),
        *((0.0010001, "0.00101"), (1.2345e-7, "1.24e-07")),  # a probability is never told too small
    ],
)
def test_the_probability_of_a_wrong_size_is_rounded_up(error, said):
    told = float(re.search(r"of at most (\S+)\. ", legend_of(NAMES, plan={"contributions": {"size_error": error}}))[1])
    assert told == float(said)
    assert told >= error


NO_SIZE_ERRORS = [0, 0.0, -0.1, 1, 1.0, 7, True, False, None, "0.001", "\x1b", [0.1], {}, 10**4000, -(10**4000)]


def test_a_header_without_a_probability_makes_no_claim(show):
    no_plans = [{}, *({"contributions": {"size_error": error}} for error in NO_SIZE_ERRORS)]
    no_plans += [{"contributions": looks} for looks in (0, None, "\x1b", [0.1])]
    for plan in no_plans:
        assert "≥N: at least N users; the report does not state how often that is wrong." in legend_of(NAMES, plan=plan)
        assert legend_of(NAMES, plan=plan).startswith(legend_of(NAMES))
    out, err, code = show(NAMES, header=ReportHeader("run-2", "news", "Each user's log.", no_plans[-2]))
    assert (err, code) == ("", 0)
    assert "the report does not state how often that is wrong." in " ".join(out.split())
