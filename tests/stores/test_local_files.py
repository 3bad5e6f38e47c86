"""Local files: nothing but regular ones is read, outputs appear whole, and what the dead left is removed."""

import contextlib
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys

import pytest

from dp_transforms.stores import local_files
from dp_transforms.stores.local_files import create_new, discard_drafts, draft_of, open_regular, write_whole

ROOT = pathlib.Path(__file__).parents[2]
CONTENT = b"content"


def write(file):
    file.write(CONTENT)


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device", "link to a fifo"])
def test_nothing_but_a_regular_file_is_read_and_nothing_is_waited_for(tmp_path, kind):
    """A FIFO without a writer would hang the test."""
    path = tmp_path / "file"
    if kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = pathlib.Path("/dev/zero")
    elif kind == "socket":
        path = pathlib.Path(os.path.relpath(path))  # a socket's path has at most 107 bytes
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(path))
        bound.close()
    else:
        os.mkfifo(path)
    if kind.startswith("link"):
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with pytest.raises(OSError, match="not a regular file") as caught:
        open_regular(path)
    assert "\n" not in caught.value.strerror


def test_a_refused_file_is_closed(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        with contextlib.suppress(OSError):
            open_regular(tmp_path / "fifo")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_regular_file_is_read_through_a_link_too(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == CONTENT
    assert local_files.read_regular(tmp_path / "file", 3) == CONTENT[:4]


def test_a_file_appears_whole_with_the_mode_of_the_umask(tmp_path):
    output = tmp_path / "report.avro"
    before = os.umask(0o027)
    try:
        write_whole(output, write)
    finally:
        os.umask(before)
    assert output.read_bytes() == CONTENT
    assert stat.S_IMODE(output.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report.avro"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link"])
def test_nothing_is_overwritten_and_no_link_is_followed(tmp_path, kind):
    victim, output = tmp_path / "victim", tmp_path / "report.avro"
    victim.write_text("precious")
    if kind == "hard link":
        os.link(victim, output)
    else:
        output.symlink_to(victim)
    if kind == "dangling link":
        victim.unlink()
    for attempt in (create_new, lambda path: write_whole(path, write)):
        with pytest.raises(FileExistsError):
            attempt(output)
    assert not victim.exists() if kind == "dangling link" else victim.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == sorted({"report.avro", *(["victim"] if victim.exists() else [])})


def test_a_draft_is_for_its_owner_alone_and_beside_the_output(tmp_path):
    before = os.umask(0)
    try:
        with draft_of(tmp_path / "report.avro") as folder:
            assert folder.parent == tmp_path
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_links_works_too(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    write_whole(tmp_path / "report", write)
    assert (tmp_path / "report").read_bytes() == CONTENT
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "report", write)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="not permitted"):
        write_whole(tmp_path / "other", write)
    assert os.listdir(tmp_path) == ["report"]


DRAFTING = """
import sys, time
from dp_transforms.stores.local_files import draft_of
with draft_of(sys.argv[1]) as folder:
    (folder / "content").write_text("half")
    print(folder, flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def drafting(output):
    """A process that writes, and its draft."""
    command = [sys.executable, "-c", DRAFTING, str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, pathlib.Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_next_run_removes_it_and_spares_the_living(tmp_path):
    output = tmp_path / "re[p]ort.avro"
    with (
        drafting(output) as (dead, left),
        drafting(output) as (_, alive),
        drafting(tmp_path / "other") as (_, other),
    ):
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "content").exists()
        write_whole(output, write)
        assert not left.exists()
        assert (alive / "content").exists()
        assert (other / "content").exists()
    assert output.read_bytes() == CONTENT


def test_what_only_looks_alike_is_spared(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / ".report.0123456789abcdef.partial").symlink_to(tmp_path / "precious")
    (tmp_path / ".report.0123456789abcde0.partial").write_text("a file")
    (tmp_path / ".report.mine.partial").mkdir()
    (tmp_path / ".report2.0123456789abcdef.partial").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    with draft_of(tmp_path / "report"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_discarding_removes_what_this_process_writes(tmp_path):
    with contextlib.suppress(FileNotFoundError), draft_of(tmp_path / "a") as first:
        create_new(first / "content").close()
        discard_drafts()
        assert not first.exists()
    assert os.listdir(tmp_path) == []
