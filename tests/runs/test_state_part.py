"""What a part tells its ledger, in which order, what it is bound to, and what is forgotten of one that failed; by all
that a command does but the pipeline. Kills before each line: tests/runs/test_nights.py."""

import os
import shutil
import signal

import pytest

from dp_transforms.cli.replay_run import run_part
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.errors import UserError
from dp_transforms.runs import state_part
from dp_transforms.runs.ledger import Ledger
from tests.helpers.contributions_plans import contributions_plan_of
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_crowded_log
from tests.helpers.small_runs import key_file
from tests.runs.killed_nights import NightFolder, in_a_process


class Watched(NightFolder):
    """is_full: what is drawn finds no room on the disk. nonces: by which it was drawn."""

    is_full = False

    def __init__(self, folder, *, has_ledger=True):
        super().__init__(folder, has_ledger=has_ledger)
        self.nonces = []

    def _draw(self, part, log, is_bad):
        (stored,) = [each for each in self.parts if each.is_open]
        assert (stored.status, stored.nonce) == ("running", part.run_part.draws_as), "the ledger knows it first"
        self.nonces.append(stored.nonce)
        if self.is_full:
            raise UserError("No space left on device.")
        super()._draw(part, log, is_bad)

    def refused(self, end, log="a", *, is_bad=False, is_full=False):
        self.is_full = is_full
        with pytest.raises(UserError) as error:
            self.take(end, log, is_bad=is_bad)
        self.is_full = False
        return str(error.value)

    def killed_at(self, owner, name, end, *, before=False):
        """The process is killed when this is called the first time, or has returned."""

        def work():
            real = getattr(owner, name)

            def die(*words, **options):
                if not before:
                    real(*words, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(owner, name, die)
            self.take(end)

        assert in_a_process(work) == (True, "")

    def statuses(self):
        return [str(part.status) for part in self.parts]

    def leftovers(self):
        return list(self.folder.glob(".run.state.*l"))


@pytest.fixture(params=[True, False], ids=["shared ledger", "own ledger"])
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
    assert nights.leftovers() == []
    assert (nights.state.header.population == "news") == nights.has_ledger


# --- What is forgotten


def test_a_part_that_failed_is_forgotten_if_its_log_alone_was_the_reason(nights):
    """A full disk may have hung on the noise: then only the same log is drawn for again."""
    assert "the log is bad" in nights.refused(1, is_bad=True)
    assert nights.statuses() == ["released"]
    assert "No space left" in nights.refused(1, "b", is_full=True)
    assert nights.statuses()[-1] == "failed"
    assert "has another input" in nights.refused(1)
    assert "has another input, end or output" in nights.refused(2, "b")
    assert nights.take(1, "b") == "resumes"
    assert nights.leftovers() == []


def test_a_part_that_was_killed_before_it_could_be_read_may_be_forgotten(nights):
    """Also what it has drawn, which nobody has read."""
    nights.killed_at(Ledger, "publishing", 1, before=True)
    assert (nights.folder / ".run.state.drawn" / "state").exists()
    assert (nights.folder / ".run.state.drawn").stat().st_mode & 0o777 == 0o700
    assert "the log is bad" in nights.refused(1, is_bad=True)
    nights.take(1, "b")


# --- Other versions


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [(Ledger, "publishing", False), (state_part, "write_output", False), (os, "replace", True)],
)
def test_what_was_drawn_and_sealed_is_published_and_not_drawn_again_also_by_another_version(
    nights, monkeypatch, owner, name, before
):
    nights.take(1)
    nights.killed_at(owner, name, 2, before=before)
    after, nights.nonces = nights.parts[1].state_after, []
    monkeypatch.setattr(state_part, "_VERSION", "9.9")
    assert nights.take(2) == "resumes"
    assert (nights.nonces, nights.state.fingerprint, nights.statuses()) == ([], after, ["finished"] * 2)
    assert nights.take(2) == "done"
    assert nights.leftovers() == []


def test_another_version_never_draws_what_was_begun(nights, monkeypatch):
    """It may draw otherwise: its report would be a second answer."""
    nights.refused(1, is_full=True)
    before = nights.parts
    with monkeypatch.context() as patch:
        patch.setattr(state_part, "_VERSION", "9.9")
        assert "are not drawn, and this is shh 9.9, which may draw otherwise" in nights.refused(1)
    assert (nights.parts, len(nights.nonces)) == (before, 1)
    nights.killed_at(Ledger, "publishing", 1)
    shutil.rmtree(nights.folder / ".run.state.drawn")
    assert nights.take(1) == "resumes"
    assert len({*nights.nonces}) == 1, "the nonce of who began"


# --- Files that were exchanged


def test_an_older_ledger_begins_no_part_again_that_may_have_been_published(nights):
    """Its state, or what lies beside it, says so."""
    nights.take(1)
    older = shutil.copy(nights.ledger_path, nights.folder / "older")
    nights.killed_at(state_part, "write_output", 2)
    newest = shutil.copy(nights.ledger_path, nights.folder / "newest")
    shutil.copy(older, nights.ledger_path)
    for log in ("a", "b"):
        assert "was drawn by a part that the ledger does not know" in nights.refused(2, log)
    shutil.copy(newest, nights.ledger_path)
    nights.take(2)
    shutil.copy(older, nights.ledger_path)
    for end in (2, 3):
        assert "is an older copy" in nights.refused(end)


def test_a_part_that_resumes_does_not_take_another_file_for_its_report(nights):
    nights.take(1)
    nights.killed_at(Ledger, "publishing", 2)
    (nights.folder / "2.jsonl").write_bytes((nights.folder / "1.jsonl").read_bytes())
    assert "exists and is never overwritten. Name another output, or move it away." in nights.refused(2)
    assert nights.statuses() == ["finished", "failed"]
    (nights.folder / "2.jsonl").unlink()
    nights.take(2)


def test_a_log_that_was_exchanged_since_its_row_groups_were_listed_is_refused(tmp_path):
    """Half of the new file would be read, and all of it would be fingerprinted."""
    log = write_crowded_log(tmp_path / "log", 600, 30)
    job = replay_request(log, contributions_plan_of(SCHEDULE), tmp_path / "report.jsonl", key_file(tmp_path), run_id="")
    first, other, _ = sorted((tmp_path / "log").iterdir())
    first.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="was changed while it was read"):
        run_part(job, RunAccount(), str(tmp_path / "run.state"))
    assert not (tmp_path / "run.state").exists()
    assert not (tmp_path / "run.state.ledger").exists()
