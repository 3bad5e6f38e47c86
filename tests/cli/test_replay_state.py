"""`shh replay --state`: parts of one run, one command after the other, what is refused, and kills anywhere, which the
same command repairs."""

import dataclasses
import os
import pathlib
import shutil
import signal
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dp_transforms.cli import state_part
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Part
from dp_transforms.runs.state_file import StateFile, hold_state
from tests.helpers import shh_process
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.replay_logs import START, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import SECRET, key_file, settings_of
from tests.helpers.stored_states import FOLDER, PLANS, go_on
from tests.reference.budgets import stream_weights
from tests.reference.contributions import oracle_names, reports_of
from tests.reference.log import Event


class KeysOfParts:
    """Identities and choices are those of the run. of_parts: the first window after each part, and its keys."""

    def __init__(self, of_parts: Sequence[tuple[int, StreamKeys]]) -> None:
        self._of_parts = of_parts

    def __getattr__(self, name: str) -> Any:
        assert name in ("hash_users", "hash_items", "payment_order", "widen_holders"), name
        return getattr(self._of_parts[0][1], name)

    def window_uniforms(self) -> Any:
        drawn = [(end, keys.window_uniforms()) for end, keys in self._of_parts]

        def of_window(windows: Any, hashes: Any, digests: Any) -> Any:
            (window,) = np.unique(windows).tolist()
            uniforms = next((uniforms for end, uniforms in drawn if window < end), drawn[-1][1])
            return uniforms(windows, hashes, digests)

        return of_window


def expected_of_parts(plan: Plan, log: Iterable[Event], run_id: str, parts: Sequence[Part]) -> list[WindowReport]:
    """What the parts publish together, by the rule of a stream. The log may have more than they were given."""
    settings = settings_of(plan, run_id=run_id)
    ends = [(part.end_window, dataclasses.replace(settings, part=part.nonce)) for part in parts]
    keys: Any = KeysOfParts([(end, of_part.stream_keys(SECRET)) for end, of_part in ends])
    return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys), settings)


# Kills itself before or after the n-th call that changes what is on the disk: files appear, are synced, get their name.
# The nonce of a later part comes last.
KILLED = """
import os, sys
from tests.helpers.dying_programs import DyingProgram
program = DyingProgram()
program.dies_at(os, "replace", "link", "fsync", "mkdir", "unlink")
from dp_transforms.cli import state_part
from dp_transforms.cli.main import main
nonce = sys.argv.pop()
state_part.fresh_nonce = lambda: nonce
main()
"""
# Killed when the report has its name, and the state has not.
KILLED_THEN = """
import os, signal
from dp_transforms.cli import state_part
publish = state_part.write_output
def and_die(*arguments):
    publish(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
state_part.write_output = and_die
from dp_transforms.cli.main import main
main()
"""


DAY = 86_400
DAYS = 6


def day(number):
    return format_utc((START + DAY * number) * MICROS_PER_SECOND)


def rows_of(number):
    """(user, item, seconds) of a day: two items of many users, and some of few. Half of the users come back daily."""
    rows = []
    for user in range(40):
        name = f"u{user}" if user % 2 else f"u{user}-{number}"
        rows += [(name, item, START + DAY * number + 7 * user) for item in (f"top-{number // 2}", f"odd-{user % 9}")]
    return rows


