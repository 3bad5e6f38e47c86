"""What the operator is told where the ledger cannot be told how a run ended."""

import re

import pytest

from dp_transforms.cli.options import LogError, Options
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.ledger import Ledger, database


@pytest.fixture
def account(tmp_path):
    ledger = str(tmp_path / "ledger.db")
    options = Options(ledger=ledger, population="news", max_epsilon="100", max_delta="1e-3")
    account = RunAccount.of_options(options)
    schedule = WindowSchedule(0, 3600, 3600, 3600)
    plan = Plan.for_hits(epsilon=1, delta=1e-6, schedule=schedule)
    account.reserve_whole(plan, "events", "monday", "input")
    account.start()
    return account


def test_a_run_that_could_not_start_is_used_again_for_nothing(account, tmp_path, monkeypatch):
    """Its start record cannot be settled, so it draws nothing; and it was not started by somebody else before."""
    plan = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule(0, 3600, 3600, 3600))
    account.reserve_whole(plan, "events", "tuesday", "input")
    real, calls = database.settle, []

    def fails_once(*words):
        calls.append(words)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        real(*words)

    monkeypatch.setattr(database, "settle", fails_once)
    with pytest.raises(UserError, match="Nothing was drawn"), account.whole():
        raise AssertionError("drawn")
    ledger = Ledger.open(tmp_path / "ledger.db")
    spent = ledger.balances()[0].total
    account.reserve_whole(plan, "events", "tuesday", "another input")
    with account.whole():
        pass
    assert ledger.balances()[0].total == spent


@pytest.mark.parametrize("is_private", [True, False, None])
def test_a_run_of_which_others_may_have_read_something_is_not_for_another_log(account, tmp_path, capsys, is_private):
    """Two answers would be published for one price. Where nobody could read it, the price is not lost. None: a stream,
    which has published as it ran."""
    plan = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule(0, 3600, 3600, 3600))
    account.reserve_whole(plan, "events", "tuesday", "input")
    with pytest.raises(LogError), account.whole(is_private=is_private):
        raise LogError("too many rows could not be read")
    ((_, (part,)),) = [found for found in Ledger.open(tmp_path / "ledger.db").runs() if found[0].run_id == "tuesday"]
    assert part.status == ("released" if is_private else "failed")
    said = " ".join(capsys.readouterr().err.split())
    assert ("The run stays charged" in said) == (is_private is not None)
    if is_private:
        assert "--run-id tuesday, without --noise-key-file" in said
        account.reserve_whole(plan, "events", "tuesday", "another input")
    else:
        assert ("is not for another log" in said) == (is_private is False)
        assert "--run-id" not in said
        with pytest.raises(UserError, match="tuesday"):
            account.reserve_whole(plan, "events", "tuesday", "another input")


def test_a_report_whose_run_was_abandoned_meanwhile_is_said_to_be_published(account, tmp_path):
    Ledger.open(tmp_path / "ledger.db").abandon("monday")
    with pytest.raises(
        UserError, match=r"^what was released is published, and valid: it was charged\. But .*abandoned"
    ):
        account.finish()


def test_a_report_whose_end_cannot_be_recorded_is_not_run_again(account, tmp_path):
    (tmp_path / "ledger.db.counter").unlink()
    with pytest.raises(UserError, match=r"^what was released is published, and valid\. Only its end") as error:
        account.finish()
    assert re.search(r"Do not run it again.*shh ledger abandon monday$", str(error.value))


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_whose_failure_cannot_be_recorded_says_so(account, tmp_path, capsys, is_lost):
    """Where the ledger cannot be used, or somebody has abandoned the run meanwhile."""
    if is_lost:
        (tmp_path / "ledger.db.counter").unlink()
    else:
        Ledger.open(tmp_path / "ledger.db").abandon("monday")
    account.fail()
    assert "could not be told that the run failed, and shows it as running" in capsys.readouterr().err
