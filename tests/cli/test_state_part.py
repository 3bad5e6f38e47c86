"""What a part tells its ledger, in which order, what it is bound to, and what is forgotten of one that failed; by all
that a command does but the pipeline."""

import os
import shutil
import signal

import pytest

from dp_transforms.cli import state_part
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.state_part import run_part
from dp_transforms.errors import UserError
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.state_file import write_state
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_crowded_log
from tests.helpers.killed_nights import NightFolder, in_a_process
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.small_runs import SECRET, key_file

OTHER_KEY = bytes(range(100, 164))


class Watched(NightFolder):
    """is_full: what is drawn finds no room on the disk. nonces: by which it was drawn."""

    def __init__(self, folder, *, has_ledger=True):
        super().__init__(folder, has_ledger=has_ledger)
        self.is_full = False
        self.nonces = []

    def _draw(self, part, log, is_bad):
        ((stored,),) = [[each for each in self.parts if each.is_open]]
        assert (stored.status, stored.nonce) == ("running", part.run_part.draws_as), "the ledger knows it first"
        self.nonces.append(stored.nonce)
        if self.is_full:
            raise UserError("No space left on device.")
        super()._draw(part, log, is_bad)

    def refused(self, end, log="a", *, is_bad=False):
        with pytest.raises(UserError) as error:
            self.take(end, log, is_bad=is_bad)
        return str(error.value)

    def killed_at(self, name, end, log="a", *, before=False):
        """The process is killed when this is called the first time, or has returned."""
        module, _, what = name.partition(".")
        owner = {"ledger": Ledger, "os": os, "state_part": state_part}[module]

        def work():
            real = getattr(owner, what)

            def die(*words, **options):
                if not before:
                    real(*words, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(owner, what, die)
            self.take(end, log)

        assert in_a_process(work) == (True, "")

    def statuses(self):
        return [str(part.status) for part in self.parts]


@pytest.fixture(params=[True, False])
def nights(tmp_path, request):
    return Watched(tmp_path, has_ledger=request.param)


def test_a_ledger_hears_of_each_part_in_order(nights, monkeypatch):
    calls = []
    for name in ("start", "publishing", "finish"):
        real = getattr(Ledger, name)

        def noted(self, verdict, *words, name=name, real=real):
            output = nights.folder / f"{verdict.part.end_window}.jsonl"
            assert output.exists() == (name == "finish"), "the report is read when the ledger knows that it may be"
            calls.append((name, *words))
            real(self, verdict, *words)

        monkeypatch.setattr(Ledger, name, noted)
    assert [nights.take(1), nights.take(3, "b")] == ["new", "continues"]
    assert [call[0] for call in calls] == ["start", "publishing", "finish"] * 2
    first, second = nights.parts
    assert (second.first_window, second.end_window, second.state_before) == (1, 3, first.state_after)
    assert calls[1][1:] == calls[2][1:] == (first.state_after,), "what is to follow is what follows"
    assert second.state_after == nights.state.fingerprint
    assert first.input_fingerprint != second.input_fingerprint
    assert nights.take(3, "b") == "done"
    assert len(calls) == 6
    assert not list(nights.folder.glob(".run.state.*l")), "nothing is left of what was drawn"
    assert (nights.state.header.population == "news") == nights.has_ledger


def test_a_run_that_was_reserved_is_found_again_before_it_has_left_a_state(tmp_path):
    nights = Watched(tmp_path)
    nights.killed_at("state_part.tell_verdict", 1)
    ((run, _),) = nights.ledger.runs()
    assert nights.take(1, "b") == "resumes"
    assert [found.run_id for found, _ in nights.ledger.runs()] == [run.run_id]
    assert nights.state.header.run_id == run.run_id


def test_what_a_ledger_refuses_is_not_drawn(nights, monkeypatch):
    def refuse(*_):
        raise UserError("start is refused.")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", refuse)
        assert nights.refused(1) == "start is refused."
    assert (nights.nonces, nights.published(), nights.statuses()) == ([], {}, ["released"])
    nights.take(1, "b")


def test_a_part_that_failed_is_forgotten_if_its_log_alone_was_the_reason(nights):
    """A full disk may have hung on the noise: then only the same log is drawn for again."""
    assert "the log is bad" in nights.refused(1, is_bad=True)
    assert nights.statuses() == ["released"]
    nights.is_full = True
    assert "No space left" in nights.refused(1, "b")
    assert nights.statuses()[-1] == "failed"
    nights.is_full = False
    assert "has another input" in nights.refused(1)
    assert "has another end or output" in nights.refused(2, "b")
    assert nights.take(1, "b") == "resumes"
    assert not list(nights.folder.glob(".run.state.*l"))


def test_a_part_that_may_have_drawn_is_not_forgotten_when_it_cannot_start_again(nights, monkeypatch):
    nights.is_full = True
    nights.refused(1)
    nights.is_full = False

    def refuse(*_):
        raise UserError("start is refused.")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", refuse)
        nights.refused(1)
    assert "has another input" in nights.refused(1, "b")
    nights.take(1)


@pytest.mark.parametrize("killed", ["ledger.publishing", "state_part.write_output"])
def test_a_part_that_may_have_been_published_keeps_its_input_even_if_its_log_is_bad_then(nights, killed):
    nights.killed_at(killed, 1)
    before = nights.parts[0]
    assert before.state_after
    assert "the log is bad" in nights.refused(1, is_bad=True)
    assert (nights.parts[0].state_after, nights.statuses()) == (before.state_after, ["failed"])
    assert "has another input" in nights.refused(1, "b")
    nights.take(1)
    assert nights.statuses() == ["finished"]


def test_a_part_that_was_killed_before_it_could_be_read_may_be_forgotten(nights):
    """Also what it has drawn, which nobody has read."""
    nights.killed_at("ledger.publishing", 1, before=True)
    assert (nights.folder / ".run.state.drawn" / "state").exists()
    assert (nights.folder / ".run.state.drawn").stat().st_mode & 0o777 == 0o700
    assert "the log is bad" in nights.refused(1, is_bad=True)
    nights.take(1, "b")


@pytest.mark.parametrize("killed", ["ledger.publishing", "state_part.write_output", "os.replace"])
def test_what_was_drawn_and_sealed_is_published_and_not_drawn_again_also_by_another_version(
    nights, monkeypatch, killed
):
    nights.take(1)
    nights.killed_at(killed, 2, before=killed == "os.replace")
    after = nights.parts[1].state_after
    monkeypatch.setattr(state_part, "_VERSION", "9.9")
    del nights.nonces[:]
    assert nights.take(2) == "resumes"
    assert (nights.nonces, nights.state.fingerprint, nights.statuses()) == ([], after, ["finished"] * 2)
    assert nights.take(2) == "done"
    assert not list(nights.folder.glob(".run.state.*l"))


def test_another_version_never_draws_what_was_begun(nights, monkeypatch):
    """It may draw otherwise: its report would be a second answer."""
    nights.is_full = True
    nights.refused(1)
    nights.is_full = False
    with monkeypatch.context() as patch:
        patch.setattr(state_part, "_VERSION", "9.9")
        before = nights.parts
        assert "are not drawn, and this is shh 9.9, which may draw otherwise" in nights.refused(1)
        assert (nights.parts, len(nights.nonces)) == (before, 1)
    nights.killed_at("ledger.publishing", 1)
    shutil.rmtree(nights.folder / ".run.state.drawn")
    with monkeypatch.context() as patch:
        patch.setattr(state_part, "_VERSION", "9.9")
        assert "are not drawn" in nights.refused(1)
    assert nights.take(1) == "resumes"


def test_a_part_has_a_nonce_which_whoever_resumes_it_reads(nights):
    for end in (1, 2):
        nights.is_full = True
        nights.refused(end)
        nights.refused(end)
        nights.is_full = False
        assert nights.take(end) == "resumes"
    assert [len(set(nights.nonces[:3])), len(set(nights.nonces[3:])), len(set(nights.nonces))] == [1, 1, 2]
    assert {len(nonce) for nonce in nights.nonces} == {32}


@pytest.mark.parametrize("end", [1, 2])
def test_a_part_that_is_taken_from_another_log_has_another_nonce(nights, end):
    """Also the first one, whose run keeps its name: nobody knows what an older copy of its ledger has drawn."""
    for done in range(1, end):
        nights.take(done)
    assert "the log is bad" in nights.refused(end, is_bad=True)
    nights.take(end, "b")
    assert len(nights.ledger.runs()) == 1
    *_, refused, taken = nights.nonces
    assert refused != taken


def test_an_older_ledger_draws_with_other_noise_where_nothing_shows_that_it_is_one(nights):
    """Its first part was published, and the state and the report were taken away."""
    nights.killed_at("state_part.tell_verdict", 1)
    older = shutil.copy(nights.ledger_path, nights.folder / "older")
    nights.take(1)
    nights.begin_anew()
    shutil.copy(older, nights.ledger_path)
    nights.take(1, "b")
    first, again = nights.nonces
    assert first != again


@pytest.mark.parametrize("log", ["a", "b"])
def test_no_older_state_begins_a_part_again(nights, log):
    """It would draw other noise: here after a failure that may have hung on what was drawn."""
    nights.take(1)
    older = shutil.copy(nights.folder / "run.state", nights.folder / "older.state")
    nights.take(2)
    nights.is_full = True
    nights.refused(3)
    nights.is_full = False
    newest = shutil.copy(nights.folder / "run.state", nights.folder / "newest.state")
    shutil.copy(older, nights.folder / "run.state")
    for end in (2, 3):
        assert "older copy" in nights.refused(end, log)
    (nights.folder / "run.state").unlink()
    if nights.has_ledger:
        shutil.copy(newest, nights.folder / "run.state")
        assert nights.take(3) == "resumes"


def test_an_older_ledger_begins_no_part_again_that_may_have_been_published(nights):
    """Its state, or what lies beside it, says so."""
    nights.take(1)
    older = shutil.copy(nights.ledger_path, nights.folder / "older")
    nights.killed_at("state_part.write_output", 2)
    newest = shutil.copy(nights.ledger_path, nights.folder / "newest")
    shutil.copy(older, nights.ledger_path)
    for log in ("a", "b"):
        assert "was drawn by a part that the ledger does not know" in nights.refused(2, log)
    shutil.copy(newest, nights.ledger_path)
    nights.take(2)
    shutil.copy(older, nights.ledger_path)
    for end in (2, 3):
        assert "the ledger is an older copy" in nights.refused(end)


def test_a_part_that_resumes_does_not_take_another_file_for_its_report(nights):
    nights.take(1)
    nights.killed_at("ledger.publishing", 2)
    (nights.folder / "2.jsonl").write_bytes((nights.folder / "1.jsonl").read_bytes())
    assert "is not the report of this part. Move it away" in nights.refused(2)
    assert nights.statuses() == ["finished", "running"]
    (nights.folder / "2.jsonl").unlink()
    nights.take(2)


def test_a_state_that_was_made_without_the_noise_key_is_refused(nights):
    """With right checksums: as it was, but with full budgets."""
    nights.take(1)
    cells = [(row.kind, row.bucket, bytes(nights.state.chunk(row))) for row in nights.state.rows]
    write_state(nights.folder / "written", nights.state.header, cells, sealing_key(OTHER_KEY))
    os.replace(nights.folder / "written", nights.folder / "run.state")
    assert "is not sealed with this noise key" in nights.refused(2)


def test_a_part_whose_key_is_exchanged_before_it_is_published_publishes_nothing(nights, monkeypatch):
    start = Ledger.start

    def rotated(self, verdict):
        start(self, verdict)
        key_file(nights.folder, OTHER_KEY)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", rotated)
        assert "another key than that of the run" in nights.refused(1)
    assert not nights.published()
    key_file(nights.folder, SECRET)
    nights.take(1)


@pytest.fixture
def request_of_part(tmp_path):
    """What a real command is asked for: one part, of all windows."""
    log = write_crowded_log(tmp_path / "log", 600, 30)
    key, state = key_file(tmp_path), str(tmp_path / "run.state")
    return replay_request(log, looks_plan_of(SCHEDULE), tmp_path / "report.jsonl", key, run_id="", state=state)


def test_workers_whose_key_is_exchanged_draw_nothing(request_of_part, tmp_path, monkeypatch):
    start = Ledger.start

    def rotated(self, verdict):
        start(self, verdict)
        key_file(tmp_path, OTHER_KEY)

    monkeypatch.setattr(Ledger, "start", rotated)
    with pytest.raises(UserError, match="another key than that of the run"):
        run_part(request_of_part, RunAccount())
    assert not (tmp_path / "report.jsonl").exists()
    assert not (tmp_path / "run.state").exists()


def test_a_log_that_was_exchanged_since_its_row_groups_were_listed_is_refused(request_of_part, tmp_path):
    """Half of the new file would be read, and all of it would be fingerprinted."""
    first, other, _ = sorted((tmp_path / "log").iterdir())
    first.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="was changed while it was looked at"):
        run_part(request_of_part, RunAccount())
    assert not (tmp_path / "run.state").exists()
    assert not (tmp_path / "run.state.ledger").exists()
