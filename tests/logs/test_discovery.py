"""Which files are a log, and that one which is not what was found any more is refused."""

import gzip
import os
import pickle
import shutil

import pytest

from dp_transforms.logs import EventFields, EventFileError, check_unchanged, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import FileState
from tests.helpers.event_files_oracle import read_all
from tests.helpers.log_files import write_csv, write_json
from tests.helpers.replay_logs import write_log

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
        ("absent*.csv", "there is no such file or folder. Check the name, and put a pattern in quotes."),
        ("empty", "there is no log in it. Logs end in .parquet, .pq, .avro, .csv"),
        ("notes.txt", "its ending is not that of a known format, .parquet"),
        ("notes*", "there is no log in it."),
        ("pipe.csv", "it cannot be read: it is not a regular file."),
        ("blank.avro", "it is damaged, or not in Avro format."),
        ("blank.parquet", "it is damaged, or not in Parquet format."),
    ],
)
def test_sources_without_logs_are_refused_with_a_remedy(tmp_path, source, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name in ("blank.avro", "blank.parquet"):
        (tmp_path / name).write_text("")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / source)], EventFields())
    assert words in str(caught.value)
    assert str(tmp_path / source) in str(caught.value)
    with pytest.raises(EventFileError, match="none given"):
        find_log_chunks([], EventFields())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank.csv", "\n \n"),
        ("header.csv", "user,item,timestamp"),
        ("header_and_blanks.csv", "user,item,timestamp\n\n \n"),
        ("empty.jsonl", ""),
        ("blank.jsonl", "\n \n"),
    ],
)
def test_a_log_without_rows_is_no_error(tmp_path, name, content):
    """Else one user's only row would decide between an error and a report."""
    (tmp_path / name).write_text(content)
    assert read_all(str(tmp_path / name)) == ([], {})


def test_errors_are_one_line_and_cross_process_boundaries(tmp_path):
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / "a\n\x1b[31m.csv")], EventFields())
    assert str(caught.value).isprintable()
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(copy), str(copy)) == (EventFileError, str(caught.value))


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


@pytest.fixture(params=["jsonl", "csv.gz", "parquet", "avro"])
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
        with pytest.raises(EventFileError, match="it was changed while it was read"):
            look()


def test_a_copy_on_another_machine_may_have_its_own_times_and_not_another_size(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"content")
    here = FileState.of(str(path))
    assert here is not None
    there = FileState("elsewhere", here.size, 1, 1)
    assert there.fits(here)
    assert not there.fits(FileState(here.machine, here.size + 1, 1, 1))
