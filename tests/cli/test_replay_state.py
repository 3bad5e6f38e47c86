"""`shh replay --state`: parts of one run, one command after the other. In detail: test_state_part.py."""

import shutil

import pytest

from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.state_part import StatePart
from tests.cli.stored_states import FOLDER, PLANS, go_on
from tests.helpers.contributions_plans import contributions_plan_of
from tests.helpers.replay_logs import START, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

DAY = 86_400


def day(number):
    return format_utc((START + DAY * number) * MICROS_PER_SECOND)


def rows_of(number):
    """(user, item, seconds) of a day: two items of many users, and some of few. Half of the users come back daily."""
    rows = []
    for user in range(40):
        name = f"u{user}" if user % 2 else f"u{user}-{number}"
        rows += [(name, item, START + DAY * number + 7 * user) for item in (f"top-{number}", f"odd-{user % 9}")]
    return rows


class Nights:
    """A folder with a plan, a key and the log of each day."""

    def __init__(self, folder, days=3):
        self.folder = folder
        plan = contributions_plan_of(WindowSchedule(START, START + DAY * days, DAY, DAY), forget_after=2, most_tests=12)
        (folder / "plan.json").write_text(plan.to_json())
        key_file(folder)
        for number in range(days):
            write_parquet(folder / f"{number}.parquet", rows_of(number))

    def run(self, end, *logs, **options):
        """The command of the night after which the days before ``end`` are published."""
        given = {"plan": "plan.json", "noise-key-file": "noise.key", "state": "run.state", "until": day(end)}
        given |= {"output": f"{end}.jsonl"} | {name.replace("_", "-"): value for name, value in options.items()}
        flags = [word for name, value in given.items() for word in (f"--{name}", value)]
        return shh("replay", *(logs or [f"{end - 1}.parquet"]), *flags, cwd=self.folder)

    def taken(self, end, *logs, **options):
        done = self.run(end, *logs, **options)
        assert done.returncode == 0, done.stderr

    def refused(self, end, *logs, code=1, **options):
        """Says why; nothing is changed."""
        before = self.content()
        done = self.run(end, *logs, **options)
        assert (done.returncode, self.content()) == (code, before)
        (error,) = [line for line in done.stderr.splitlines() if ": warning: " not in line]  # of a plan for tests
        return error

    def content(self):
        files = (path for path in self.folder.iterdir() if path.suffix != ".lock")
        return {path.name: path.read_bytes() for path in files}


@pytest.fixture
def nights(tmp_path):
    return Nights(tmp_path)


def test_what_does_not_fit_is_refused_with_the_remedy(nights):
    """Files, keys and locks that do not: tests/runs."""
    nights.taken(2, "0.parquet", "1.parquet")
    for options, said in (
        ({"user_field": "item", "item_field": "user"}, "was used before with another user field"),
        ({"until": "2026-02-01"}, "--until must be the end of a window, got 2026-02-01T00:00:00Z. 2026-01-01"),
        ({"until": "2026-01-03T05:00:00Z"}, "must be the end of a window, got 2026-01-03T05:00:00Z."),
        ({"state": nights.folder / "none" / "run.state"}, f"--state {nights.folder}/none/run.state"),
    ):
        assert said in nights.refused(3, **options)
    assert "published already" in nights.refused(2, "1.parquet", output="again.jsonl", code=3)
    nights.taken(3)


def test_a_part_that_failed_behind_its_list_of_bad_rows_finds_it_there(nights, monkeypatch):
    """It is of the same input, so it is the same."""

    def fail(*words):
        raise UserError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(StatePart, "seal", fail)
        assert "No space left" in nights.run(1, dead_letter="bad.jsonl").stderr
    assert (nights.folder / "bad.jsonl").exists()
    nights.taken(1, dead_letter="bad.jsonl")


@pytest.mark.parametrize("name", PLANS)
def test_a_run_that_another_release_began_goes_on(name, tmp_path):
    assert go_on(name, tmp_path).read_text() == (FOLDER / f"{name}.jsonl").read_text()


ITEMS = 20


def counted(folder, number, *, with_one_more=False):
    """The log of a day in which each of some items has 200 users, and perhaps one user more has the first of them."""
    rows = [(f"u{user}", f"i{item}", START + DAY * number + user) for user in range(200) for item in range(ITEMS)]
    name = f"{number}-more.parquet" if with_one_more else f"{number}.parquet"
    write_parquet(folder / name, [*rows, *([("one more", "i0", START + DAY * number)] if with_one_more else [])])
    return name


def test_a_state_that_was_restored_draws_with_noise_of_its_own_whatever_the_log(nights, tmp_path):
    """A state and its ledger that are both not the newest: nothing can tell. Had two parts equal noise because their
    logs are equal, two reports would say that they are: that a user who is in none of both is not in one alone. And
    two logs that differ would have reports that differ at that user's items.

    Counts show equal noise: with fresh noise two of the same users are the same with a probability below 0.3, and 19
    of them below 1e-9.
    """
    schedule = WindowSchedule(START, START + 3 * DAY, DAY, DAY)
    budget = {"epsilon": 40, "delta": 1e-3, "hits_per_user": 60, "max_items_per_user": ITEMS}
    (tmp_path / "plan.json").write_text(Plan.for_hits(schedule=schedule, counts=True, **budget).to_json())

    def counts_of(log, output):
        nights.taken(2, log, output=output)
        (report,) = read_report_file(tmp_path / output)[1]
        return {hitter.item: hitter.noisy_count for hitter in report.heavy_hitters}

    nights.taken(1, counted(tmp_path, 0))
    files = ("run.state", "run.state.ledger")
    older = [(tmp_path / name, shutil.copy(tmp_path / name, tmp_path / f"older-{name}")) for name in files]
    first = counts_of(counted(tmp_path, 1), "2.jsonl")
    assert len(first) == ITEMS
    for output, log in (("again.jsonl", "1.parquet"), ("other.jsonl", counted(tmp_path, 1, with_one_more=True))):
        for path, copy in older:
            shutil.copy(copy, path)
        other = counts_of(log, output)
        assert other.keys() == first.keys()
        assert sum(first[item] == other[item] for item in first) < ITEMS - 1
