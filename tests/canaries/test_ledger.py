"""No token of a canary in a ledger, in what is said and drawn from it, or in the state of a run beside it."""

from __future__ import annotations

from tests.canaries import logs
from tests.canaries.logs import BUDGET, SHARED
from tests.canaries.tokens import Canaries
from tests.canaries.traces import Shell

ACCOUNT = ("--ledger", "ledger.db", "--population", "news")
CAPS = ("--caps", "20", "1e-4")
PART = ("--state", "run.state", "--noise-key-file", "noise.key")


def replay(output: str, *more: str, source: str = "log.jsonl") -> list[str]:
    return ["replay", source, *BUDGET, "--time-format", "s", "--output", output, *ACCOUNT, *more]


def test_a_ledger_and_a_state_show_no_canary(shell: Shell, canaries: Canaries) -> None:
    """A part that fails, the same one from a mended log, a run without a state; then all that an operator asks."""
    rows = logs.rows_of(canaries)
    shell.home.put("log.jsonl", logs.file_of("jsonl", [*rows, *[(None, label, at) for _, label, at in rows * 2]]))
    words = replay("1.avro", "--charge", "contributions", *PART, *CAPS)
    failed = shell.run_clean(*words, code=1)
    assert "could not be read" in failed.err
    shell.home.put("log.jsonl", logs.file_of("jsonl", rows))
    taken = shell.run_clean(*replay("1.avro", "--charge", "contributions", *PART))
    assert SHARED in taken.out
    whole = shell.run_clean(*replay("2.avro", "--charge", "contributions"))
    assert {"file work/ledger.db", "file work/run.state"} <= set(whole.places)
    assert SHARED.encode() in taken.places["file work/run.state"], "labels of items that were named are there"
    shell.run_clean("ledger", *ACCOUNT)
    shell.run_clean("ledger", *ACCOUNT[:2], "--json")
    shell.run_clean("ledger", "doctor", *ACCOUNT[:2], "run.state", "1.avro")


def test_a_log_that_is_given_as_a_ledger_or_a_state_is_not_shown(shell: Shell, canaries: Canaries) -> None:
    for form in ("jsonl", "avro"):
        shell.home.put("log", logs.file_of(form, logs.rows_of(canaries)), 0o600)
        shell.home.put("log.jsonl", logs.file_of("jsonl", logs.rows_of(canaries)))
        for words in (
            ["ledger", "--ledger", "log"],
            ["ledger", "doctor", "--ledger", "log"],
            ["ledger", "doctor", "--ledger", "none.db", "log"],
            ["replay", "log.jsonl", *BUDGET, "--output", "r.avro", "--ledger", "log", "--population", "news", *CAPS],
            ["replay", "log.jsonl", *BUDGET, "--output", "r.avro", "--state", "log", *PART[2:]],
        ):
            shell.run_clean(*words, code=1)
        shell.home.clear()
