"""Which files are a log, and that one which is not what was found any more is refused."""

import gzip
import os
import pickle
import shutil
import subprocess

import pytest

from dp_transforms.logs import EventFields, EventFileError, check_unchanged, estimate_log, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import FileState
from tests.helpers import shh_process
from tests.helpers.event_files_oracle import SECRET, read_all, write_csv, write_json
from tests.helpers.replay_logs import BUDGET, write_log

LINE = ("u", "i", "2017-10-01T03:00:00Z")


def _paths(sources):
    return [chunk.path for chunk in find_log_chunks(sources, EventFields())]


def test_folders_are_searched_and_what_is_no_log_is_passed_over(tmp_path):
    (tmp_path / "day=2" / ".hidden").mkdir(parents=True)
    (tmp_path / "_temporary").mkdir()
    wanted = [write_csv(tmp_path / "b.csv", [LINE]), write_json(tmp_path / "day=2" / "a.JSONL", [LINE])]
    wanted.append(write_csv(tmp_path / "log[1].csv", [LINE]))  # a name like a pattern
    os.symlink(wanted[0], tmp_path / "link.csv")
    for other in (".c.csv", "_SUCCESS", "b.csv.crc", "notes.txt", "_temporary/d.csv", "day=2/.hidden/e.csv"):
        write_csv(tmp_path / other, [("x", "x", "x")])
    folder = str(tmp_path)
    assert _paths([folder]) == sorted(wanted)
    assert _paths([folder + "/*"]) == sorted(wanted)
    assert _paths([folder + "/**/*.JSONL"]) == wanted[1:2]
    assert _paths(wanted[2:]) == wanted[2:]
    assert _paths([*wanted[::-1], folder, folder + "/b.*", folder + "/./b.csv"]) == sorted(wanted)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent.csv", "there is no such file or folder. Check the name."),
        ("absent*.csv", "the pattern matches no file."),
        ("empty", "there is no log in it. Logs end in .parquet, .pq, .avro, .csv"),
        ("notes.txt", "its ending is not that of a known format. Let it end in one of .parquet"),
        ("notes*", "there is no log in it."),
        ("pipe.csv", "it is not a regular file. Copy its content to a file first."),
        ("blank.avro", "it is damaged, or not in Avro format."),
        ("blank.parquet", "it is damaged, or not in Parquet format."),
    ],
)
def test_sources_without_logs(tmp_path, source, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name in ("blank.avro", "blank.parquet"):
        (tmp_path / name).write_text("")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(EventFileError, match="none given"):
        find_log_chunks([], EventFields())
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / source)], EventFields())
    assert words in str(caught.value)
    assert str(tmp_path / source) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank.csv", "\n \n"),
        ("header.csv", "user,item,timestamp\n"),
        ("header_without_line_end.csv", "user,item,timestamp"),
        ("header_and_blanks.csv", "user,item,timestamp\n\n \n"),
        ("empty.jsonl", ""),
        ("blank.jsonl", "\n \n"),
    ],
)
def test_a_log_without_rows_is_no_error(tmp_path, name, content):
    """Else one user's only row would decide between an error and a report."""
    (tmp_path / name).write_text(content)
    assert read_all(str(tmp_path / name)) == ([], {})
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    assert estimate_log(chunks, EventFields()).events == 0


def test_errors_are_one_line_and_cross_process_boundaries(tmp_path):
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / "a\n\x1b[31m.csv")], EventFields())
    assert str(caught.value).isprintable()
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(copy), str(copy)) == (EventFileError, str(caught.value))
    assert isinstance(copy, ValueError)


