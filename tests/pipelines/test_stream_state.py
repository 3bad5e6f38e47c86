"""`shh stream --state`: it goes on where a part ended and hands over at a stop, and what is refused."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import signal
import subprocess

import pytest

from dp_transforms.ledger import Ledger
from dp_transforms.run_state.state_lock import hold_state
from tests.helpers import forked
from tests.helpers.live_parts import WINDOWS, LiveParts
from tests.helpers.shh_here import shh

LEDGER = {"ledger": "ledger.db"}


@pytest.fixture
def live(tmp_path: pathlib.Path) -> LiveParts:
    return LiveParts(tmp_path)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("shh: ")]
    return line


def parts_of(live: LiveParts) -> list[tuple[int, int, str]]:
    """Windows and status of each part that the ledger has."""
    ((_, parts),) = Ledger.open(live.folder / "ledger.db").runs()
    return [(part.first_window, part.end_window, str(part.status)) for part in parts]


def spent(live: LiveParts) -> str:
    shown = shh("ledger", "--ledger", "ledger.db", "--json", cwd=live.folder)
    (population,) = json.loads(shown.stdout)["populations"]
    return str(population["spent_epsilon"])


def started(live: LiveParts, output: str, *words: str, **options: str) -> subprocess.Popen[str]:
    """A stream, once it can be stopped."""
    command = ("-m", "dp_transforms.pipelines.cli", *live.words("stream", output, *words, **options))
    process = forked.python(*command, cwd=live.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while "Ctrl-C" not in (line := process.stderr.readline()):
        assert line, process.wait()
    return process


def stopped(live: LiveParts, output: str, *words: str, **options: str) -> str:
    """A stream that is asked to stop as soon as it runs. Returns what it says."""
    with started(live, output, *words, **options) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return err


@pytest.mark.parametrize("release", ["names", "labels"])
def test_replays_and_streams_that_are_stopped_make_the_one_run(tmp_path: pathlib.Path, release: str) -> None:
    """The ledger charges once, and knows where each part has really ended."""
    live = LiveParts(tmp_path, release)
    first = live.run("replay", "1.jsonl", *live.until(2), **LEDGER)
    assert first.returncode == 0, first.stderr
    said = stopped(live, "2", **LEDGER)
    assert "windows that are over then close" in said
    state = live.state()
    end = state.header.closed_through
    assert 4 < end < 8
    assert state.header.intent is None
    assert f"{end} of the {WINDOWS} windows of the run are closed" in said
    assert not (live.folder / "2.stop").exists()
    third = live.run("stream", "3", *live.until(end + 2), **LEDGER, logs="later")
    assert third.returncode == 0, third.stderr
    fourth = live.run("replay", "4.jsonl", **LEDGER)
    assert fourth.returncode == 0, fourth.stderr
    assert live.answers("1.jsonl", "2", "3", "4.jsonl") == live.expected() != []
    ends = [0, 2, end, end + 2, WINDOWS]
    assert parts_of(live) == [(low, high, "finished") for low, high in itertools.pairwise(ends)]
    assert "takes nothing more" in third.stderr
    assert float(spent(live)) == live.plan.epsilon
    assert "sound" in shh("ledger", "doctor", "--ledger", "ledger.db", "--state", "run.state", cwd=live.folder).stdout
    assert "is done" in live.run("replay", "4.jsonl", **LEDGER).stderr
    assert not list(live.folder.glob(".run.state.next*"))


def test_a_stop_before_any_window_is_over_takes_nothing(live: LiveParts) -> None:
    """The state is as it was, byte for byte, and the ledger lets another input have these windows."""
    assert live.run("replay", "1.jsonl", *live.until(8), **LEDGER).returncode == 0
    before = (live.folder / "run.state").read_bytes()
    with started(live, "2", **LEDGER) as process:
        assert live.state().header.intent is not None
        with pytest.raises(Exception, match="another process works on it"), hold_state(live.folder / "run.state"):
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "No window was over" in err
    assert (live.folder / "run.state").read_bytes() == before
    assert parts_of(live) == [(0, 8, "finished"), (8, WINDOWS, "released")]
    last = live.run("replay", "3.jsonl", **LEDGER)
    assert last.returncode == 0, last.stderr
    assert live.answers("1.jsonl", "3.jsonl") == live.expected()


# Kills itself before or after the n-th call that changes what is on the disk, of a ledger or of anything else.
KILLED = """
import os, signal, sys, threading
at, lock, calls = int(sys.argv.pop(1)), threading.RLock(), [0]
def die_at(function):
    def and_perhaps_die(*arguments, **options):
        with lock:
            for which in ("before", "after"):
                calls[0] += 1
                if calls[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if which == "before":
                    result = function(*arguments, **options)
        return result
    return and_perhaps_die
for name in ("replace", "link"):
    setattr(os, name, die_at(getattr(os, name)))
from dp_transforms.ledger import Ledger
for name in ("reserve", "start", "finish"):
    setattr(Ledger, name, die_at(getattr(Ledger, name)))
from dp_transforms.pipelines.cli import main
try:
    main()
finally:
    print("points", calls[0], file=sys.stderr)
"""
END = 4


@pytest.fixture
def arriving(tmp_path: pathlib.Path) -> LiveParts:
    return LiveParts(tmp_path, clock="arrival")


def check_kill(live: LiveParts, at: int) -> int | None:
    """The stream is killed there, and the same command repairs it. Returns how many points there are if it was not."""
    words = live.words("stream", "1", *live.until(END), **LEDGER)
    ended = forked.run_python("-c", KILLED, at, *words, cwd=live.folder)
    assert ended.returncode in (0, -9), ended.stderr
    (live.folder / "1.stop").unlink(missing_ok=True)
    before = {path.name: path.read_bytes() for path in (live.folder / "1").glob("[!.]*")}
    repaired = shh(*words, cwd=live.folder)
    assert repaired.returncode == 0, repaired.stderr
    after = {path.name: path.read_bytes() for path in (live.folder / "1").glob("[!.]*")}
    assert before == {name: after[name] for name in before}
    header = live.state().header
    assert (header.closed_through, header.intent) == (END, None)
    assert live.answers("1") == live.expected(END) != []
    assert [part for part in parts_of(live) if part[2] != "released"] == [(0, END, "finished")]
    assert float(spent(live)) == live.plan.epsilon
    assert not list(live.folder.glob(".run.state.next*"))
    found = re.search(r"points (\d+)", ended.stderr)
    return None if found is None else int(found[1])


@pytest.mark.parametrize("at", [14, *range(1, 14), *range(15, 45)])
def test_a_stream_that_is_killed_anywhere_is_repaired_by_the_same_command(arriving: LiveParts, at: int) -> None:
    check_kill(arriving, at)


@pytest.mark.long
def test_there_are_no_more_points_at_which_a_stream_can_be_killed(arriving: LiveParts) -> None:
    assert check_kill(arriving, 10**9) == 44
