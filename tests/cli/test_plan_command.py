"""``shh plan`` by its command line: a sentence, a table of what is found, the plan in a file, and what is refused."""

import json
import re

import pytest
from click.testing import CliRunner

from dp_transforms.cli.plan import command
from dp_transforms.core.public_items import PublicItems
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import words_of_mode
from tests.helpers.shh_here import shh

HOURLY = ["--window", "1h", "--start", "2017-10-01T03:00:00Z", "--end", "2017-10-17T03:00:00Z"]
BUDGET = ["--epsilon", "2", "--delta", "1e-9"]
HITS = ["--charge", "hits"]
LOOKS = ["--charge", "contributions"]
SMALL = ["--usual-contributions", "1", "10", "--most-contributions", "20"]  # quicker than the default


def _run(*words):
    return CliRunner().invoke(command, list(words))


def _planned(*words):
    """What is printed, and the same without line ends."""
    result = _run(*BUDGET, *HOURLY, *words)
    assert result.exit_code == 0, result.output
    return result.stdout, " ".join(result.stdout.split())


def _record(*words):
    return json.loads(_planned(*words, "--json")[0])


def _numbers(line):
    return [int(cell.replace(",", "")) for cell in line.strip("│").split("│")]


def test_it_opens_with_a_sentence_and_a_table_of_what_is_found():
    sentence, _, rest = _planned("stream")[0].partition("\n")
    assert sentence == (
        "An hour's item (a story, a search, an error) is found from about 101 users on, if each of them has 30 items in"
        " these 16 days; from 501 if each has 1,000."
    )
    rows = {row[0]: row[1:] for row in map(_numbers, [line for line in rest.splitlines() if line.startswith("│")])}
    assert rows == {1: [36, 27], 10: [68, 51], 100: [170, 126], 1000: [501, 372]}
    assert "Contributions are tested in one round: a stream cannot go over its windows again." in rest.partition("│")[0]
    for part in ("contributions, for users with 1 to 1,000", "at most 3,000 of a user", "for 168 windows after a name"):
        assert part in rest
    assert "(2, 1e-09)-differentially private" in rest


def test_the_numbers_in_json():
    record = _record(*LOOKS, "--usual-contributions", "1", "4", "--most-contributions", "5", "stream")
    plan = Plan.from_json(json.dumps(record["chosen"]))
    assert plan.contributions is not None
    assert (plan.paid_contributions.usual_tests, plan.paid_contributions.most_tests, plan.followed_for) == (
        (1, 4),
        5,
        168,
    )
    found = {str(looks): plan.found_from(looks) for looks in (1, 10, 100, 1000)}
    assert record["found_from"]["new_item"] == found
    assert record["summary"].startswith(
        f"An hour's item (a story, a search, an error) is found from about {plan.found_from(2)}"
    )
    assert record["plans"] == []
    assert record["fingerprint"] == plan.fingerprint


def test_the_chosen_plan_is_that_of_the_file_and_of_calibrate(tmp_path):
    output = tmp_path / "plan.json"
    record = _record(
        *HITS, "--hits-per-user", "7", "--max-items-per-user", "2", "--slide", "30m", "--output", str(output)
    )
    plan = Plan.from_json(output.read_text())
    schedule = WindowSchedule(plan.schedule.start_seconds, plan.schedule.end_seconds, 3600, 1800)
    assert plan == Plan.for_hits(epsilon=2, delta=1e-9, schedule=schedule, hits_per_user=7, max_items_per_user=2)
    assert Plan.from_json(json.dumps(record["chosen"])) == plan
    (chosen,) = [row for row in record["plans"] if row["chosen"]]
    assert (chosen["hits_per_user"], chosen["max_items_per_user"]) == (7, 2)
    assert chosen["smallest_detectable"] == plan.smallest_detectable(0.95)
    assert {(row["charge"], row["counts"]) for row in record["plans"]} == {("hits", False)}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_plans_of_kms21_are_for_python_alone(tmp_path):
    assert _run(*BUDGET, *HOURLY, "--charge", "kms21").exit_code == 2
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=WindowSchedule(0, 7200, 3600, 3600), noise="printed")
    (tmp_path / "plan.json").write_text(plan.to_json())
    done = shh("explain", "--plan", "plan.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "plans with printed noise run in Python alone" in done.stderr


@pytest.mark.parametrize("mode", ["hits", "looks"])
def test_a_known_domain_lowers_the_threshold_and_shows_its_price(tmp_path, mode):
    items, output = tmp_path / "items.txt", tmp_path / "plan.json"
    items.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(f"item {n}" for n in range(1000)).encode() + b"\n\n\nitem 3\n")
    words = [*words_of_mode(mode), "--public-items", str(items), *(SMALL if mode == "looks" else ())]
    _, text = _planned(*words, "--output", str(output))
    assert re.search(r"1,000 items; about 0\.0(49|5) reports of items that nobody holds", text)
    plan = Plan.from_json(output.read_text())
    assert (plan.domain_size, plan.delta_open) == (1000, 0)
    assert plan.public_items.fingerprint == PublicItems.of_ids([f"item {n}" for n in range(1000)]).fingerprint
    if mode == "looks":
        return
    assert plan.threshold == 259
    assert "delta, items of one user 0" in text
    record = _record(*words)
    assert set(record["found_from"]) == {"hits"}
    assert {row["expected_false_reports"] <= 0.05 for row in record["plans"]} == {True}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hits-per-user", "0"], "--hits-per-user must be a whole number >= 1, got 0."),
        (["--epsilon", "nan"], "--epsilon must be > 0"),
        (["--delta", "1"], "--delta must lie strictly between 0 and 1"),
        (["--epsilon", "0.0001"], "Raise epsilon or delta, or lower --hits-per-user"),
        (
            [*LOOKS, "--usual-contributions", "0", "5"],
            "each of --usual-contributions must be a whole number in 1 .. 3000",
        ),
        ([*LOOKS, "--epsilon", "1e-9"], "cannot pay for 30000 contributions of a user"),
    ],
)
def test_errors_name_the_flag(words, message):
    result = _run(*BUDGET, *HOURLY, *HITS, *words)
    assert isinstance(result.exception, UserError), result.output
    assert message in str(result.exception)
    assert "_" not in str(result.exception)
    assert "\n" not in str(result.exception)