class Nights:
    """A folder with a plan, a key and the log of each day. The current folder of all commands."""

    def __init__(self, folder, days=DAYS):
        self.folder = folder
        schedule = WindowSchedule(START, START + DAY * days, DAY, DAY)
        self.plan = looks_plan_of(schedule, forget_after=2, most_tests=12)
        (folder / "plan.json").write_text(self.plan.to_json())
        key_file(folder)
        for number in range(days):
            write_parquet(folder / f"{number}.parquet", rows_of(number))

    def keep(self):
        for ending in ("", ".ledger"):
            shutil.copy(self.folder / f"run.state{ending}", self.folder / f"older.state{ending}")

    def bring_back(self):
        for ending in ("", ".ledger"):
            shutil.copy(self.folder / f"older.state{ending}", self.folder / f"run.state{ending}")

    def words(self, end, *logs, output=None, **options):
        """The command of the night after which the days before ``end`` are published."""
        given = {"plan": "plan.json", "noise-key-file": "noise.key", "state": "run.state", "until": day(end)}
        given["output"] = output or f"{end}.jsonl"
        given |= {name.replace("_", "-"): value for name, value in options.items()}
        flags = [word for name, value in given.items() if value for word in (f"--{name}", value)]
        return ["replay", *(logs or [f"{end - 1}.parquet"]), *flags]

    def run(self, end, *logs, **options):
        return shh(*self.words(end, *logs, **options), cwd=self.folder)

    def taken(self, end, *logs, **options):
        done = self.run(end, *logs, **options)
        assert done.returncode == 0, done.stderr

    def refused(self, end, *logs, code=1, **options):
        """Says why; nothing is changed."""
        before = self.content(), self.parts
        done = self.run(end, *logs, **options)
        assert done.returncode == code
        errors = [line for line in done.stderr.splitlines() if ": warning: " not in line]  # of a plan for tests
        assert len(errors) == 1, done.stderr
        assert errors[0].startswith("shh: ")
        assert (self.content(), self.parts) == before
        return errors[0]

    def content(self):
        return {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if path.is_file() and not path.name.endswith((".lock", ".ledger"))
        }

    @property
    def state(self):
        return StateFile(self.folder / "run.state")

    @property
    def parts(self):
        """Of the run that was begun last, by its own ledger."""
        return Ledger(self.folder / "run.state.ledger").runs()[-1][1]

    @property
    def is_begun(self):
        return self.parts[-1].is_open and self.parts[-1].may_be_published

    def reports(self, *outputs):
        return [report for output in outputs for report in read_report_file(self.folder / output)[1]]

    def expected(self, days=None):
        """What the one run publishes of these days' events, by the rule of a stream, with the noise of each part; its
        id is that of the state."""
        numbers = range(self.plan.schedule.horizon) if days is None else days
        log = [(user, item, time * 10**6) for number in numbers for user, item, time in rows_of(number)]
        return expected_of_parts(self.plan, log, self.state.header.run_id, self.parts)


@pytest.fixture
def nights(tmp_path):
    return Nights(tmp_path)


@pytest.mark.parametrize(
    ("days", "missed", "twice", "killed"), [(5, 2, 3, 5), pytest.param(30, 9, 14, 21, marks=pytest.mark.nightly)]
)
def test_nights_make_the_one_run(tmp_path, days, missed, twice, killed):
    """One is missed, and the next one makes up for it; one runs twice; one is killed in the middle. The transcript is
    that of the one run, with noise of its own in each part but the first, the same when the part is repeated."""
    nights = Nights(tmp_path, days)
    outputs = [f"{end}.jsonl" for end in range(1, days + 1) if end != missed]
    for end in range(1, days + 1):
        if end == missed:
            continue
        logs = [f"{end - 1}.parquet", f"{end - 2}.parquet"] if end == missed + 1 else []
        if end == killed:
            ended = shh_process.run_python("-c", KILLED_THEN, *nights.words(end, *logs), cwd=tmp_path)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            assert nights.is_begun
            assert (tmp_path / f"{end}.jsonl").exists()
        nights.taken(end, *logs, until="" if end == days else day(end))
        if end == twice:
            before = nights.content()
            again = nights.run(end, *reversed(logs))
            assert (again.returncode, "is done" in again.stderr, "nothing was spent" in again.stderr) == (0, True, True)
            assert nights.content() == before
    found = nights.reports(*outputs)
    assert found == nights.expected()
    assert len(found) > days // 2
    header = nights.state.header
    assert (header.closed_through, len(nights.parts), nights.is_begun) == (days, days - 1, False)
    headers = [read_report_file(tmp_path / output)[0] for output in outputs]
    assert {(each.run_id, each.plan["fingerprint"]) for each in headers} == {(header.run_id, nights.plan.fingerprint)}
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".partial", ".drawn"))]
    assert "All windows of the plan are published" in nights.refused(days, "0.parquet", output="more.jsonl", code=3)


def test_events_of_other_days_do_not_count_in_a_part(nights):
    nights.taken(1, "0.parquet", "1.parquet")
    nights.taken(3, "0.parquet", "2.parquet", "3.parquet")  # the log of the second day is lost
    assert nights.reports("1.jsonl", "3.jsonl") == [
        report for report in nights.expected([0, 2]) if report.window_end <= (START + 3 * DAY) * 10**6
    ]


def test_the_state_is_private_and_holds_no_user(nights):
    before = os.umask(0o022)
    try:
        nights.taken(1)
    finally:
        os.umask(before)
    content = (nights.folder / "run.state").read_bytes()
    assert (nights.folder / "run.state").stat().st_mode & 0o777 == 0o600
    assert not any(f"u{user}-0".encode() in content for user in range(0, 40, 2))
    assert SECRET not in content


