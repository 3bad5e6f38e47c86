"""No token of a canary where a run fails on its way: damage, kills, a full disk, libraries that quote cells.

Each kind of leak is planted as well, and found.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from apache_beam.metrics import Metrics

from dp_transforms.local import replay as local_replay
from dp_transforms.local.pool import BlobStore
from dp_transforms.logs import EventFields, EventFileError, LogChunk, discovery
from dp_transforms.logs.log_chunk import ReadBlock
from tests.canaries import logs
from tests.canaries.logs import BUDGET, BY_BEAM
from tests.canaries.places import FIELD_NAMES, LOOKS, SPILLED, VERBOSE, assert_as_documented
from tests.canaries.search import Search, found_in
from tests.canaries.tokens import Canaries
from tests.canaries.traces import Home, Ran, Shell, run_apart

REPLAY = ("replay", "log.csv", *BUDGET, "--time-format", "s", "--output", "report.avro", "--dead-letter", "bad.jsonl")
read_chunk = discovery.read_log_chunk


@pytest.fixture(autouse=True)
def given(home: Home, canaries: Canaries) -> None:
    home.put("log.csv", logs.file_of("csv", logs.rows_of(canaries)))


def overwrite(path: pathlib.Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"x" * 40)


FAULTS: dict[str, Callable[[pathlib.Path], object]] = {
    "log.csv": lambda path: os.truncate(path, path.stat().st_size // 2),
    "log.jsonl": os.remove,
    "log.parquet": overwrite,
    "log.avro": overwrite,
    "noise.key": os.remove,
    "out": shutil.rmtree,
    "out/report.avro": pathlib.Path.touch,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_changes_under_the_run(shell: Shell, canaries: Canaries, name: str) -> None:
    """The key has been read by then, and nobody misses it."""
    log = name if name.startswith("log") else "log.csv"
    shell.home.put(log, logs.file_of(log.partition(".")[2], logs.rows_of(canaries)))
    (shell.home.work / "out").mkdir()
    shell.recorded.before_reading = lambda: FAULTS[name](shell.home.work / name)
    words = [{"log.csv": log, "report.avro": "out/report.avro"}.get(word, word) for word in REPLAY]
    ran = shell.run_clean(*words, "--noise-key-file", "noise.key", code=0 if name == "noise.key" else 1)
    assert ran.code == 0 or ran.err.splitlines()[-1].startswith("shh: ")


KILLING = """
import os, sys
from dp_transforms.cli import replay_run
from dp_transforms.cli.main import main
replace = replay_run.replace_whole
def replace_and_die(path, write, **more):
    def write_and_die(handle):
        write(handle)
        os.kill(os.getpid(), int(sys.argv.pop(1)))
    replace(path, write_and_die, **more)
replay_run.replace_whole = replace_and_die
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_what_is_left_of_a_run_that_is_killed(home: Home, search: Search, number: int, code: int) -> None:
    """In the middle of its writing: the file of the report is there, and has no name yet."""
    ran = run_apart(home, ("-c", KILLING, int(number), *REPLAY))
    assert ran.code == code
    if number == signal.SIGKILL:
        assert any(name.startswith("file work/.report.avro.") for name in ran.places)
    assert list(found_in(search, ran.places)) == []


LITTLE_SPACE = """
import resource
from dp_transforms.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
main()
"""


def test_a_full_disk(home: Home, search: Search) -> None:
    ran = run_apart(home, ("-c", LITTLE_SPACE, *REPLAY))
    assert ran.code == 1
    assert "File too large" in ran.err
    assert list(found_in(search, ran.places)) == []


Careless = Callable[..., Ran]


