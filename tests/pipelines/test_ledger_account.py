"""What the operator is told where the ledger cannot be told how a run ended."""

from __future__ import annotations

import pathlib
import re

import pytest

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.ledger import Ledger
from dp_transforms.pipelines.ledger_account import LedgerAccount
from dp_transforms.pipelines.options import UserError
from dp_transforms.window_schedule import WindowSchedule


@pytest.fixture
def account(tmp_path: pathlib.Path) -> LedgerAccount:
    options = {"population": "news", "max_epsilon": "100", "max_delta": "1e-3"}
    account = LedgerAccount.of_options({"ledger": str(tmp_path / "ledger.db"), **options})
    assert account
    schedule = WindowSchedule(0, 3600, 3600, 3600)
    plan = ReleasePlan.calibrate(epsilon=1, delta=1e-6, schedule=schedule, release="labels")
    account.reserve_whole(plan, "events", "monday", "input")
    account.start()
    return account


def test_a_report_whose_run_was_abandoned_meanwhile_is_said_to_be_published(
    account: LedgerAccount, tmp_path: pathlib.Path
) -> None:
    Ledger.open(tmp_path / "ledger.db").abandon("monday")
    with pytest.raises(
        UserError, match=r"^what was released is published, and valid: it was charged\. But .*abandoned"
    ):
        account.finish()


def test_a_report_whose_end_cannot_be_recorded_is_not_run_again(account: LedgerAccount, tmp_path: pathlib.Path) -> None:
    (tmp_path / "ledger.db.counter").unlink()
    with pytest.raises(UserError, match=r"^what was released is published, and valid\. Only its end") as error:
        account.finish()
    assert re.search(r"Do not run it again.*shh ledger abandon monday$", str(error.value))


def test_a_run_whose_failure_cannot_be_recorded_says_so(
    account: LedgerAccount, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger.db.counter").unlink()
    account.fail()
    assert "could not be told that the run failed, and shows it as running" in capsys.readouterr().err
