"""What ``shh plan`` says first: a sentence, a table of all methods, a chart, and two plans side by side."""

from __future__ import annotations

import json
import pathlib
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from dp_transforms.cli.plan import command
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_comparison import (
    gaussian_histograms_found_from,
    partition_selection_found_from,
    weighted_gaussian_found_from,
)
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.views.plan_words import in_a_sentence
from tests.helpers.calibrated_plans import calibrated_plan

HOURLY = ["--window", "1h", "--start", "2017-10-01T03:00:00Z", "--end", "2017-10-17T03:00:00Z"]
BUDGET = ["--epsilon", "2", "--delta", "1e-9"]
LABELS = ["--mode", "hits"]
LOOKS = ["--mode", "looks"]
SMALL = ["--usual-looks", "1", "10", "--most-looks", "20"]  # quicker than the default
DAY = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)


def _run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_a_table_to_decide_from() -> None:
    result = _run(*BUDGET, *HOURLY, *LABELS)
    assert result.exit_code == 0, result.output
    marked = [line for line in result.stdout.splitlines() if "│ >" in line]
    assert len(marked) == 1
    for part in ("hits", "3", "17.6", "490", "530"):
        assert part in marked[0]
    assert "hits-with-counts" in result.stdout
    assert "Plan" not in result.stdout
    assert "(2, 1e-09)-differentially private" in " ".join(result.stdout.split())


def _numbers(line: str) -> list[int]:
    return [int(cell.replace(",", "")) for cell in line.strip("│").split("│")]


def test_it_opens_with_a_sentence_and_a_table_of_all_methods() -> None:
    result = _run(*BUDGET, *HOURLY)
    assert result.exit_code == 0, result.output
    sentence, _, rest = result.stdout.partition("\n")
    assert sentence == (
        "An hour's item (a story, a search, an error) is found from about 101 users on, if each of them has 30 items in"
        " these 16 days; from 501 if each has 1,000."
    )
    rows = {row[0]: row[1:] for row in map(_numbers, [line for line in rest.splitlines() if line.startswith("│")])}
    assert rows == {
        1: [36, 27, 32, 530, 671, 13, 26, 867],
        10: [68, 51, 68, 530, 671, 76, 82, 867],
        100: [170, 126, 156, 530, 671, 247, 260, 867],
        1000: [501, 372, 312, 530, 671, 806, 820, 867],
    }
    assert "Looks alone are paid for: most users have 1 to 1,000 items." in rest.partition("│")[0]
    for part in ("looks, for users with 1 to 1,000 pairs", "at most 3,000 of a user", "for 168 windows after a name"):
        assert part in rest
    assert "(2, 1e-09)-differentially private" in rest


def test_labels_have_the_same_table_above_their_choices() -> None:
    result = _run(*BUDGET, *HOURLY, "--mode", "hits")
    sentence, _, rest = result.stdout.partition("\n")
    assert sentence.startswith("An hour's item (a story, a search, an error) is found from about 530 users on, however")
    assert "16 days; a user no longer counts once all 3 hits are used up." in sentence
    first = next(line for line in rest.splitlines() if line.startswith("│"))
    assert _numbers(first) == [1, 36, 27, 530, 671, 13, 26, 867]


def test_the_numbers_in_json() -> None:
    result = _run(
        *BUDGET, *HOURLY, *LOOKS, "--usual-looks", "1", "4", "--most-looks", "5", "--no-known-items", "--json"
    )
    record = json.loads(result.stdout)
    plan = Plan.from_json(json.dumps(record["chosen"]))
    assert plan.looks is not None
    assert (plan.paid_looks.usual_looks, plan.paid_looks.most_looks, plan.known_for) == ((1, 4), 5, 0)
    methods = {"looks", "hits", "hits-with-counts", "pipelinedp", "weighted_gaussian", "gaussian_histograms"}
    assert set(record["found_from"]) == methods
    for looks in (1, 10, 100, 1000):
        assert record["found_from"]["looks"][str(looks)] == plan.found_from(looks)
        assert record["found_from"]["weighted_gaussian"][str(looks)] == weighted_gaussian_found_from(2, 1e-9, looks, 5)
        assert record["found_from"]["pipelinedp"][str(looks)] == partition_selection_found_from(2, 1e-9, looks).users
    assert set(record["found_from"]["gaussian_histograms"].values()) == {gaussian_histograms_found_from(2, 1e-9, 1152)}
    assert record["summary"].startswith(
        f"An hour's item (a story, a search, an error) is found from about {plan.found_from(2)}"
    )
    assert record["plans"] == []
    assert record["fingerprint"] == plan.fingerprint


