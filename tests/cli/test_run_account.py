"""What the operator is told where the ledger cannot be told how a run ended, and what may be used again."""

import contextlib
import re

import pytest

from dp_transforms.cli.options import Options
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.errors import LogError, UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import LedgerError, PartRequest

PLAN = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule(0, 3600, 3600, 3600))


def asked(log="input", run_id="monday"):
    return PartRequest.whole(PLAN, log, run_id=run_id, stream="events", population="n")


class Account(RunAccount):
    def fails(self, error, log="input", **words):
        """A run, in which this is raised; it ends with the error of the same type that is returned."""
        with pytest.raises(type(error)) as caught, self.whole(asked(log), **words):
            raise error
        return str(caught.value)

    def is_refused(self, log):
        assert "monday was used before" in self.fails(UserError("drawn"), log)

    @property
    def statuses(self):
        ((_, parts),) = self.ledger.runs()
        return [str(part.status) for part in parts]


@pytest.fixture
def account(tmp_path):
    return Account.of_options(Options(ledger=str(tmp_path / "ledger.db"), population="n", caps=("100", "1e-3")))


def test_a_run_that_could_not_start_is_used_again_for_nothing(account, monkeypatch):
    def refuse(*_):
        raise LedgerError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", refuse)
        assert "No space" in account.fails(LedgerError("drawn"))
    spent = account.ledger.balances()[0].total
    with account.whole(asked("another input")) as run_id:
        assert run_id == "monday"
    assert account.ledger.balances()[0].total == spent
    assert account.statuses == ["released", "finished"]


@pytest.mark.parametrize("is_private", [True, False])
def test_a_run_of_which_others_may_have_read_something_is_not_for_another_log(account, capsys, is_private):
    """Two answers would be published for one price. Where nobody could read it, the price is not lost."""
    account.fails(LogError("too many rows could not be read"), is_private=is_private)
    assert account.statuses == ["released" if is_private else "failed"]
    said = " ".join(capsys.readouterr().err.split())
    assert "The run stays charged" in said
    if is_private:
        assert "--run-id monday, without --noise-key-file" in said
        with account.whole(asked("another input")):
            return
    assert "is not for another log" in said
    assert "--run-id" not in said
    for log in ("input", "another input"):
        account.is_refused(log)


def test_a_failure_that_is_not_of_the_log_keeps_a_run_from_another_one(account):
    """Such as a full disk: it may have hung on the noise."""
    account.fails(UserError("No space left on device."))
    account.is_refused("another input")


def test_a_report_whose_end_cannot_be_recorded_is_said_to_be_published(account, tmp_path):
    """Where somebody has abandoned its run meanwhile, and where the ledger cannot be used: nobody runs it again."""
    words = r"^what was released is published, and valid\. Only its end is not in the ledger: .*are abandoned"
    with pytest.raises(UserError, match=words), account.whole(asked()):
        account.ledger.end("monday")
    words = r"^what was released is published, and valid\. Only its end"
    with pytest.raises(UserError, match=words) as error, account.whole(asked(run_id="tuesday")):
        (tmp_path / "ledger.db").write_bytes(b"something else" * 1000)
    assert re.search(r"Do not begin it as a new run.*--end tuesday$", str(error.value))


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_whose_failure_cannot_be_recorded_says_so(account, tmp_path, capsys, is_lost):
    """Where the ledger cannot be used, or somebody has abandoned the run meanwhile."""

    with contextlib.suppress(ZeroDivisionError), account.whole(asked()):
        if is_lost:
            (tmp_path / "ledger.db").write_bytes(b"something else" * 1000)
        else:
            account.ledger.end("monday")
        raise ZeroDivisionError
    assert "could not be told that the run failed, and shows it as running" in capsys.readouterr().err