def test_what_does_not_fit_is_refused_with_the_remedy(nights, tmp_path):
    nights.taken(2, "0.parquet", "1.parquet")
    (tmp_path / "other.key").write_bytes(bytes(range(64)))
    (tmp_path / "other.key").chmod(0o600)
    assert "is not sealed with this noise key" in nights.refused(3, noise_key_file="other.key")
    assert "published already" in nights.refused(2, "1.parquet", output="again.jsonl", code=3)
    assert "was used before with --user-field 'user'" in nights.refused(3, user_field="item", item_field="user")
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


def killed_at(nights, at, words):
    """Whether the process was killed before it had ended. words: of the command, and a nonce."""
    ended = shh_process.run_python("-c", KILLED, at, *words, cwd=nights.folder)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode == -9


@pytest.mark.nightly
def test_a_command_that_is_killed_anywhere_is_repaired_by_the_same_command(nights):
    """Byte for byte, by the nonce in the intent; and the intent lets no other input in. One such kill:
    `test_nights_make_the_one_run`."""
    nights.taken(1)
    before = shutil.copytree(nights.folder, nights.folder.with_name("before"))
    nights.taken(2)
    nonce = nights.parts[-1].nonce
    expected, words, kills, refusals = nights.content(), [*nights.words(2), nonce], 0, 0
    for at in range(1, 200):
        shutil.rmtree(nights.folder)
        shutil.copytree(before, nights.folder)
        if not killed_at(nights, at, words):
            break
        kills += 1
        if nights.is_begun:
            refusals += 1
            other = shutil.copy(nights.folder / "0.parquet", nights.folder / "other.parquet")
            refused = nights.run(2, "other.parquet")
            assert (refused.returncode, "has another input" in refused.stderr) == (1, True)
            pathlib.Path(other).unlink()
            nights.taken(2)
        else:
            with mock.patch.object(state_part, "fresh_nonce", return_value=nonce):
                assert nights.run(2).returncode == 0
        again = nights.run(2)
        assert (again.returncode, "is done" in again.stderr) == (0, True), at
        assert nights.content() == expected, at
    assert kills > 20
    assert refusals


@pytest.mark.parametrize("name", PLANS)
def test_a_run_that_another_release_began_goes_on(name, tmp_path):
    assert go_on(name, tmp_path).read_text() == (FOLDER / f"{name}.jsonl").read_text()


# ---------------------------------------------------------------------------------------------------------------------
# A state and its ledger that are both not the newest, which nothing can tell
# ---------------------------------------------------------------------------------------------------------------------


ITEMS = 20


def counted(folder, number, *, with_one_more=False):
    """The log of a day in which each of some items has 200 users, and perhaps one user more has the first of them."""
    rows = [(f"u{user}", f"i{item}", START + DAY * number + user) for user in range(200) for item in range(ITEMS)]
    name = f"{number}-more.parquet" if with_one_more else f"{number}.parquet"
    write_parquet(folder / name, [*rows, *([("one more", "i0", START + DAY * number)] if with_one_more else [])])
    return name


@pytest.fixture
def counts(tmp_path):
    """Nights that publish counts, so that equal noise is seen. With fresh noise two counts of the same users are the
    same with a probability below 0.3, and 19 of them below 1e-9."""
    nights = Nights(tmp_path, days=3)
    schedule = WindowSchedule(START, START + 3 * DAY, DAY, DAY)
    plan = Plan.for_hits(
        epsilon=40, delta=1e-3, schedule=schedule, counts=True, hits_per_user=60, max_items_per_user=ITEMS
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    for number in range(3):
        counted(tmp_path, number)
    return nights


def counts_in(nights, output):
    (report,) = nights.reports(output)
    return {hitter.item: hitter.noisy_count for hitter in report.heavy_hitters}


def test_a_state_that_was_restored_draws_with_noise_of_its_own_whatever_the_log(counts):
    """Had two parts equal noise because their logs are equal, two reports would say that they are: that a user who is
    in none of both is not in one alone. And two logs that differ would have reports that differ at that user's items.
    """
    counts.taken(1)
    counts.keep()
    counts.taken(2)
    first = counts_in(counts, "2.jsonl")
    assert len(first) == ITEMS
    for output, log in (("again.jsonl", "1.parquet"), ("other.jsonl", counted(counts.folder, 1, with_one_more=True))):
        counts.bring_back()
        counts.taken(2, log, output=output)
        other = counts_in(counts, output)
        assert other.keys() == first.keys()
        assert sum(first[item] == other[item] for item in first) < ITEMS - 1
