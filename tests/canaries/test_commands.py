"""No token of a canary in anything that a command leaves or says: whole logs and broken ones, in every format."""

from __future__ import annotations

import json
import pathlib

import pytest

from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from tests.canaries import logs
from tests.canaries.logs import BUDGET, FORMATS, SHARED
from tests.canaries.tokens import Canaries
from tests.canaries.traces import Shell

HISTORY = ("--clock", "event", "--out-of-order", "1h", "--idle-timeout", "1s", "--time-format", "s")


def replay(*sources: str, output: str = "report.avro", unit: str = "s", more: tuple[str, ...] = ()) -> list[str]:
    return ["replay", *sources, *BUDGET, "--time-format", unit, "--output", output, "--dead-letter", "bad.jsonl", *more]


def test_a_report_names_what_all_hold_and_no_canary(shell: Shell, canaries: Canaries) -> None:
    """Of a log in all formats, in a report of each, here and by Beam. Where contributions are charged users have two,
    and one counts: the operator is told how many did not, and not whose."""
    for form in FORMATS:
        shell.home.put(f"logs/log.{form}", logs.file_of(form, logs.rows_of(canaries)))
    one_look = ("--charge", "contributions", "--usual-contributions", "1", "1", "--most-contributions", "1")
    here, by_beam = {"message", "counts"}, {"job graph", "options", "metrics"}
    for output, source, more, recorded in (
        ("avro", "logs", (), here),
        ("jsonl", "logs/log.csv", one_look, here),
        ("json", "logs", logs.BY_BEAM, by_beam),
    ):
        ran = shell.run_clean(*replay(source, output=f"report.{output}", more=more))
        assert SHARED in ran.out
        assert ("contributions beyond --most-contributions" in ran.err) == (more == one_look)
        assert recorded == (here | by_beam) & {name.rpartition(" ")[0] for name in ran.places}
        assert f"file work/report.{output}" in ran.places
        (shell.home.work / "bad.jsonl").unlink()
    for words in (["--last", "100"], ["--json"]):
        shown = shell.run_clean("show", "report.jsonl", *words)
        assert SHARED in shown.out
    shell.run_clean("show", "report.avro", "--html", "report.html")


def test_rows_that_cannot_be_read_are_told_by_place_alone(shell: Shell, canaries: Canaries) -> None:
    """The dead letter lists them: no cell is in it."""
    hostile = logs.hostile_logs(canaries)
    for number, name in enumerate(("jsonl with odd types", "jsonl with tokens as times", "csv with more cells")):
        shell.home.put(f"{number}.{hostile[name][0]}", hostile[name][1])
    shell.home.put("3.jsonl", logs.file_of("jsonl", [(None, label, logs.START) for label in canaries.labels[:30]]))
    ran = shell.run_clean(*replay("0.jsonl", "1.jsonl", "2.csv", "3.jsonl"))
    lines = ran.places["file work/bad.jsonl"].decode().splitlines()
    assert len(lines) >= 41 + 40 + 30 + 30
    assert all(set(json.loads(line)) == {"file", "position", "reason"} for line in lines)


def test_ids_that_are_numbers_do_not_show(shell: Shell, canaries: Canaries) -> None:
    user, item, time = zip(*logs.number_rows(canaries), strict=True)
    shell.home.put("log.jsonl", logs.file_of("jsonl", logs.number_rows(canaries)))
    shell.home.put("log.csv", logs.file_of("csv", logs.number_rows(canaries)))
    shell.home.put("log.parquet", logs.parquet({"user": user, "item": list(map(str, item)), "timestamp": time}))
    types = ("long", ["long", "string"], "long")
    shell.home.put("log.avro", logs.avro(logs.number_rows(canaries), types=types))
    ran = shell.run(*replay(*(f"log.{form}" for form in FORMATS), output="report.jsonl"))
    assert ran.code == 0, ran.err
    assert all(place.startswith("message") for place, _ in shell.leaks(ran)), "each is an item too, which workers know"
    assert shell.home.outside == []
    shell.home.put("users.csv", logs.file_of("csv", [row for row in logs.number_rows(canaries) if row[0] != row[1]]))
    shell.run_clean(*replay("users.csv", output="users.jsonl", more=("--dead-letter", "none.jsonl")))
    report = json.loads(ran.places["file work/report.jsonl"].splitlines()[1])
    assert [found["item"] for found in report["heavy_hitters"]] == ["7"]


def is_readable(path: pathlib.Path) -> bool:
    """Whether a reader gets through; what the command says about the others is of interest one by one."""
    try:
        for chunk in find_log_chunks([str(path)], EventFields(time_unit="s")):
            for _ in read_log_chunk(chunk, EventFields(time_unit="s")):
                pass
    except ValueError:
        return False
    return True


def test_no_error_about_a_log_shows_a_cell(shell: Shell, canaries: Canaries) -> None:
    """Some eighty logs: damaged at several places, of wrong types, without a header, with hostile cells.

    Those that end a run are replayed one by one, all others together.
    """
    leaks, readable = {}, {}
    hostile = logs.hostile_logs(canaries)
    for number, (name, (ending, data)) in enumerate(hostile.items()):
        shell.home.clear()
        if is_readable(shell.home.put(f"log.{ending}", data)):
            readable[f"{number}.{ending}"] = data
            continue
        ran = shell.run(*replay(f"log.{ending}"))
        if found := shell.leaks(ran):
            leaks[name] = found
        assert ran.code == 1, name
        assert "Traceback" not in ran.err, name
        assert shell.home.outside == []
    assert leaks == {}
    assert 10 < len(readable) < len(hostile) - 10
    shell.home.clear()
    for name, data in readable.items():
        shell.home.put(name, data)
    ran = shell.run_clean(*replay(*readable))
    assert len(ran.places["file work/bad.jsonl"].splitlines()) > 1000