@pytest.fixture
def careless(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Careless:
    """Replays by a reader that does something with a user that it must not."""

    def run(act: Callable[[str], object], *more: str) -> Ran:
        def read(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
            for block in read_chunk(chunk, fields):
                if len(block.batch):
                    act(str(block.batch.user.dictionary[0].as_py()))
                yield block

        monkeypatch.setattr(discovery, "read_log_chunk", read)
        return shell.run(*REPLAY, *more)

    return run


def leave_and_remove(text: str) -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()


LEAKS: dict[str, Callable[[str], object]] = {
    "stderr": lambda user: logging.critical("odd row of %r", user),
    "stdout": lambda user: print(hashlib.sha256(user.encode()).hexdigest()[:24]),
    "counts": lambda user: setattr(local_replay, "_ROWS", f"rows of {user}"),
    "metrics": lambda user: Metrics.counter("careless", f"of {user}").inc(),
    "file work/debug.txt": lambda user: pathlib.Path("debug.txt").write_text(user.encode().hex()),
    "name of work/": lambda user: pathlib.Path(hashlib.md5(user.encode()).hexdigest()).touch(),
    "file tmp/": leave_and_remove,
}


@pytest.mark.parametrize(("driver", "of_another"), [((), "metrics"), (BY_BEAM, "counts")], ids=["here", "beam"])
def test_planted_leaks_are_found(
    shell: Shell, careless: Careless, monkeypatch: pytest.MonkeyPatch, driver: tuple[str, ...], of_another: str
) -> None:
    """A reader that writes down a user: in the log, hashed, as a counter, in files, one of them removed at once."""

    def act(user: str) -> None:
        for leak in LEAKS.values():
            leak(user)

    monkeypatch.setattr(local_replay, "_ROWS", local_replay._ROWS)  # to put it back
    ran = careless(act, *driver)
    assert ran.code == 0, ran.err
    found = shell.leaks(ran)
    assert {kind for _, kind in found} == {"user"}
    for place in LEAKS.keys() - {of_another}:
        assert any(name.startswith(place) for name, _ in found), place
    assert all(name.startswith(tuple(LEAKS)) for name, _ in found)


def test_a_planted_cell_in_an_error_is_found(shell: Shell, careless: Careless) -> None:
    """In base64, in the words of an error that is meant to be shown."""

    def act(user: str) -> None:
        raise EventFileError("log.csv", f"odd row of {base64.b64encode(user.encode()).decode()}")

    assert shell.leaks(careless(act)) == [("stderr", "user")]


@pytest.mark.parametrize(("driver", "place"), [((), "message"), (BY_BEAM, "job graph")], ids=["here", "beam"])
def test_a_canary_in_an_option_is_found_on_its_way_and_in_the_report(
    shell: Shell, canaries: Canaries, driver: tuple[str, ...], place: str
) -> None:
    found = {name for name, _ in shell.leaks(shell.run(*REPLAY, *driver, "--stream", canaries.users[1]))}
    assert "file work/report.avro" in found
    assert any(name.startswith(place) for name in found)


def test_a_file_outside_of_all_folders_is_found(
    shell: Shell, careless: Careless, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    careless(lambda user: elsewhere.write_text("x"))
    assert shell.home.outside == [str(elsewhere)]


def test_the_words_of_a_library_show_with_verbose_alone(shell: Shell, careless: Careless, canaries: Canaries) -> None:
    """A library whose error quotes a cell, at a place where nobody expects it."""

    def act(user: str) -> None:
        raise pa.ArrowInvalid(f"CSV conversion error to timestamp: invalid row '{user},{canaries.labels[1]}'")

    ran = careless(act)
    assert ran.code == 1
    assert shell.leaks(ran) == shell.home.outside == []
    assert "the pipeline failed with" in ran.err
    assert "Traceback" not in ran.err
    ran = careless(act, "--verbose")
    assert ran.code == 1
    leaks = shell.leaks(ran)
    assert {name for name, _ in leaks} == {"stderr"}
    assert_as_documented(VERBOSE, {kind for _, kind in leaks})


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_names_of_fields_are_told(shell: Shell, canaries: Canaries, form: str) -> None:
    """A table with a column for each user: its schema is no cell, and is shown."""
    fields = (f"of_{canaries.users[1]}", f"of_{canaries.labels[1]}", "timestamp")
    shell.home.put(f"log.{form}", logs.file_of(form, [("x", "y", logs.START)] * 3, fields))
    ran = shell.run(*[f"log.{form}" if word == "log.csv" else word for word in REPLAY])
    assert ran.code == 1
    assert "no field 'user'; its fields are: " in ran.err
    leaks = shell.leaks(ran)
    assert {name for name, _ in leaks} == {"stderr"}
    assert_as_documented(FIELD_NAMES, {kind for _, kind in leaks})


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_look_at_a_log_tells_names_of_fields_alone(shell: Shell, canaries: Canaries, form: str) -> None:
    shell.home.put(f"log.{form}", logs.file_of(form, logs.rows_of(canaries)))
    for words in (["doctor", f"log.{form}"], ["replay", f"log.{form}"]):
        ran = shell.run_clean(*words, code=0 if words[0] == "doctor" else 2)
        assert "--time-format s" in ran.out + ran.err
        assert words[0] == "doctor" or ran.out == ""
    fields = (f"of_{canaries.users[1]}", f"of_{canaries.labels[1]}", "timestamp")
    shell.home.put(f"log.{form}", logs.file_of(form, [("x", "y", logs.START)] * 3, fields))
    assert_as_documented(LOOKS, {kind for _, kind in shell.leaks(shell.run("doctor", f"log.{form}"))})


def test_a_look_at_a_hostile_log_shows_no_cell(shell: Shell, canaries: Canaries) -> None:
    """Of some eighty logs, whatever is in them."""
    shown = {}
    for name, (ending, data) in logs.hostile_logs(canaries).items():
        shell.home.clear()
        shell.home.put(f"log.{ending}", data)
        ran = shell.run("doctor", f"log.{ending}")
        assert ran.code in (0, 1), name
        assert "Traceback" not in ran.err + ran.out, name
        assert "should not happen" not in ran.err, f"{name}: {ran.err}"
        if found := shell.leaks(ran):
            shown[name] = found
    # A line of a CSV file that could be the names of its fields is taken for them.
    assert set(shown) <= {"csv with one column of a token"}


def test_what_workers_put_on_disk_has_no_name_and_no_user(
    shell: Shell, search: Search, canaries: Canaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the processes of the run can open it; who reads the disk itself finds labels."""
    # So many labels that a block of them does not travel with the message about it.
    rows = [(user, f"{item} {number}", time) for user, item, time in logs.rows_of(canaries) for number in range(5)]
    shell.home.put("log.csv", logs.file_of("csv", rows))
    on_disk: dict[str, bytes] = {}
    close = BlobStore.close

    def look_and_close(store: BlobStore) -> None:
        in_memory, disk = store.files
        assert os.fstat(disk).st_nlink == 0
        assert os.fstat(in_memory).st_size == 0
        on_disk[f"file {len(on_disk)}"] = os.pread(disk, 1 << 26, 0)
        close(store)

    monkeypatch.setattr(BlobStore, "free", lambda store, blob: None)  # which would give the space back
    monkeypatch.setattr(BlobStore, "close", look_and_close)
    shell.run_clean(*REPLAY, "--processes", "2", "--memory", "1MB")
    assert_as_documented(SPILLED, {kind for _, kind in found_in(search, on_disk)})
