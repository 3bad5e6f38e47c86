"""Where the stop file of a stream is: beside the reports, or where nobody else can make one."""

import os
import pathlib
import stat
import tempfile

import pytest

from dp_transforms.cli.stream_request import stop_file_of
from dp_transforms.errors import UserError


def test_it_is_what_is_named_or_beside_the_reports_or_in_a_folder_that_its_owner_alone_can_enter(tmp_path, monkeypatch):
    """A run id can be guessed, so a file in the temporary folder itself could be made by anybody."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert stop_file_of("/x/stop", "/x/reports", is_here=True) == "/x/stop"
    assert stop_file_of(None, "/x/reports", is_here=False) == "/x/reports.stop"
    assert stop_file_of(None, None, is_here=False) is None
    assert list(tmp_path.iterdir()) == []
    before = os.umask(0)
    try:
        path, other = (pathlib.Path(str(stop_file_of(None, None, is_here=True))) for _ in range(2))
    finally:
        os.umask(before)
    assert path.parent.parent == tmp_path
    assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()
    assert other != path


def test_a_temporary_folder_that_cannot_be_written_names_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UserError, match=r"No such file or directory\. Name --stop-file\."):
        stop_file_of(None, None, is_here=True)
