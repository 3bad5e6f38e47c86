"""What a part tells the account of its run, in which order; and what a part that resumes finds of the one before."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from dp_transforms.cli import replay_runs
from dp_transforms.cli.replay_run import ReplayPart
from dp_transforms.errors import UserError
from dp_transforms.runs.state_file import StateFile
from tests.helpers import forked
from tests.helpers.nights import DAY, START, Nights

MICROS = 1_000_000
# Killed when the pipeline has made its drafts, before or after the report gets its name.
KILLED = """
import os, signal, sys
from dp_transforms.cli import replay_run
when, publish = sys.argv.pop(1), replay_run.publish_output
def die(*arguments):
    if when == "after":
        publish(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
replay_run.publish_output = die
from dp_transforms.cli.main import main
main()
"""


class Account:
    """Notes all calls, and refuses one of them."""

    calls: list[tuple[str, Any]]
    refuses: str

    def __init__(self) -> None:
        pass

    def _note(self, name: str, facts: Any, *more: str) -> None:
        self.calls.append((name, facts, *more))
        if name == self.refuses:
            raise UserError(f"{name} is refused.")

    def reserve(self, facts: Any) -> None:
        self._note("reserve", facts)

    def start(self, facts: Any) -> None:
        state = StateFile(facts.state_path)
        assert state.header.intent == facts.record, "the intent is written first"
        self._note("start", facts)

    def publishing(self, facts: Any, fingerprint: str) -> None:
        assert not pathlib.Path(facts.record.output).exists() or facts.how == "resumes", "the report comes later"
        assert StateFile(facts.state_path).header.next_fingerprint == fingerprint, "the state says so first"
        self._note("publishing", facts, fingerprint)

    def finish(self, facts: Any, fingerprint: str) -> None:
        assert pathlib.Path(facts.record.output).exists(), "the report is there first"
        self._note("finish", facts, fingerprint)

    resumes = was_publishing = False

    def fail(self, facts: Any, *, forget: bool) -> None:
        self._note("forget" if forget else "fail", facts)


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> type[Account]:
    Account.calls, Account.refuses = [], ""
    monkeypatch.setattr(replay_runs, "RunAccount", Account)
    return Account


@pytest.fixture
def nights(tmp_path: pathlib.Path) -> Nights:
    return Nights(tmp_path)


def names(account: type[Account]) -> list[str]:
    return [call[0] for call in account.calls]


def test_an_account_hears_of_each_part_in_order(nights: Nights, account: type[Account]) -> None:
    nights.taken(1)
    nights.taken(3, "1.parquet", "2.parquet")
    assert names(account) == ["reserve", "start", "publishing", "finish"] * 2
    first, second = account.calls[0][1], account.calls[4][1]
    assert (first.how, second.how) == ("new", "continues")
    assert first.header.run_id == second.header.run_id
    assert first.plan.fingerprint == second.plan.fingerprint == nights.plan.fingerprint
    assert (second.record.first, second.record.end) == (1, 3)
    assert (second.start_micros, second.end_micros) == ((START + DAY) * MICROS, (START + 3 * DAY) * MICROS)
    assert second.state_fingerprint == account.calls[3][2], "a part begins with the state that the one before left"
    assert account.calls[2][2] == account.calls[3][2], "what is to follow is what follows"
    assert second.record.input_fingerprint != first.record.input_fingerprint
    assert account.calls[7][2] == nights.state.fingerprint
    account.calls.clear()
    assert "is done" in nights.run(3, "1.parquet", "2.parquet").stderr
    assert [(call[0], call[1].how) for call in account.calls] == [("reserve", "done"), ("finish", "done")]
    assert account.calls[1][2] == nights.state.fingerprint
    assert account.calls[1][1].record == second.record


@pytest.mark.parametrize("refuses", ["reserve", "start"])
def test_what_an_account_refuses_is_not_drawn(nights: Nights, account: type[Account], refuses: str) -> None:
    account.refuses = refuses
    done = nights.run(1)
    assert f"shh: {refuses} is refused." in done.stderr
    assert names(account) == (["reserve"] if refuses == "reserve" else ["reserve", "start", "forget"])
    assert not (nights.folder / "1.jsonl").exists()
    if refuses == "reserve":
        assert not (nights.folder / "run.state").exists()
    else:
        assert nights.state.header.intent is None
    account.refuses = ""
    nights.taken(1)


def test_an_account_hears_that_a_part_failed(nights: Nights, account: type[Account]) -> None:
    (nights.folder / "bad.jsonl").write_text('{"user": 1.5}\n')
    assert nights.run(1, "bad.jsonl").returncode == 1
    assert names(account) == ["reserve", "start", "forget"]
    assert nights.state.header.intent is None


def test_a_part_that_failed_for_another_reason_than_its_log_keeps_it(
    nights: Nights, account: type[Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a full disk: that may have hung on the noise."""

    def full(*_: object) -> None:
        raise UserError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(ReplayPart, "check_log", full)
        assert nights.run(1).returncode == 1
    assert names(account) == ["reserve", "start", "fail"]
    assert nights.state.header.intent is not None
    assert "has another input" in nights.run(1, "1.parquet").stderr
    nights.taken(1)


def killed(nights: Nights, when: str) -> None:
    ended = forked.run_python("-c", KILLED, when, *nights.words(2), cwd=nights.folder)
    assert ended.returncode == -9, ended.stderr
    assert nights.state.header.intent is not None


def test_a_part_that_resumes_does_not_take_another_file_for_its_report(nights: Nights, account: type[Account]) -> None:
    nights.taken(1)
    killed(nights, "before")
    (nights.folder / "2.jsonl").write_bytes((nights.folder / "1.jsonl").read_bytes())
    account.calls.clear()
    assert "is not the report of this part. Move it away" in nights.run(2).stderr
    assert nights.state.header.intent is not None
    (nights.folder / "2.jsonl").unlink()
    assert "has another --until or --output" in nights.run(3, "1.parquet").stderr
    assert "has another --until or --output" in nights.run(2, output="other.jsonl").stderr
    assert "has another input" in nights.run(2, "0.parquet").stderr
    nights.taken(2)


def test_a_failure_while_resuming_leaves_the_intent(nights: Nights, account: type[Account]) -> None:
    """The process that was killed may have published."""
    nights.taken(1)
    killed(nights, "before")
    account.refuses = "start"
    assert nights.run(2).returncode == 1
    assert nights.state.header.intent is not None
    account.refuses = ""
    nights.taken(2)
