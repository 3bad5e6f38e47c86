"""`shh replay --state`: parts of one run, one command after the other. In detail: test_state_part.py."""

import shutil
import signal

import pytest

from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.state_file import StateFile, hold_state
from dp_transforms.runs.state_part import StatePart
from tests.helpers import shh_process
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.replay_logs import START, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file
from tests.helpers.stored_states import FOLDER, PLANS, go_on

# Killed when the report has its name, and the state has not.
KILLED_THEN = """
import os, signal
from dp_transforms.runs import state_part
publish = state_part.write_output
def and_die(*arguments):
    publish(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
state_part.write_output = and_die
from dp_transforms.cli.main import main
main()
"""
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
    """A folder with a plan, a key and the log of each day. The current folder of all commands."""

    def __init__(self, folder, days=5):
        self.folder = folder
        plan = looks_plan_of(WindowSchedule(START, START + DAY * days, DAY, DAY), forget_after=2, most_tests=12)
        (folder / "plan.json").write_text(plan.to_json())
        key_file(folder)
        for number in range(days):
            write_parquet(folder / f"{number}.parquet", rows_of(number))

    def words(self, end, *logs, **options):
        """The command of the night after which the days before ``end`` are published."""
        given = {"plan": "plan.json", "noise-key-file": "noise.key", "state": "run.state", "until": day(end)}
        given |= {"output": f"{end}.jsonl"} | {name.replace("_", "-"): value for name, value in options.items()}
        flags = [word for name, value in given.items() if value for word in (f"--{name}", value)]
        return ["replay", *(logs or [f"{end - 1}.parquet"]), *flags]

    def run(self, end, *logs, **options):
        return shh(*self.words(end, *logs, **options), cwd=self.folder)

    def taken(self, end, *logs, **options):
        done = self.run(end, *logs, **options)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self, end, *logs, code=1, **options):
        """Says why; nothing is changed."""
        before = self.content(), self.parts
        done = self.run(end, *logs, **options)
        assert done.returncode == code
        (error,) = [line for line in done.stderr.splitlines() if ": warning: " not in line]  # of a plan for tests
        assert error.startswith("shh: ")
        assert (self.content(), self.parts) == before
        return error

    def content(self):
        return {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if path.is_file() and not path.name.endswith((".lock", ".ledger"))
        }

    @property
    def parts(self):
        """Of the run that was begun last, by its own ledger."""
        return Ledger(self.folder / "run.state.ledger").runs()[-1][1]

    def report(self, output):
        header, reports = read_report_file(self.folder / output)
        return header, list(reports)


@pytest.fixture
def nights(tmp_path):
    return Nights(tmp_path)


def test_nights_make_one_run(nights):
    """One is missed, and the next one makes up for it; one runs twice; one is killed in the middle. Each window is
    published once, of one run."""
    missed, twice, killed, days = 2, 3, 4, 5
    named = []
    for end in range(1, days + 1):
        if end == missed:
            continue
        logs = [f"{end - 1}.parquet", f"{end - 2}.parquet"] if end == missed + 1 else []
        if end == killed:
            ended = shh_process.run_python("-c", KILLED_THEN, *nights.words(end, *logs), cwd=nights.folder)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            assert nights.parts[-1].is_open
            published = (nights.folder / f"{end}.jsonl").read_bytes()
        nights.taken(end, *logs, until="" if end == days else day(end))
        if end == killed:
            assert (nights.folder / f"{end}.jsonl").read_bytes() == published
        if end == twice:
            before, again = nights.content(), nights.taken(end, *reversed(logs))
            assert "is done" in again
            assert "nothing was spent" in again
            assert nights.content() == before
        header, reports = nights.report(f"{end}.jsonl")
        assert header.run_id == StateFile(nights.folder / "run.state").header.run_id
        named += [(each.window_start // MICROS_PER_SECOND - START, hit.item) for each in reports for hit in each[3]]
    held = [(at, item) for at, item in named if item == f"top-{at // DAY}"]  # noise alone may name a followed one
    assert held == [(DAY * number, f"top-{number}") for number in range(days)]
    assert [(part.first_window, part.end_window) for part in nights.parts] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert not [path for path in nights.folder.iterdir() if path.name.endswith((".partial", ".drawn"))]
    assert "are published already" in nights.refused(days, "0.parquet", output="more.jsonl", code=3)


def test_what_does_not_fit_is_refused_with_the_remedy(nights, tmp_path):
    nights.taken(2, "0.parquet", "1.parquet")
    (tmp_path / "other.key").write_bytes(bytes(range(64)))
    (tmp_path / "other.key").chmod(0o600)
    (tmp_path / "mine.jsonl").write_text("mine")
    for options, said in (
        ({"noise_key_file": "other.key"}, "is not sealed with this noise key"),
        ({"user_field": "item", "item_field": "user"}, "was used before with another user field"),
        ({"until": "2026-02-01"}, "--until must be the end of a window, got 2026-02-01T00:00:00Z. 2026-01-01"),
        ({"until": "2026-01-03T05:00:00Z"}, "must be the end of a window, got 2026-01-03T05:00:00Z."),
        ({"dead_letter": "run.state"}, "name the same file"),
        ({"output": "mine.jsonl"}, "never overwritten"),
    ):
        assert said in nights.refused(3, **options)
    assert "published already" in nights.refused(2, "1.parquet", output="again.jsonl", code=3)
    (tmp_path / "run.state").chmod(0o640)
    assert "chmod 600" in nights.refused(3)
    (tmp_path / "run.state").chmod(0o600)
    with hold_state(tmp_path / "run.state"):
        assert "it cannot be locked" in nights.refused(3)
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
        (report,) = nights.report(output)[1]
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