def test_the_estimate_knows_events_and_label_text_of_every_format(tmp_path):
    rows = [(f"u{n}", "x" * 50 + str(n % 100), "2017-10-01T03:00:00Z") for n in range(5000)]
    write_csv(tmp_path / "a.csv", rows)
    write_csv(tmp_path / "b.csv", rows[:2500])
    write_json(tmp_path / "c.jsonl", rows)
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    assert pickle.loads(pickle.dumps(chunks)) == chunks  # noqa: S301
    estimate = estimate_log(chunks, EventFields())
    assert estimate.events == pytest.approx(12_500, rel=0.01)
    beyond_32 = sum(50 + len(str(n)) - 32 for n in range(100))
    assert estimate.long_label_bytes == pytest.approx(125 * beyond_32, rel=0.01)


def test_a_long_label_counts_once_for_each_group_of_windows(tmp_path):
    write_csv(tmp_path / "a.csv", [(f"u{n}", "x" * 1032, "2017-10-01T03:00:00Z") for n in range(3000)])
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    assert estimate_log(chunks, EventFields()).long_label_bytes == pytest.approx(128 * 1000, rel=0.01)


def test_what_may_be_cells_is_never_listed_as_fields(tmp_path):
    """A CSV file without a header."""
    (tmp_path / "log.csv").write_text(f"{SECRET},story,2026-01-01\nu2,story,2026-01-01\n")
    with pytest.raises(EventFileError, match="--user-field") as caught:
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())
    assert SECRET not in str(caught.value)
    assert "story" not in str(caught.value)


CHANGED = "it was changed while it was read"


def grown(path):
    with path.open("ab") as file:
        file.write(path.read_bytes())


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def replaced(path):
    """By a file of the same size and time, as tools do that keep times."""
    shutil.copy2(path, path.with_name("other"))
    os.replace(path.with_name("other"), path)


def written_in_place(path):
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"\0" * 64)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def removed(path):
    path.unlink()


def change_at_another_time(change, path):
    """The clock of a file system goes by some milliseconds."""
    other, before = path.with_name("clock"), path.stat().st_ctime_ns
    other.touch()
    while other.stat().st_ctime_ns <= before:
        other.touch()
    change(path)


@pytest.fixture(params=["jsonl", "csv", "csv.gz", "parquet", "avro"])
def log(request, tmp_path):
    path = tmp_path / f"log.{request.param}"
    write_log(path.with_suffix("") if path.suffix == ".gz" else path)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    return path


def read(chunks):
    for chunk in chunks:
        for _ in read_log_chunk(chunk, EventFields()):
            pass


@pytest.mark.parametrize("change", [grown, cut, replaced, written_in_place, removed])
def test_a_log_that_changes_is_refused_whatever_the_change_looks_like(log, change):
    """Before it is read, where some changes look like damage; while it is; and after, before anything is published."""
    chunks = find_log_chunks([str(log)], EventFields())
    read(chunks)
    check_unchanged(chunks)
    blocks = read_log_chunk(chunks[-1], EventFields())
    next(blocks)
    change_at_another_time(change, log)
    for look in (lambda: list(blocks), lambda: read(chunks), lambda: check_unchanged(chunks)):
        with pytest.raises(EventFileError, match=CHANGED):
            look()


def test_a_copy_on_another_machine_may_have_its_own_times_and_not_another_size(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"content")
    here = FileState.of(str(path))
    assert here is not None
    there = FileState("elsewhere", here.size, 1, 1)
    assert there.fits(here)
    assert not there.fits(FileState(here.machine, here.size + 1, 1, 1))
    assert FileState.of(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_replay_of_a_log_that_grows_publishes_nothing(tmp_path, processes):
    """Whole rows come one after the other, so that no row is damaged."""
    write_log(tmp_path / "log.jsonl")
    line = (tmp_path / "log.jsonl").read_text().splitlines()[0]
    words = ("replay", "log.jsonl", *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl")
    command = ("-m", "dp_transforms.cli.main", *words, "--processes", processes)
    with shh_process.python(*command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            with (tmp_path / "log.jsonl").open("a") as file:
                file.write(f"{line}\n")
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 1
    assert said == f"shh: log.jsonl: {CHANGED}. Use files that nobody writes to any more.\n"
    assert os.listdir(tmp_path) == ["log.jsonl"]
