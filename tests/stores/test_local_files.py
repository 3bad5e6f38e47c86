"""Local files: nothing but regular ones is read, and outputs appear whole."""

import contextlib
import os
import pathlib
import socket
import stat

import pytest

from dp_transforms.stores import local_files
from dp_transforms.stores.files import read_file
from dp_transforms.stores.local_files import create_new, open_regular, write_whole

CONTENT = b"content"


def write(file):
    file.write(CONTENT)


def make(kind, path):
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))  # a socket's path has at most 107 bytes
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "link to a device"])
def test_nothing_but_a_regular_file_is_read_and_nothing_is_waited_for_or_left_open(tmp_path, kind):
    """A FIFO without a writer would hang the test."""
    path = tmp_path / "file"
    make(kind, path)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_regular_file_is_read_through_a_link_too(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_file(tmp_path / "link", 3) == CONTENT[:4], "one byte more shows that it is larger"


def test_a_file_appears_whole_with_the_mode_of_the_umask(tmp_path):
    output, seen = tmp_path / "report.avro", []

    def write_and_look(file):
        write(file)
        seen.extend(os.listdir(tmp_path))

    before = os.umask(0o027)
    try:
        write_whole(output, write_and_look)
    finally:
        os.umask(before)
    assert output.read_bytes() == CONTENT
    assert stat.S_IMODE(output.stat().st_mode) == 0o640
    assert len(seen) == 1
    assert seen[0].startswith(".report.avro.")
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
    for attempt in (
        create_new,
        lambda path: write_whole(path, write),
        *([] if kind == "hard link" else [lambda path: write_whole(path, write, may_replace=True)]),
    ):
        with pytest.raises(FileExistsError):
            attempt(output)
    assert not victim.exists() if kind == "dangling link" else victim.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == sorted({"report.avro", *(["victim"] if victim.exists() else [])})


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


def test_discarding_removes_what_this_process_writes(tmp_path):
    def write_and_discard(file):
        write(file)
        local_files.discard_drafts()
        assert os.listdir(tmp_path) == []

    with contextlib.suppress(FileNotFoundError):
        write_whole(pathlib.Path(tmp_path, "a"), write_and_discard)
    assert os.listdir(tmp_path) == []
