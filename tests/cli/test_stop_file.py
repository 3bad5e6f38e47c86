"""Where the stop file of a stream is: beside the reports, or where nobody else can make one."""

import os
import pathlib
import stat
import tempfile

import pytest

from dp_transforms.cli.stream_request import stop_file_of_run
from dp_transforms.errors import UserError


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def default(run_id):
    """With a topic for reports, on an engine of this machine."""
    path = stop_file_of_run(None, None, run_id, is_here=True)
    assert path is not None
    return pathlib.Path(path)


def test_it_is_what_is_named_or_beside_the_reports_or_in_a_folder_that_its_owner_alone_can_enter(temporary):
    """A run id can be guessed, so a file in the temporary folder itself could be made by anybody."""
    assert stop_file_of_run("/x/stop", "/x/reports", "run", is_here=True) == "/x/stop"
    assert stop_file_of_run(None, "/x/reports", "run", is_here=False) == "/x/reports.stop"
    assert stop_file_of_run(None, None, "run", is_here=False) is None
    assert list(temporary.iterdir()) == []
    before = os.umask(0)
    try:
        path = default("nightly")
    finally:
        os.umask(before)
    assert path.parent.parent == temporary
    assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()
    assert default("nightly") == path  # a run that is resumed finds its own


def test_each_run_has_its_own(temporary):
    names = {default(run_id).name for run_id in ("a b", "a_b", "a/b", "../b", "x" * 1000, "x" * 1001, "\u00e9")}
    assert len(names) == 7
    assert all(len(name) < 200 and name.isascii() and "/" not in name for name in names)


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "of somebody else"])
def test_a_folder_that_somebody_else_may_have_made_is_refused(temporary, kind, monkeypatch):
    folder = default("nightly").parent
    if kind == "open to others":
        folder.chmod(0o770)
    elif kind == "of somebody else":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        folder.rename(temporary / f"shh-{os.getuid() + 1}")
    else:
        folder.rename(temporary / "other")
        folder.touch(0o600) if kind == "a file" else folder.symlink_to(temporary / "other")
    with pytest.raises(
        UserError, match=r"must be a folder of this user with mode 0700.*Remove it, or name --stop-file"
    ):
        default("nightly")


def test_a_temporary_folder_that_cannot_be_written_names_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UserError, match=r"cannot be made: No such file or directory\. Name --stop-file\."):
        default("nightly")
