"""Worker processes: what the fork server leaves, and which words an error has."""

import pytest

from dp_transforms.local.pool import ProcessPool
from dp_transforms.stores.remote_files import RemoteFileError
from tests.helpers.shh_process import run_python

KILLED = """
import os, signal
from dp_transforms.local.pool import start_fork_server
start_fork_server()
print(os.environ["SHH_FORK_SERVER"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("is_long", [False, True])
def test_a_fork_server_removes_its_own_folder_alone_whatever_the_environment_names(tmp_path, short_folder, is_long):
    """Also where the command was killed; `run_python` waits until nobody has the output any more. A socket cannot be
    below a long TMPDIR."""
    foreign, temporary = tmp_path / "foreign", tmp_path / ("x" * 120) if is_long else short_folder
    foreign.mkdir()
    temporary.mkdir(exist_ok=True)
    (foreign / "data").write_text("of somebody")
    ended = run_python("-c", KILLED, environment={"SHH_FORK_SERVER": str(foreign), "TMPDIR": str(temporary)})
    assert ended.stdout == f"{foreign}\n", "the caller has it back"
    assert (foreign / "data").read_text() == "of somebody"
    assert not list(temporary.iterdir())


class Refused:
    """A step that a store refuses."""

    def start(self, secret):
        raise RemoteFileError("the store refuses")


def test_an_error_of_a_step_is_not_told_as_one_of_starting():
    with pytest.raises(RemoteFileError, match="the store refuses"), ProcessPool(1, 1 << 20, b"") as workers:
        list(workers.run(Refused(), [0]))
