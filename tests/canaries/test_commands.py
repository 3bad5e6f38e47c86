"""No token of a canary in anything that a command leaves or says: whole logs and broken ones, in every format."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.canaries import logs
from tests.canaries.logs import BUDGET, FORMATS, SHARED
from tests.canaries.search import Search, found_in
from tests.canaries.tokens import Canaries
from tests.canaries.traces import Home, Ran, Recorded, run_here

HISTORY = ("--clock", "event", "--idle-timeout", "1s", "--engine", "in-process")


class Shell:
    """Runs commands in the folder of the test, and searches all that they leave and say."""

    def __init__(self, home: Home, recorded: Recorded, search: Search, capfd: Any) -> None:
        self.home, self.recorded = home, recorded
        self._search, self._capfd = search, capfd

    def run(self, *words: object) -> Ran:
        return run_here(self.home, self.recorded, words, self._capfd)

    def leaks(self, ran: Ran) -> list[tuple[str, str]]:
        return list(found_in(self._search, ran.places))

    def run_clean(self, *words: object) -> Ran:
        """Runs, and finds nothing."""
        ran = self.run(*words)
        assert self.leaks(ran) == []
        assert self.home.outside == [], "files outside of all folders that the command was given"
        assert "Traceback" not in ran.err
        return ran


@pytest.fixture
def shell(home: Home, recorded: Recorded, search: Search, capfd: Any) -> Shell:
    return Shell(home, recorded, search, capfd)


def replay(*sources: str, output: str = "report.avro", unit: str = "s", more: tuple[str, ...] = ()) -> list[str]:
    return ["replay", *sources, *BUDGET, "--time-unit", unit, "--output", output, "--dead-letter", "bad.jsonl", *more]


@pytest.mark.parametrize("output", ["avro", "jsonl", "parquet"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_report_names_what_all_hold_and_no_canary(shell: Shell, canaries: Canaries, form: str, output: str) -> None:
    shell.home.put(f"log.{form}", logs.file_of(form, logs.rows_of(canaries)))
    ran = shell.run_clean(*replay(f"log.{form}", output=f"report.{output}"))
    assert ran.code == 0, ran.err
    assert SHARED in ran.out
    assert {"job graph", "options", "metrics"} <= {name.rpartition(" ")[0] for name in ran.places}
    assert f"file work/report.{output}" in ran.places
    for words in (["--all"], ["--json"], ["--chart", "report.svg"]):
        shown = shell.run_clean("show", f"report.{output}", *words)
        assert shown.code == 0
        assert SHARED in shown.out


def test_rows_that_cannot_be_read_are_told_by_place_alone(shell: Shell, canaries: Canaries) -> None:
    """The dead letter lists them: no cell is in it."""
    hostile = logs.hostile_logs(canaries)
    for number, name in enumerate(("jsonl with odd types", "jsonl with tokens as times", "csv with more cells")):
        shell.home.put(f"{number}.{hostile[name][0]}", hostile[name][1])
    shell.home.put("3.jsonl", logs.file_of("jsonl", [(None, label, logs.START) for label in canaries.labels[:30]]))
    ran = shell.run_clean(*replay("0.jsonl", "1.jsonl", "2.csv", "3.jsonl", more=("--max-bad-fraction", "0.5")))
    assert ran.code == 0, ran.err
    told = ran.places["file work/bad.jsonl"].decode().splitlines()
    assert len(told) >= 41 + 40 + 30 + 30
    assert all(set(json.loads(line)) == {"file", "position", "reason"} for line in told)


def test_ids_that_are_numbers_do_not_show(shell: Shell, canaries: Canaries) -> None:
    user, item, time = zip(*logs.number_rows(canaries), strict=True)
    shell.home.put("log.jsonl", logs.file_of("jsonl", logs.number_rows(canaries)))
    shell.home.put("log.csv", logs.file_of("csv", logs.number_rows(canaries)))
    shell.home.put("log.parquet", logs.parquet({"user": user, "item": list(map(str, item)), "timestamp": time}))
    types = ("long", ["long", "string"], "long")
    shell.home.put("log.avro", logs.avro(logs.number_rows(canaries), types=types))
    for form in FORMATS:
        ran = shell.run_clean(*replay(f"log.{form}", output=f"{form}.jsonl", more=("--dead-letter", f"{form}.bad")))
        assert ran.code == 0, ran.err
        assert "7" in [item["item"] for item in json.loads(ran.places[f"file work/{form}.jsonl"].splitlines()[1])["heavy_hitters"]]


def test_no_error_about_a_log_shows_a_cell(shell: Shell, canaries: Canaries) -> None:
    """Some eighty logs: damaged at several places, of wrong types, without a header, with hostile cells."""
    leaks, outcomes = {}, {}
    for name, (ending, data) in logs.hostile_logs(canaries).items():
        shell.home.clear()
        shell.home.put(f"log.{ending}", data)
        ran = shell.run(*replay(f"log.{ending}"))
        if found := shell.leaks(ran):
            leaks[name] = found
        outcomes[name] = ran.code
        assert "Traceback" not in ran.err, name
        assert shell.home.outside == []
    assert leaks == {}
    assert sum(code == 1 for code in outcomes.values()) >= len(outcomes) // 2
    assert set(outcomes.values()) <= {0, 1}
