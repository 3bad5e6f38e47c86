"""What the operator is told where the ledger cannot be told how a run ended, and what may be used again."""

import re
import sqlite3

import pytest

from dp_transforms.cli.options import LogError, Options
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import LedgerError

PLAN = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule(0, 3600, 3600, 3600))


@pytest.fixture
def account(tmp_path):
    ledger = str(tmp_path / "ledger.db")
    return RunAccount.of_options(Options(ledger=ledger, population="n", caps=("100", "1e-3")))


def asked(account, input_fingerprint="input"):
    return account.request(PLAN, "events", "monday", input_fingerprint)


def parts_of(account):
    ((_, parts),) = account.ledger.runs()
    return parts


def test_a_run_that_could_not_start_is_used_again_for_nothing(account, monkeypatch):
    def fails(*_):
        raise LedgerError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "start", fails)
        with pytest.raises(UserError, match="No space"), account.whole(asked(account)):
            raise AssertionError("drawn")
    spent = account.ledger.balances()[0].total
    with account.whole(asked(account, "another input")) as run_id:
        assert run_id == "monday"
    assert account.ledger.balances()[0].total == spent
    assert [part.status for part in parts_of(account)] == ["released", "finished"]


@pytest.mark.parametrize("is_private", [True, False, None])
def test_a_run_of_which_others_may_have_read_something_is_not_for_another_log(account, capsys, is_private):
    """Two answers would be published for one price. Where nobody could read it, the price is not lost. None: a stream,
    which has published as it ran."""
    with pytest.raises(LogError), account.whole(asked(account), is_private=is_private):
        raise LogError("too many rows could not be read")
    (part,) = parts_of(account)
    assert part.status == ("released" if is_private else "failed")
    said = " ".join(capsys.readouterr().err.split())
    assert ("The run stays charged" in said) == (is_private is not None)
    if is_private:
        assert "--run-id monday, without --noise-key-file" in said
        with account.whole(asked(account, "another input")):
            pass
    else:
        assert ("is not for another log" in said) == (is_private is False)
        assert "--run-id" not in said
        for again in ("input", "another input"):
            with pytest.raises(UserError, match="monday was used before"), account.whole(asked(account, again)):
                raise AssertionError("drawn")


def test_a_failure_that_is_not_of_the_log_keeps_a_run_from_another_one(account):
    """Such as a full disk: it may have hung on the noise."""
    with pytest.raises(UserError, match="No space"), account.whole(asked(account)):
        raise UserError("No space left on device.")
    with pytest.raises(UserError, match="was used before"), account.whole(asked(account, "another input")):
        raise AssertionError("drawn")


def test_a_report_whose_run_was_abandoned_meanwhile_is_said_to_be_published(account):
    words = r"^what was released is published, and valid: it was charged\. But .*abandoned"
    with pytest.raises(UserError, match=words), account.whole(asked(account)):
        account.ledger.abandon("monday")


def test_a_report_whose_end_cannot_be_recorded_is_not_run_again(account, tmp_path):
    with (
        pytest.raises(UserError, match=r"^what was released is published, and valid\. Only its end") as error,
        account.whole(asked(account)),
    ):
        (tmp_path / "ledger.db").write_bytes(b"something else" * 1000)
    assert re.search(r"Do not run it again.*shh ledger abandon monday$", str(error.value))


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_whose_failure_cannot_be_recorded_says_so(account, tmp_path, capsys, is_lost):
    """Where the ledger cannot be used, or somebody has abandoned the run meanwhile."""

    def work():
        if is_lost:
            with sqlite3.connect(tmp_path / "ledger.db") as connection:
                connection.execute("DROP TABLE runs")
        else:
            account.ledger.abandon("monday")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), account.whole(asked(account)):
        work()
    assert "could not be told that the run failed, and shows it as running" in capsys.readouterr().err
