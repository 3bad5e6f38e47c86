"""What a part tells the account of its run, in which order, what it is bound to, and what is forgotten of one that
failed; by all that a command does but the pipeline."""

import dataclasses
import pathlib
import shutil

import pytest

from dp_transforms.cli.replay_run import run_part
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.shared_options import StateOptions
from dp_transforms.errors import UserError
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.state_file import StateFile, replace_state, write_state
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_crowded_log
from tests.helpers.killed_nights import DAY, NightFolder
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.small_runs import SECRET, key_file

MICROS = 1_000_000
OTHER_KEY = bytes(range(100, 164))


class Account(RunAccount):
    """Notes all calls. refuses: the call that it refuses, by this error. key_file: where another key is once a part
    starts. is_told: whether it can be told that a part failed."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.refuses = ""
        self.error = UserError
        self.is_told = True
        self.key_file = None

    @property
    def is_kept(self):
        return True

    def _note(self, name, facts, *more):
        self.calls.append((name, facts, *more))
        if name == self.refuses:
            raise self.error(f"{name} is refused.")

    def reserve(self, facts):
        self._note("reserve", facts)

    def start(self, facts):
        begun = StateFile(facts.state_path).header
        assert (begun.intent, begun.draws_as) == (facts.record, facts.draws_as), "the intent is written first"
        self._note("start", facts)
        if self.key_file is not None:  # as a rotation does
            key_file(self.key_file.parent, OTHER_KEY)

    def publishing(self, facts, state_fingerprint):
        assert not pathlib.Path(facts.record.output).exists() or facts.how == "resumes", "the report comes later"
        assert StateFile(facts.state_path).header.next_fingerprint == state_fingerprint, "the state says so first"
        self._note("publishing", facts, state_fingerprint)

    def finish(self, facts, state_fingerprint):
        assert pathlib.Path(facts.record.output).exists(), "the report is there first"
        self._note("finish", facts, state_fingerprint)

    def fail(self, facts, *, forget):
        self._note("forget" if forget else "fail", facts)
        return self.is_told


class Accounted(NightFolder):
    """Nights of a run with such an account. is_full: what is drawn finds no room on the disk."""

    def __init__(self, folder):
        super().__init__(folder, has_ledger=True)
        self.account = Account()
        self.is_full = False

    def _account(self):
        return self.account

    def _draw(self, part, log, is_bad):
        if self.is_full:
            raise UserError("No space left on device.")
        super()._draw(part, log, is_bad)

    def names(self):
        """The calls since the last time, by name."""
        found = [call[0] for call in self.account.calls]
        self.account.calls.clear()
        return found

    def refused(self, end, log="a", *, is_bad=False):
        with pytest.raises(UserError) as error:
            self.take(end, log, is_bad=is_bad)
        return str(error.value)


@pytest.fixture
def nights(tmp_path):
    return Accounted(tmp_path)


def test_an_account_hears_of_each_part_in_order(nights):
    assert [nights.take(1), nights.take(3, "b")] == ["new", "continues"]
    calls = list(nights.account.calls)
    assert nights.names() == ["reserve", "start", "publishing", "finish"] * 2
    first, second = calls[0][1], calls[4][1]
    assert first.header.run_id == second.header.run_id
    assert (second.record.first, second.record.end) == (1, 3)
    assert (second.start_micros, second.end_micros) == (DAY * MICROS, 3 * DAY * MICROS)
    assert second.state_fingerprint == calls[3][2], "a part begins with the state that the one before left"
    assert calls[2][2] == calls[3][2], "what is to follow is what follows"
    assert second.record.input_fingerprint != first.record.input_fingerprint
    assert calls[7][2] == nights.state.fingerprint
    assert nights.take(3, "b") == "done"
    (reserved, facts), (finished, _, fingerprint) = nights.account.calls
    assert (reserved, finished, facts.record) == ("reserve", "finish", second.record)
    assert fingerprint == nights.state.fingerprint


def test_a_run_that_may_have_been_reserved_is_found_again_by_its_state(nights):
    """A stop came first."""
    nights.account.refuses, nights.account.error = "reserve", KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        nights.take(1)
    run_id = nights.state.header.run_id
    nights.account.refuses = ""
    assert nights.take(1) == "new"
    assert nights.state.header.run_id == run_id


@pytest.mark.parametrize("refuses", ["reserve", "start"])
def test_what_an_account_refuses_is_not_drawn(nights, refuses):
    nights.account.refuses = refuses
    assert nights.refused(1) == f"{refuses} is refused."
    assert nights.names() == (["reserve"] if refuses == "reserve" else ["reserve", "start", "forget"])
    assert not nights.published()
    if refuses == "reserve":
        assert not (nights.folder / "run.state").exists()
    else:
        assert nights.state.header.intent is None
    nights.account.refuses = ""
    nights.take(1, "b")


def test_a_part_that_failed_is_forgotten_if_its_log_alone_was_the_reason(nights):
    """A full disk may have hung on the noise: then only the same log is drawn for again."""
    assert "the log is bad" in nights.refused(1, is_bad=True)
    assert nights.names() == ["reserve", "start", "forget"]
    assert nights.state.header.intent is None
    nights.is_full = True
    assert "No space left" in nights.refused(1, "b")
    assert nights.names() == ["reserve", "start", "fail"]
    nights.is_full = False
    assert "has another input" in nights.refused(1)
    assert "has another --until or --output" in nights.refused(2, "b")
    nights.account.refuses = "start"
    nights.refused(1, "b")
    assert nights.state.header.intent is not None, "the process that was killed may have published"
    nights.account.refuses = ""
    assert nights.take(1, "b") == "resumes"


def test_a_part_that_may_have_been_published_keeps_its_input_even_if_its_log_is_bad_then(nights):
    nights.account.refuses = "publishing"  # as a process that is killed when its state has said so
    nights.refused(1)
    nights.account.refuses = ""
    header = nights.state.header
    assert header.next_fingerprint
    assert "the log is bad" in nights.refused(1, is_bad=True)
    assert nights.state.header == header
    nights.take(1)
    assert nights.state.header.next_fingerprint == ""


def test_a_later_part_has_a_nonce_which_whoever_resumes_it_reads(nights):
    nights.take(1)
    nights.is_full = True
    nights.refused(2)
    nights.refused(2)
    nights.is_full = False
    assert nights.take(2) == "resumes"
    first, *later = [call[1].draws_as for call in nights.account.calls if call[0] == "start"]
    assert (first, len(later), len(set(later)), len(later[0])) == ("", 3, 1, 32)
    assert nights.state.header.draws_as == ""


def test_a_later_part_that_is_taken_from_another_log_has_another_nonce(nights):
    nights.take(1)
    assert "the log is bad" in nights.refused(2, is_bad=True)
    assert nights.state.header.draws_as == ""
    nights.take(2, "b")
    _, refused, taken = [call[1].draws_as for call in nights.account.calls if call[0] == "start"]
    assert refused != taken


def test_an_intent_stays_until_the_account_knows_that_it_is_taken_back(nights):
    """Else the account would hold the part to a nonce that nobody has."""
    nights.take(1)
    nights.account.is_told = False
    assert "the log is bad" in nights.refused(2, is_bad=True)
    assert nights.state.header.intent is not None
    nights.account.is_told = True
    assert "the log is bad" in nights.refused(2, is_bad=True)
    assert nights.state.header.intent is None


@pytest.mark.parametrize("log", ["a", "b"])
def test_a_ledger_lets_no_older_state_begin_a_part_again(tmp_path, log):
    """It would draw other noise: here after a failure that may have hung on what was drawn."""

    class Full(NightFolder):
        is_full = True

        def _draw(self, part, log, is_bad):
            if self.is_full and part.facts.record.first:
                raise UserError("No space left on device.")
            super()._draw(part, log, is_bad)

    nights = Full(tmp_path)
    nights.take(1)
    older = shutil.copy(tmp_path / "run.state", tmp_path / "older.state")
    with pytest.raises(UserError, match="No space left"):
        nights.take(2)
    newest = shutil.copy(tmp_path / "run.state", tmp_path / "newest.state")
    nights.is_full = False
    shutil.copy(older, tmp_path / "run.state")
    with pytest.raises(UserError, match="is an older copy"):
        nights.take(2, log)
    shutil.copy(newest, tmp_path / "run.state")
    assert nights.take(2) == "resumes"


def test_a_part_that_resumes_does_not_take_another_file_for_its_report(nights):
    nights.take(1)
    nights.account.refuses = "publishing"
    nights.refused(2)
    nights.account.refuses = ""
    (nights.folder / "2.jsonl").write_bytes((nights.folder / "1.jsonl").read_bytes())
    assert "is not the report of this part. Move it away" in nights.refused(2)
    assert nights.state.header.intent is not None
    (nights.folder / "2.jsonl").unlink()
    nights.take(2)


def test_a_state_that_was_made_without_the_noise_key_is_refused(nights):
    """With right checksums: as it was, but with full purses."""
    nights.take(1)
    cells = [(row.kind, row.bucket, bytes(nights.state.cell(row))) for row in nights.state.rows]
    write_state(nights.folder / "written", nights.state.header, cells, sealing_key(OTHER_KEY))
    replace_state(nights.folder / "written", nights.folder / "run.state")
    assert "is not sealed with the noise key of its run" in nights.refused(2)


def test_a_part_whose_key_is_exchanged_before_it_is_published_publishes_nothing(nights):
    nights.account.key_file = nights.folder / "noise.key"
    assert "another key than that of the run" in nights.refused(1)
    assert not nights.published()
    nights.account.key_file = None
    key_file(nights.folder, SECRET)
    nights.take(1)


@pytest.fixture
def request_of_part(tmp_path):
    """What a real command is asked for: one part, of all windows."""
    log = write_crowded_log(tmp_path / "log", 600, 30)
    key, output = key_file(tmp_path), str(tmp_path / "report.jsonl")
    state = StateOptions(str(tmp_path / "run.state"), str(key), "user", "item", output)
    request = replay_request(log, looks_plan_of(SCHEDULE), tmp_path / "report.jsonl", key)
    return dataclasses.replace(request, state=state)


def test_workers_whose_key_is_exchanged_draw_nothing(request_of_part, tmp_path):
    account = Account()
    account.key_file = tmp_path / "noise.key"
    with pytest.raises(UserError, match="another key than that of the run"):
        run_part(request_of_part, account)
    assert not (tmp_path / "report.jsonl").exists()
    assert not StateFile(tmp_path / "run.state").rows


def test_a_log_that_was_exchanged_since_its_row_groups_were_listed_is_refused(request_of_part, tmp_path):
    """Half of the new file would be read, and all of it would be fingerprinted."""
    first, other, _ = sorted((tmp_path / "log").iterdir())
    first.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="was changed while it was looked at"):
        run_part(request_of_part, RunAccount())
    assert not (tmp_path / "run.state").exists()
