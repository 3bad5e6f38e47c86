"""No token of a canary in what a stream leaves or says on an engine, but in the places that docs/security.md lists."""

from __future__ import annotations

import json

import pytest

from tests.canaries import logs
from tests.canaries.logs import BUDGET, FORMATS, SHARED
from tests.canaries.places import BROKER, CHECKPOINTS, ENGINE_LOGS, assert_as_documented
from tests.canaries.search import found_in
from tests.canaries.traces import quoting_library, run_apart
from tests.engines import needs, on
from tests.engines.stream_case import Row
from tests.helpers.modes import words_of_mode

HISTORY = ("--clock", "event", "--out-of-order", "1h", "--idle-timeout", "5s")
RUNNERS = {"prism": "--runner=PrismRunner", "flink": "--runner=FlinkRunner"}


def run_stream(home, mode, *words: object, checkpoints=False):
    home.put("names.json", logs.looks_plan().to_json().encode())
    budget = ("--plan", "names.json") if mode == "looks" else (*BUDGET, *words_of_mode(mode))
    state = f"--state_backend_storage_path={(home.work / 'checkpoints').as_uri()}"
    more = ("--state_backend=filesystem", state, "--checkpointing_interval=1000") if checkpoints else ()
    command = ("stream", *budget, *HISTORY, "--noise-key-file", "noise.key", "--dead-letter", "bad", *words, *more)
    ran = run_apart(home, ("-m", "tests.canaries.driver", *command))
    assert "Traceback" not in ran.err
    assert ran.code == 0, ran.err
    for place in ("job graph", "options", "metrics"):
        assert any(f"recorded/{place}" in name for name in ran.places)
    assert any(name.startswith("file work/bad/") for name in ran.places)
    return ran


def is_checkpoint(place):
    """Its content; a token in its name would be a leak."""
    return place.startswith("file work/checkpoints/")


def assert_only_in_checkpoints(ran, search):
    leaks = list(found_in(search, ran.places))
    assert [leak for leak in leaks if not is_checkpoint(leak[0])] == []
    if any(map(is_checkpoint, ran.places)):
        assert_as_documented(CHECKPOINTS, {kind for _, kind in leaks})


@pytest.mark.parametrize(
    ("engine", "mode"), [on("prism", "looks"), *(on("flink", mode, is_long=True) for mode in ("hits", "looks"))]
)
def test_a_stream_of_a_folder_on_an_engine(home, canaries, search, engine, mode):
    for form in FORMATS:
        home.put(f"logs/log.{form}", logs.file_of(form, logs.rows_of(canaries)))
    home.put("logs/odd.jsonl", logs.hostile_logs(canaries)["jsonl with odd types"][1])
    words = ("--input", "logs", "--time-format", "s", "--output", "reports", RUNNERS[engine])
    ran = run_stream(home, mode, *words, checkpoints=engine == "flink")
    assert SHARED in ran.out
    assert engine != "flink" or any(map(is_checkpoint, ran.places))
    assert_only_in_checkpoints(ran, search)


def run_with_quoting_library(home, canaries, folder, *runner: str):
    rows = [row for row in logs.rows_of(canaries) if row[1] != SHARED]
    home.put("logs/log.parquet", logs.file_of("parquet", rows))
    command = ("stream", *BUDGET, *HISTORY, "--noise-key-file", "noise.key", "--input", "logs", "--time-format", "s")
    command += ("--output", "reports", *runner)
    ran = run_apart(home, ("-m", "dp_transforms.cli.main", *command), environment=quoting_library(folder))
    assert ran.code == 1, ran.err
    assert "Traceback" not in ran.err
    assert "the pipeline failed with" in ran.err
    return ran


@needs("prism")
def test_a_library_that_quotes_cells_on_prism(home, canaries, search, tmp_path):
    """The command tells nothing of it, though Beam prints it past its log."""
    ran = run_with_quoting_library(home, canaries, tmp_path, RUNNERS["prism"])
    assert list(found_in(search, ran.places)) == []


@pytest.mark.nightly
def test_a_library_that_quotes_cells_on_an_engine(cluster, home, canaries, search, tmp_path):
    """The command tells nothing of it; the log of Flink does."""
    words = (RUNNERS["flink"], f"--flink_master={cluster.flink.address}", "--number_of_execution_retries=0")
    ran = run_with_quoting_library(home, canaries, tmp_path, *words)
    assert list(found_in(search, ran.places)) == []
    in_logs = found_in(search, {str(path): path.read_bytes() for path in cluster.log_files()})
    assert_as_documented(ENGINE_LOGS, {kind for _, kind in in_logs})


def records(canaries):
    """Of all canaries, and some that cannot be read."""
    for user, item, seconds in logs.rows_of(canaries):
        row = Row(0, (str(user), str(item), int(str(seconds)) * 1_000_000))
        yield row.json()
    for user in canaries.users[:20]:
        yield json.dumps({"user": [user], "item": {user: user}, "time": user}).encode()
        yield user.encode()


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        on("prism", "hits"),
        on("prism", "looks", is_long=True),
        on("flink", "hits", is_long=True),
        on("flink", "looks", is_long=True),
    ],
)
def test_a_topic(kafka, home, canaries, search, engine, mode):
    """The broker's disk holds the log, and nothing else does."""
    topic = f"canaries-{engine}-{mode}"
    kafka.create_topic(topic)
    kafka.produce(topic, records(canaries))
    words: tuple[object, ...] = ("--input", f"kafka://{kafka.bootstrap}/{topic}", "--output", "reports")
    words += ("--time-field", "time", "--time-format", "us", RUNNERS[engine])
    ran = run_stream(home, mode, *words, checkpoints=engine == "flink")
    assert SHARED in ran.out
    assert_only_in_checkpoints(ran, search)
    disk = {str(path): path.read_bytes() for path in kafka.data.rglob("*.log")}
    found = list(found_in(search, disk))
    assert all("/canaries-" in name for name, _ in found)
    assert_as_documented(BROKER, {kind for _, kind in found})