def test_a_known_domain_has_no_other_methods_beside_it(tmp_path: pathlib.Path) -> None:
    items = tmp_path / "items.txt"
    items.write_text("a\nb\nc\n")
    words = [*LOOKS, *SMALL, "--domain-file", str(items), "--json"]
    record = json.loads(_run(*BUDGET, *HOURLY, *words).stdout)
    assert set(record["found_from"]) == {"looks", "hits", "hits-with-counts"}
    assert record["chosen"]["domain"]["size"] == 3
    result = _run(*BUDGET, *HOURLY, *words[:-1])
    assert "3 items; about 0.05 reports of items that nobody holds" in " ".join(result.stdout.split())
    assert "PipelineDP" not in result.stdout


def test_a_chart_draws_users_against_activity(tmp_path: pathlib.Path) -> None:
    chart = tmp_path / "plan.svg"
    result = _run(*BUDGET, *HOURLY, *LOOKS, *SMALL, "--chart", str(chart))
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"Chart written to {chart}.\n")
    root = ElementTree.fromstring(chart.read_text())
    texts = [element.text for element in root.iter() if element.text]
    for name in ("looks, new item", "looks, known item", "hits", "hits-with-counts", "PipelineDP, best cap"):
        assert name in texts
    assert "pairs (window, item) of each holder in the run" in texts
    before = chart.read_text()
    again = _run(*BUDGET, *HOURLY, *LOOKS, *SMALL, "--chart", str(chart))
    assert isinstance(again.exception, UserError)
    assert str(again.exception).startswith(f"--chart {chart} exists")
    assert chart.read_text() == before


def test_two_plans_side_by_side(tmp_path: pathlib.Path) -> None:
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    plans = [
        calibrated_plan(),
        Plan.calibrate(epsilon=1, delta=1e-8, schedule=DAY, mode="looks", most_looks=100),
    ]
    for path, plan in zip(paths, plans, strict=True):
        pathlib.Path(path).write_text(plan.to_json())
    result = _run("--compare", *paths)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for part in (
        "A: ",
        "B: ",
        "hits │ looks",
        "2 │ 1 ",
        "384 │ 24",
        "from 530 users on",
        "found from about 530 users",
    ):
        assert part in text
    assert f"from {plans[1].found_from(10)} users on" in text
    record = json.loads(_run("--compare", *paths, "--json").stdout)
    assert [each["file"] for each in record["compared"]] == paths
    assert [Plan.from_json(json.dumps(each["plan"])) for each in record["compared"]] == plans
    assert set(record["compared"][0]["found_from"]) == {"hits"}
    assert record["compared"][1]["found_from"]["looks"]["10"] == plans[1].found_from(10)
    chart = tmp_path / "both.svg"
    assert _run("--compare", *paths, "--chart", str(chart)).exit_code == 0
    assert "A: hits" in chart.read_text()
    assert "B: looks, new item" in chart.read_text()
    missing = _run("--compare", paths[0], str(tmp_path / "no.json"))
    assert isinstance(missing.exception, UserError)
    assert str(missing.exception).startswith(f"--compare {tmp_path / 'no.json'} cannot be read")


@pytest.mark.parametrize(
    ("seconds", "length", "said"),
    [
        (
            3600,
            384 * 3600,
            "users on, if each of them has 30 items in these 16 days; from 501 if each has 1,000.",
        ),
        (
            86_400,
            36 * 3600,
            "A day's item (a story, a search, an error) is found from about 101 users on, if each of them",
        ),
        (900, 86_400, "An item of 15 minutes (a story,"),
        (7200, 86_400, "in these 24 hours;"),
        (604_800, 14 * 604_800, "A week's item"),
        (1, 119, "A second's item"),
    ],
)
def test_the_sentence_names_windows_and_runs_in_plain_units(seconds: int, length: int, said: str) -> None:
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=WindowSchedule(0, length, seconds, seconds), mode="looks")
    assert said in in_a_sentence(plan)