def stream(*more: object, budget: tuple[str, ...] = BUDGET) -> list[object]:
    return ["stream", "--input", "logs", *budget, *HISTORY, "--dead-letter", "bad", *more]


def test_a_stream_of_a_folder_shows_no_canary(shell: Shell, canaries: Canaries) -> None:
    """Whole logs of each format; then the same place again, which is refused."""
    for form in FORMATS:
        shell.home.put(f"logs/log.{form}", logs.file_of(form, logs.rows_of(canaries)))
    ran = shell.run_clean(*stream("--output", "reports"))
    assert SHARED in ran.out
    assert any(name.startswith("file work/reports/") for name in ran.places)
    again = shell.run_clean(*stream("--output", "reports"), code=1)
    assert "which has ended" in again.err
    shown = shell.run_clean("show", "reports", "--last", "100")
    assert SHARED in shown.out


def test_a_stream_of_hostile_logs_shows_no_canary(shell: Shell, canaries: Canaries) -> None:
    """Those of text, whose rows are rejected one by one. Mode looks keeps more than the others: what every user has
    left, and labels that were named."""
    shell.home.put("looks.json", logs.looks_plan().to_json().encode())
    shell.home.put("logs/0.csv", logs.file_of("csv", logs.rows_of(canaries)))
    for number, (name, (ending, data)) in enumerate(logs.hostile_logs(canaries).items()):
        if name.startswith(("csv", "jsonl")) and is_readable(shell.home.put(f"log.{ending}", data)):
            shell.home.put(f"logs/{number + 1}.{ending}", data)
    ran = shell.run_clean(*stream("--output", "reports", budget=("--plan", "looks.json")))
    assert SHARED in ran.out
    assert any(name.startswith("file work/bad/") for name in ran.places)


# Options that take a file, given the log itself by mistake.
MISTAKES = {
    "a plan": ["replay", "LOG", "--plan", "LOG", "--output", "r.avro"],
    "an audited plan": ["audit", "--plan", "LOG"],
    "a domain": ["plan", *BUDGET, "--public-items", "LOG"],
    "a key": ["replay", "LOG", *BUDGET, "--time-format", "s", "--output", "r.avro", "--noise-key-file", "LOG"],
    "a report": ["show", "LOG"],
    "a page": ["show", "LOG", "--html", "page.html"],
    "an explained report": ["explain", "LOG"],
    "an explained plan": ["explain", "--plan", "LOG"],
    "an output": ["replay", "LOG", *BUDGET, "--time-format", "s", "--output", "LOG"],
    "a dead letter": ["replay", "LOG", *BUDGET, "--output", "r.avro", "--dead-letter", "LOG"],
    "a simulated log": ["simulate", "--users", "1", "--output", "LOG"],
    "a folder": ["stream", "--input", "LOG", *BUDGET, "--output", "r"],
    "a folder of reports": ["stream", "--input", ".", *BUDGET, "--output", "LOG"],
    "settings of Kafka": [
        *("stream", "--input", "kafka://localhost:9/t", "--kafka-config", "LOG", *BUDGET),
        *("--output", "r", "--noise-key-file", "noise.key"),
    ],
    "no unit": ["replay", "LOG", *BUDGET, "--output", "r.avro"],
    "a wrong unit": ["replay", "LOG", *BUDGET, "--output", "r.avro", "--time-format", "us"],
    "dates as a unit": ["replay", "LOG", *BUDGET, "--output", "r.avro", "--time-format", "iso"],
    "another field": ["replay", "LOG", *BUDGET, "--output", "r.avro", "--user-field", "nobody"],
    "users as times": [
        *("replay", "LOG", *BUDGET, "--output", "r.avro", "--time-field", "user", "--user-field", "timestamp"),
        *("--time-format", "s"),
    ],
    "labels as times": [
        *("replay", "LOG", *BUDGET, "--output", "r.avro", "--time-field", "item", "--item-field", "timestamp")
    ],
    "a folder that is not there": ["replay", "LOG", *BUDGET, "--time-format", "s", "--output", "nowhere/r.avro"],
}


@pytest.mark.parametrize("shift", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_no_mistake_with_an_option_shows_a_cell(shell: Shell, canaries: Canaries, shift: int) -> None:
    """Each of them with logs of two formats."""
    leaks, codes = {}, {}
    for number, (name, words) in enumerate(MISTAKES.items()):
        shell.home.clear()
        form = FORMATS[(number + shift) % len(FORMATS)]
        log = shell.home.put(f"log.{form}", logs.file_of(form, logs.rows_of(canaries)[:600]))
        log.chmod(0o600)  # else it would be no key for another reason
        ran = shell.run(*[log.name if word == "LOG" else word for word in words])
        if found := shell.leaks(ran):
            leaks[name] = found
        codes[name] = ran.code
        assert "Traceback" not in ran.err, name
    assert leaks == {}
    # A log of 32 bytes is a key, and one of lines may be a list of items: these are for the operator to know.
    assert {name for name, code in codes.items() if code == 0} <= {"a key", "a domain", "a wrong unit"}


def test_the_state_of_a_run_holds_no_canary(shell: Shell, canaries: Canaries) -> None:
    """It has hashes of users, and in mode looks labels of items that were named; the other mode: test_ledger."""
    shell.home.put("log.jsonl", logs.file_of("jsonl", logs.rows_of(canaries)))
    words = ("replay", "log.jsonl", *BUDGET, "--time-format", "s", "--output", "report.jsonl", "--charge", "hits")
    ran = shell.run_clean(*words, "--noise-key-file", "noise.key", "--state", "run.state")
    assert SHARED in ran.out
    assert len(ran.places["file work/run.state"]) > 200
