"""Worker processes: where the fork server has its socket, and which words an error has."""

import pytest

from dp_transforms.local.pool import ProcessPool
from dp_transforms.stores.remote_files import RemoteFileError
from tests.helpers.shh_process import run_python


def test_workers_start_below_a_long_folder_for_temporary_files(tmp_path):
    """In which no socket can be. Nothing is left."""
    temporary = tmp_path / ("x" * 120)
    temporary.mkdir()
    program = "from dp_transforms.local.pool import ProcessPool\nwith ProcessPool(1, 1 << 20, b''): print('started')"
    ended = run_python("-c", program, environment={"TMPDIR": str(temporary)})
    assert (ended.stdout, ended.stderr) == ("started\n", "")
    assert not list(temporary.iterdir())


class Refused:
    """A step that a store refuses."""

    def start(self, secret):
        raise RemoteFileError("the store refuses")


def test_an_error_of_a_step_is_not_told_as_one_of_starting():
    with pytest.raises(RemoteFileError, match="the store refuses"), ProcessPool(1, 1 << 20, b"") as workers:
        list(workers.run(Refused(), [0]))
