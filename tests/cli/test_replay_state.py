"""`shh replay --state`: parts of one run, one command after the other, and what is refused."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from dp_transforms.runs.state_file import StateFile, hold_state
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.nights import DAY, DAYS, START, Nights, day
from tests.helpers.small_runs import SECRET


@pytest.fixture
def nights(tmp_path: pathlib.Path) -> Nights:
    return Nights(tmp_path)


def test_parts_publish_what_the_one_run_publishes(nights: Nights) -> None:
    """A night that is missed is made up for by the next one; one that runs twice does nothing the second time."""
    nights.taken(1)
    nights.taken(3, "1.parquet", "2.parquet")
    before = nights.content()
    again = nights.run(3, "2.parquet", "1.parquet")
    assert again.returncode == 0
    assert "is done" in again.stderr
    assert "nothing was spent" in again.stderr
    assert nights.content() == before
    nights.taken(4)
    nights.taken(6, "4.parquet", "5.parquet", until="")
    found = nights.reports("1.jsonl", "3.jsonl", "4.jsonl", "6.jsonl")
    assert found == nights.expected()
    assert len(found) == DAYS
    assert nights.state.header.closed_through == DAYS
    assert "All windows of the plan are published" in nights.refused(6, "0.parquet", output="more.jsonl", code=3)


def test_a_night_whose_log_never_comes_is_empty(nights: Nights) -> None:
    nights.taken(1)
    nights.taken(3)  # the log of the second day is lost
    nights.taken(6, *(f"{number}.parquet" for number in (3, 4, 5)))
    lost = nights.reports("1.jsonl", "3.jsonl", "6.jsonl")
    assert lost == nights.expected([0, 2, 3, 4, 5])


def test_events_of_other_days_do_not_count_in_a_part(nights: Nights) -> None:
    nights.taken(1, "0.parquet", "1.parquet")
    nights.taken(2, "0.parquet", "1.parquet", "2.parquet")
    assert nights.reports("1.jsonl", "2.jsonl") == [
        report for report in nights.expected(range(2)) if report.window_end <= (START + 2 * DAY) * 10**6
    ]


def test_the_state_is_private_and_holds_no_user(nights: Nights) -> None:
    before = os.umask(0o022)
    try:
        nights.taken(1)
    finally:
        os.umask(before)
    content = (nights.folder / "run.state").read_bytes()
    assert (nights.folder / "run.state").stat().st_mode & 0o777 == 0o600
    assert not any(f"u{user}-0".encode() in content for user in range(0, 40, 2))
    assert SECRET not in content
    header = json.loads(StateFile(nights.folder / "run.state").header.to_json())
    assert header["intent"] is None
    assert len(header["parts"]) == 1


def test_what_does_not_fit_is_refused_with_the_remedy(nights: Nights, tmp_path: pathlib.Path) -> None:
    nights.taken(2, "0.parquet", "1.parquet")
    other = Nights(tmp_path, DAYS, hits=1).plan
    (tmp_path / "other.json").write_text(other.to_json())
    (tmp_path / "plan.json").write_text(nights.plan.to_json())
    (tmp_path / "other.key").write_bytes(bytes(range(64)))
    (tmp_path / "other.key").chmod(0o600)
    assert "of another plan" in nights.refused(3, plan="other.json")
    assert "another noise key" in nights.refused(3, noise_key_file="other.key")
    assert "of the stream 'events', not 'films'" in nights.refused(3, stream="films")
    assert "Leave --run-id out" in nights.refused(3, run_id="mine")
    assert "published already" in nights.refused(1, "0.parquet", code=3)
    assert "published already" in nights.refused(2, "1.parquet", output="again.jsonl", code=3)
    assert "was begun with --user-field 'user' and --item-field 'item'" in nights.refused(
        3, user_field="item", item_field="user"
    )
    assert "lies outside of the plan" in nights.refused(3, until="2026-02-01")
    assert "is not the end of a window. Use 2026-01-03T00:00:00Z or 2026-01-04T00:00:00Z" in nights.refused(
        3, until="2026-01-03T05:00:00Z"
    )
    assert "name the same file" in nights.refused(3, output="x.jsonl", dead_letter="run.state")
    (tmp_path / "3.jsonl").write_text("mine")
    assert "never overwritten" in nights.refused(3)
    (tmp_path / "run.state").chmod(0o640)
    assert "chmod 600" in nights.refused(3, output="three.jsonl")
    (tmp_path / "run.state").chmod(0o600)
    with hold_state(tmp_path / "run.state"):
        assert "another process works on it" in nights.refused(3, output="three.jsonl")
    nights.taken(3, output="three.jsonl")


def test_a_run_id_begins_a_run_only_where_it_is_recorded(nights: Nights) -> None:
    assert "only with a ledger" in nights.refused(1, run_id="mine")


@pytest.mark.parametrize("cut", ["cut", "changed", "empty", "log"])
def test_a_damaged_state_is_refused(nights: Nights, cut: str) -> None:
    nights.taken(1)
    path = nights.folder / "run.state"
    content = path.read_bytes()
    state = StateFile(path)
    cell = max((bytes(state.cell(row)) for row in state.rows), key=len)
    middle = content.index(cell) + len(cell) // 2  # a byte between cells may be one that nobody reads
    damaged = {
        "cut": content[:-1],
        "changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
        "log": (nights.folder / "0.parquet").read_bytes(),
    }[cut]
    path.write_bytes(damaged)
    assert "damaged" in nights.refused(2)


def test_a_state_that_is_a_link_or_in_no_folder_is_refused(nights: Nights) -> None:
    (nights.folder / "dangling").symlink_to("nowhere")
    assert "is a link" in nights.refused(1, state="dangling")
    assert "does not exist" in nights.refused(1, state="nowhere/run.state")
    assert "must be a path" in nights.refused(1, state="gs://bucket/run.state")
    assert "--until needs --state" in nights.refused(1, state="")


def test_counts_cannot_be_paid_in_parts(nights: Nights) -> None:
    plan = looks_plan_of(nights.plan.schedule, counts_for=2)
    (nights.folder / "counts.json").write_text(plan.to_json())
    assert "--state cannot be used with a plan that has --counts-for" in nights.refused(1, plan="counts.json")


def test_a_part_that_fails_takes_its_intent_back(nights: Nights) -> None:
    """A log that cannot be read: nothing is published, and the corrected log may be replayed."""
    nights.taken(1)
    good = (nights.folder / "1.parquet").read_bytes()
    before = nights.state.fingerprint
    rows = "".join(json.dumps({"user": 1.5, "item": "i", "timestamp": day(1)}) + "\n" for _ in range(9))
    (nights.folder / "bad.jsonl").write_text(rows)
    done = nights.run(2, "bad.jsonl")
    assert done.returncode == 1
    assert "--max-bad-fraction" in done.stderr
    assert nights.state.header.intent is None
    assert nights.state.fingerprint == before
    assert (nights.folder / "1.parquet").read_bytes() == good
    nights.taken(2)
