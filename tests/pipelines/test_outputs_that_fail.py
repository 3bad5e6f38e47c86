"""A disk that is full, a folder that goes away, a process that is killed: the output is named, and nothing is left."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.pipelines.command_paths import BUDGET, lines_that_write, make_inputs, run

ROOT = pathlib.Path(__file__).parents[2]
# A file can grow to so many bytes and no further: to a writer it is as a full disk, and needs no disk of its own.
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
from dp_transforms.pipelines.cli import main
main()
"""
# In the middle of a replay, within a DoFn.
MEANWHILE = """
from dp_transforms.beam import read_events
advance = read_events.ReadProgress.advance
def and_then(*arguments):
    advance(*arguments)
    import os, shutil, signal
    {what}
read_events.ReadProgress.advance = and_then
from dp_transforms.pipelines.cli import main
main()
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with the inputs."""
    monkeypatch.chdir(tmp_path)
    make_inputs(tmp_path)
    return tmp_path


def shh(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def names_below(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("words", "output"), [pytest.param(words, output, id=name) for name, words, output in lines_that_write()]
)
def test_a_full_disk_names_the_output_and_leaves_nothing(
    folder: pathlib.Path, words: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "audit":
        assert run(["plan", *BUDGET, "--output", "plan.json"], capsys)[0] == 0
    if "report.avro" in words and words[0] == "replay":
        (folder / "report.avro").unlink()
    before = names_below(folder)
    done = shh(FULL.format(size=100), *words)
    told = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert told.startswith("shh: ")
    assert "File too large" in told
    assert any(name in told for name in (output, "report.avro", "reports", "bad"))
    for internal in ("[while running", ".partial", ".tmp", "Traceback"):
        assert internal not in done.stderr
    left = names_below(folder) - before
    if words[0] == "stream":  # whose folders are made before there is anything in them
        assert {name for name in left if not (folder / name).is_dir()} <= {"out/header.json", "reports/header.json"}
    else:
        assert left == set()


def test_a_folder_that_is_removed_during_the_run(folder: pathlib.Path) -> None:
    (folder / "out").mkdir()
    what = "shutil.rmtree('out', ignore_errors=True)"
    done = shh(MEANWHILE.format(what=what), "replay", "log.jsonl", *BUDGET, "--output", "out/report.avro")
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert (
        told == "shh: cannot write 'out/report.avro': No such file or directory. Check the folder and its free space."
    )


@pytest.mark.parametrize("words", [["plan", *BUDGET], ["simulate", "--events", "10"]], ids=["plan", "simulate"])
def test_a_folder_that_cannot_be_written(
    folder: pathlib.Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """/proc is one for everybody, the superuser too."""
    if not pathlib.Path("/proc/self/status").exists():
        pytest.skip("this system has no /proc")
    code, told = run([*words, "--output", "/proc/self/log.csv"], capsys)
    assert code == 1
    assert told.count("\n") == 1
    assert "cannot write /proc/self/log.csv" in told


def test_what_kill_9_leaves_is_removed_by_the_next_run(folder: pathlib.Path) -> None:
    words = ["replay", "log.jsonl", *BUDGET, "--output", "out.avro", "--dead-letter", "rejected.jsonl"]
    before = names_below(folder)
    killed = shh(MEANWHILE.format(what="os.kill(os.getpid(), signal.SIGKILL)"), *words)
    assert killed.returncode == -9
    left = {name.split("/")[0] for name in names_below(folder) - before}
    assert len(left) == 2
    assert all(name.startswith((".out.avro.", ".rejected.jsonl.")) for name in left)
    done = shh("from dp_transforms.pipelines.cli import main; main()", *words)
    assert done.returncode == 0, done.stderr
    assert names_below(folder) - before == {"out.avro", "rejected.jsonl"}
