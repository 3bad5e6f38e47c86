"""``shh plan`` by its command line: a sentence, a table of what is found, the plan in a file, and what is refused."""

import json
import re

import pytest

from dp_transforms.core.public_items import PublicItems
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.shh_here import shh

BUDGET = ["--epsilon", "2", "--delta", "1e-9", "--window", "1h"]
HOURLY = [*BUDGET, "--start", "2017-10-01T03:00:00Z", "--end", "2017-10-17T03:00:00Z"]
HITS = ["--charge", "hits"]


def planned(*words):
    result = shh("plan", *HOURLY, *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_least_users_are_in_the_plan_and_in_what_is_found():
    found = {}
    for words in ([], ["--least-users", "200"]):
        record = json.loads(planned("stream", "--most-contributions", "20", *words, "--json"))
        found[record["chosen"]["contributions"].get("least_users")] = record["found_from"]["new_item"]["10"]
    assert found[200] > found[None]
    assert "at least 200 of each item, in steps of" in planned("stream", "--most-contributions", "20", *words)
    few, many = (re.findall(r"found from about ([\d,]+)", planned("replay", "--least-users", n)) for n in ("5", "1000"))
    assert [len(number) for number in (*few, *many)] == [3, 3, 5, 5], "who is in a block alone is not named"


def test_the_chosen_plan_is_that_of_the_file_and_of_python(tmp_path):
    output = tmp_path / "plan.json"
    words = ["--hits-per-user", "7", "--max-items-per-user", "2", "--slide", "30m", "--output", str(output)]
    record = json.loads(planned(*HITS, *words, "--json"))
    plan = Plan.from_json(output.read_text())
    schedule = WindowSchedule(plan.schedule.start_seconds, plan.schedule.end_seconds, 3600, 1800)
    assert plan == Plan.for_hits(epsilon=2, delta=1e-9, schedule=schedule, hits_per_user=7, max_items_per_user=2)
    assert Plan.from_json(json.dumps(record["chosen"])) == plan
    assert record["fingerprint"] == plan.fingerprint
    (chosen,) = [row for row in record["plans"] if row["chosen"]]
    assert (chosen["hits_per_user"], chosen["max_items_per_user"]) == (7, 2)
    assert chosen["smallest_detectable"] == plan.smallest_detectable(0.95)


def test_plans_with_printed_noise_are_for_python_alone(tmp_path):
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=WindowSchedule(0, 7200, 3600, 3600), noise="printed")
    (tmp_path / "plan.json").write_text(plan.to_json())
    done = shh("explain", "--plan", "plan.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "plans with printed noise run in Python alone" in done.stderr


def test_public_items_lower_the_threshold_and_show_their_price(tmp_path):
    items, output = tmp_path / "items.txt", tmp_path / "plan.json"
    items.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(f"item {n}" for n in range(1000)).encode() + b"\n\n\nitem 3\n")
    text = " ".join(planned(*HITS, "--public-items", str(items), "--output", str(output)).split())
    assert re.search(r"1,000 items; about 0\.0(49|5) reports of items that nobody holds", text)
    assert "delta, items of one user 0" in text
    plan = Plan.from_json(output.read_text())
    assert (plan.public_item_count, plan.delta_open, plan.threshold) == (1000, 0, 259)
    assert plan.public_items.fingerprint == PublicItems.of_ids([f"item {n}" for n in range(1000)]).fingerprint


def test_public_items_may_stand_beside_open_ones(tmp_path):
    (tmp_path / "items.txt").write_text("pear\napple\n")
    beside = ["--public-items", str(tmp_path / "items.txt"), "--also-open"]
    text = " ".join(planned("stream", *beside).split())
    assert re.search(r"public items 2 items; about 0\.00\d+ reports .* in the whole run; other items count, too", text)
    assert "for 168 windows after a name" in text
    assert "first the items of 24 hours together" in planned(*beside)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*HITS, "--hits-per-user", "0"], "--hits-per-user must be a whole number >= 1, got 0."),
        (["--epsilon", "nan"], "--epsilon must be a finite number"),
        ([*HITS, "--epsilon", "0.0001"], "Raise epsilon or delta, or lower --hits-per-user"),
        (["--usual-contributions", "0", "5"], "each of --usual-contributions must be a whole number in 1 .. 3000"),
        (["--least-users", "4"], "--least-users must be a whole number in 5 .. 1000000000, got 4."),
        (
            [*HITS, "--also-open"],
            "--also-open cannot be used with charge 'hits': it belongs to contributions. Leave it out.",
        ),
        (["--also-open"], "--also-open cannot be used without public items: all items are open. Leave it out."),
    ],
)
def test_errors_name_the_flag(words, message):
    result = shh("plan", *HOURLY, *words)
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr
    assert "_" not in result.stderr
