"""A disk that is full, a folder that goes away, a process that is killed: the output is named, and nothing is left."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from typing import Any, NamedTuple

import pytest

from dp_transforms.beam.read_events import ReadProgress
from tests.cli.command_paths import BUDGET, lines_that_write, make_inputs, run
from tests.helpers.forked import run_python
from tests.helpers.shh_here import shh

# Runs command lines, each in a folder, while a file can grow to 100 bytes and no further: to a writer that is as a full
# disk, and needs no disk of its own.
FULL = """
import contextlib, io, json, os, resource, sys
from dp_transforms.cli.main import main
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
found = {}
for name, folder, words in json.load(sys.stdin):
    os.chdir(folder)
    stderr_text, code = io.StringIO(), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr_text):
            main(words)
    except SystemExit as stopped:
        code = stopped.code
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    found[name] = code, stderr_text.getvalue()
print(json.dumps(found))
"""
# In the middle of a replay, within a DoFn.
KILLED = """
from dp_transforms.beam import read_events
advance = read_events.ReadProgress.advance
def and_then(*arguments):
    advance(*arguments)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
read_events.ReadProgress.advance = and_then
from dp_transforms.cli.main import main
main()
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with the inputs."""
    monkeypatch.chdir(tmp_path)
    make_inputs(tmp_path)
    return tmp_path


def run_program(program: str, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", program, *words, environment={"PYTHONDONTWRITEBYTECODE": "1"}, **options)


def names_below(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Refused(NamedTuple):
    """A command line on a full disk: its exit code, stderr, and the names that it left in its folder."""

    code: int
    stderr_text: str
    left: set[str]
    folder: pathlib.Path


@pytest.fixture(scope="module")
def on_a_full_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refused]:
    """By the name of each line that writes: all in one process, which takes a while to begin."""
    lines, before = [], {}
    for number, (name, words, _) in enumerate(lines_that_write()):
        folder = tmp_path_factory.mktemp(f"line-{number}")
        make_inputs(folder)
        if words[0] == "audit":
            assert shh("plan", *BUDGET, "--output", "plan.json", cwd=folder).returncode == 0
        if "report.avro" in words and words[0] == "replay":
            (folder / "report.avro").unlink()
        lines.append((name, str(folder), words))
        before[name] = names_below(folder)
    done = run_program(FULL, input=json.dumps(lines))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    return {
        name: Refused(*found[name], names_below(pathlib.Path(folder)) - before[name], pathlib.Path(folder))
        for name, folder, _ in lines
    }


@pytest.mark.xdist_group("full disk")
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "words", "output"),
    [pytest.param(name, words, output, id=name) for name, words, output in lines_that_write()],
)
def test_a_full_disk_names_the_output_and_leaves_nothing(
    name: str, words: list[str], output: str, on_a_full_disk: dict[str, Refused]
) -> None:
    done = on_a_full_disk[name]
    last_line = done.stderr_text.splitlines()[-1]
    assert done.code == 1
    assert last_line.startswith("shh: ")
    assert "File too large" in last_line
    assert any(name in last_line for name in (output, "report.avro", "reports", "bad"))
    for internal in ("[while running", ".partial", ".tmp", "Traceback"):
        assert internal not in done.stderr_text
    if words[0] == "stream":  # whose folders are made before there is anything in them
        files = {name for name in done.left if not (done.folder / name).is_dir()}
        assert files <= {"out/header.json", "reports/header.json"}
    else:
        assert done.left == set()


def test_a_folder_that_is_removed_during_the_run(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out").mkdir()
    advance = ReadProgress.advance

    def and_remove(*arguments: Any) -> None:
        """In the middle of a replay, within a DoFn."""
        advance(*arguments)
        shutil.rmtree("out", ignore_errors=True)

    monkeypatch.setattr(ReadProgress, "advance", and_remove)
    done = shh("replay", "log.jsonl", *BUDGET, "--output", "out/report.avro", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "shh: cannot write 'out/report.avro': No such file or directory. Check the folder and its free space."
    )


@pytest.mark.parametrize("words", [["plan", *BUDGET], ["simulate", "--events", "10"]], ids=["plan", "simulate"])
def test_a_folder_that_cannot_be_written(
    folder: pathlib.Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can write in /proc, not even the superuser."""
    if not pathlib.Path("/proc/self/status").exists():
        pytest.skip("this system has no /proc")
    code, stderr_text = run([*words, "--output", "/proc/self/log.csv"], capsys)
    assert code == 1
    assert stderr_text.count("\n") == 1
    assert "cannot write /proc/self/log.csv" in stderr_text


def test_what_kill_9_leaves_is_removed_by_the_next_run(folder: pathlib.Path) -> None:
    words = ["replay", "log.jsonl", *BUDGET, "--output", "out.avro", "--dead-letter", "rejected.jsonl"]
    before = names_below(folder)
    killed = run_program(KILLED, *words)
    assert killed.returncode == -9
    left = {name.split("/")[0] for name in names_below(folder) - before}
    assert len(left) == 2
    assert all(name.startswith((".out.avro.", ".rejected.jsonl.")) for name in left)
    done = shh(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert names_below(folder) - before == {"out.avro", "rejected.jsonl"}
