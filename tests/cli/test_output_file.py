"""A disk that is full, a folder that goes away, a process that is killed: the output is named, and nothing is left."""

import shutil

import pytest

from dp_transforms.local.replay import LocalReplay
from tests.cli.command_paths import BUDGET, REPLAY, WRITTEN, make_inputs
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import run_python

# A file can grow to 100 bytes and no further: to a writer that is as a full disk, and needs no disk of its own.
FULL = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
from dp_transforms.cli.main import main
main()
"""
# When the report is written, and has no name yet.
KILLED = """
from dp_transforms.stores import local_files
def and_then(*arguments):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
local_files.publish = and_then
from dp_transforms.cli.main import main
main()
"""
DAILY = [("replay", "output"), ("stream", "output")]  # the others are nightly


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the inputs."""
    monkeypatch.chdir(tmp_path)
    make_inputs(tmp_path)
    return tmp_path


def run_program(program, *words):
    return run_python("-c", program, *words, environment={"PYTHONDONTWRITEBYTECODE": "1"})


def names_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=() if place in DAILY else pytest.mark.nightly, id=" ".join(place))
        for place, words in WRITTEN.items()
    ],
)
def test_a_full_disk_names_the_output_and_leaves_nothing(folder, words):
    if words[0] == "audit":
        assert shh("plan", *BUDGET.split(), "--output", "plan.json", cwd=folder).returncode == 0
    if words[0] == "replay" and "report.avro" in words:
        (folder / "report.avro").unlink()
    before = names_below(folder)
    done = run_program(FULL, *words)
    last_line = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last_line.startswith("shh: ")
    assert "File too large" in last_line
    assert any(name in last_line for name in (words[-1], "report.avro", "reports", "bad"))
    for internal in ("[while running", ".partial", ".tmp", "Traceback"):
        assert internal not in done.stderr
    left = names_below(folder) - before
    if words[0] == "stream":  # whose folders are made before there is anything in them
        left = {name for name in left if not (folder / name).is_dir()} - {"out/header.json", "reports/header.json"}
    assert left == set()


def test_a_folder_that_is_removed_during_the_run(folder, monkeypatch):
    (folder / "out").mkdir()
    found = LocalReplay._found

    def remove_and_find(*arguments):
        shutil.rmtree("out", ignore_errors=True)
        return found(*arguments)

    monkeypatch.setattr(LocalReplay, "_found", remove_and_find)
    done = shh("replay", "log.jsonl", *BUDGET.split(), "--output", "out/report.avro", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "shh: cannot write out/report.avro: No such file or directory. Check that its folder is there and has free"
        " space."
    )


def test_what_kill_9_leaves_is_hidden_and_does_not_hinder_the_next_run(folder):
    words, before = ["replay", *REPLAY.split()], names_below(folder)
    assert run_program(KILLED, *words).returncode == -9
    (left,) = names_below(folder) - before
    assert left.startswith(".out.avro.")
    done = shh(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert names_below(folder) - before == {"out.avro", left}
