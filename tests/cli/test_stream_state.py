"""`shh stream --state`: it goes on where a part ended and hands over at a stop, and what is refused."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import types

import pytest

from dp_transforms import EventFields, KafkaTopic, LogFolder, StreamClock
from dp_transforms.cli.options import fill
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.stream import command, run_stream_part
from dp_transforms.cli.stream_options import StreamOptions
from dp_transforms.cli.stream_request import StreamRequest, stream_request
from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.runs.ledger import Caps, Ledger
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import hold_state
from tests.helpers import forked
from tests.helpers.live_parts import WINDOWS, LiveParts
from tests.helpers.live_streams import drained, started
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

LEDGER = {"ledger": "ledger.db"}


@pytest.fixture
def live(tmp_path):
    return LiveParts(tmp_path)


@pytest.fixture
def arriving(tmp_path):
    return LiveParts(tmp_path, clock="arrival")


def error_of(done, code=1):
    assert done.returncode == code, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("shh: ")]
    return line


def parts_of(live):
    """Windows and status of each part that the ledger has."""
    ((_, parts),) = Ledger.open(live.folder / "ledger.db").runs()
    return [(part.first_window, part.end_window, str(part.status)) for part in parts]


def spent(live):
    shown = shh("ledger", "--ledger", "ledger.db", "--json", cwd=live.folder)
    (population,) = json.loads(shown.stdout)["populations"]
    return str(population["spent_epsilon"])


def test_replays_and_streams_that_are_stopped_make_the_one_run(live):
    """The ledger charges once, and knows where each part has really ended."""
    first = live.run("replay", "1.jsonl", *live.until(2), **LEDGER)
    assert first.returncode == 0, first.stderr
    second = live.run("stream", "2", *live.until(4), **LEDGER)
    assert second.returncode == 0, second.stderr
    said = drained(started(live, "3", **LEDGER))
    assert "windows that are over then close" in said
    state = live.state()
    end = state.header.closed_through
    assert 4 < end < 8
    assert state.header.intent is None
    assert f"{end} of the {WINDOWS} windows of the run are closed" in said
    shown = shh("show", "3", cwd=live.folder).stdout
    assert f"This part has ended: {end} of the run's {WINDOWS} windows are closed." in " ".join(shown.split())
    assert not (live.folder / "3.stop").exists()
    fourth = live.run("replay", "4.jsonl", *live.until(end + 2), **LEDGER)
    assert fourth.returncode == 0, fourth.stderr
    fifth = live.run("replay", "5.jsonl", **LEDGER)
    assert fifth.returncode == 0, fifth.stderr
    drawn_as_one = live.answers("1.jsonl", "2", "3")  # a replay of a later part has noise of its own
    assert drawn_as_one == live.expected()[: len(drawn_as_one)] != []
    assert live.answers("4.jsonl", "5.jsonl")
    ends = [0, 2, 4, end, end + 2, WINDOWS]
    assert parts_of(live) == [(low, high, "finished") for low, high in itertools.pairwise(ends)]
    assert "takes nothing more" in second.stderr
    assert float(spent(live)) == live.plan.epsilon
    assert "sound" in shh("ledger", "doctor", "--ledger", "ledger.db", "--state", "run.state", cwd=live.folder).stdout
    assert "is done" in live.run("replay", "5.jsonl", **LEDGER).stderr
    assert not list(live.folder.glob(".run.state.next*"))


def test_a_stop_before_any_window_is_over_takes_nothing(live):
    """The state is as it was, byte for byte, and the ledger lets another input have these windows."""
    assert live.run("replay", "1.jsonl", *live.until(8), **LEDGER).returncode == 0
    before = (live.folder / "run.state").read_bytes()
    process = started(live, "2", **LEDGER)
    assert live.state().header.intent is not None
    with pytest.raises(StateError, match="another process works on it"), hold_state(live.folder / "run.state"):
        pass
    err = drained(process)
    assert "No window was over" in err
    assert (live.folder / "run.state").read_bytes() == before
    assert parts_of(live) == [(0, 8, "finished"), (8, WINDOWS, "released")]
    last = live.run("replay", "3.jsonl", **LEDGER)
    assert last.returncode == 0, last.stderr
    assert live.answers("1.jsonl") == live.expected()[: len(live.answers("1.jsonl"))]


def test_by_the_clock_of_events_only_its_engine_resumes_a_stream_that_has_published(live):
    """What it holds depends on when windows were closed. Nothing is published yet: then the same command goes on."""
    process = started(live, "1", "--until", live.until(2)[1])
    process.kill()
    process.wait()
    (live.folder / "1.stop").unlink(missing_ok=True)
    other = error_of(live.run("stream", "1", *live.until(2), logs="later"))
    assert "was begun and not finished, and this command has another input" in other
    assert "another --until or --output" in error_of(live.run("stream", "1", *live.until(3)))
    assert "another --until or --output" in error_of(live.run("stream", "2", *live.until(2)))
    assert "another input" in error_of(live.run("replay", "1.jsonl", *live.until(2)))
    shutil.move(live.folder / "1", live.folder / "elsewhere")
    assert "Bring it back to where it was" in error_of(live.run("stream", "1", *live.until(2)))
    shutil.move(live.folder / "elsewhere", live.folder / "1")
    header = ReportHeader.of_plan(live.plan, live.state().header.run_id, "events")
    sink = ReportFolder(str(live.folder / "1"))
    assert sink.read() == (header, [], None), "the header is there before anything can be published"
    sink.open(header).end(RunEnded("events", 2, 7))  # as if it had got so far
    refused = error_of(live.run("stream", "1", *live.until(2)))
    for part in ("--clock event", "--resume-from SAVEPOINT", "another state file", "full price"):
        assert part in refused
    (live.folder / "1" / "ended.json").unlink()
    again = live.run("stream", "1", *live.until(2))
    assert again.returncode == 0, again.stderr
    assert live.state().header.closed_through == 2


def killed_after_a_report(live, output):
    """A stream by the clock of arrival, ended hard as soon as it has published something."""
    with started(live, output, *live.until(6), dies=True, **LEDGER) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    (live.folder / f"{output}.stop").unlink(missing_ok=True)


@pytest.mark.waits
def test_a_log_that_has_lost_files_is_not_taken_again(arriving):
    """What was drawn of them may be published, and the purses of their users would stay full."""
    killed_after_a_report(arriving, "1")
    (log,) = (arriving.folder / "logs").iterdir()
    log.rename(arriving.folder / "log.jsonl")
    refused = error_of(arriving.run("stream", "1", *arriving.until(6), **LEDGER))
    assert "has lost or changed files since this part was begun" in refused
    assert arriving.state().header.intent is not None
    assert "released" not in [status for *_, status in parts_of(arriving)]
    shutil.copy(arriving.folder / "log.jsonl", log)  # another change time: it has arrived later
    assert "has lost or changed files" in error_of(arriving.run("stream", "1", *arriving.until(6), **LEDGER))


@pytest.mark.waits
def test_a_file_that_came_after_the_beginning_and_was_lost_ends_the_run(arriving):
    """The intent does not know it. What it was read for would be answered again by the same noise over other events."""
    (log,) = (arriving.folder / "logs").iterdir()
    later = shutil.copy(log, arriving.folder / "later.jsonl.part")
    with started(arriving, "1", *arriving.until(6), dies=True, **LEDGER) as process:
        os.replace(later, log.with_name("later.jsonl"))
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    (arriving.folder / "1.stop").unlink(missing_ok=True)
    (notes,) = arriving.folder.glob(".run.state.taken-*")
    assert len(notes.read_text().split()) == 2 * 2, "change time and digest of two files"
    log.with_name("later.jsonl").unlink()
    refused = error_of(arriving.run("stream", "1", *arriving.until(6), **LEDGER))
    assert "has lost or changed files since this part was begun" in refused
    notes.unlink()
    assert "which files were read" in error_of(arriving.run("stream", "1", *arriving.until(6), **LEDGER))


@pytest.mark.waits
def test_an_end_before_what_is_published_is_refused(arriving):
    """As by a stop when a clock was set back: the windows that an earlier attempt has published are not given away."""
    killed_after_a_report(arriving, "1")
    before = arriving.answers("1")
    header = ReportHeader.of_plan(arriving.plan, arriving.state().header.run_id, "events")
    with pytest.raises(StreamError, match="it holds 1 reports, and the run ends with 0"):
        ReportFolder(str(arriving.folder / "1")).open(header).end(RunEnded("events", 0, 0))
    again = arriving.run("stream", "1", *arriving.until(6), **LEDGER)
    assert again.returncode == 0, again.stderr
    assert arriving.answers("1")[: len(before)] == before
    assert arriving.answers("1") == arriving.expected(6)
    assert not list(arriving.folder.glob(".run.state.taken-*"))


@pytest.mark.parametrize(
    ("kind", "topic_times", "decides"),
    [("arrival", None, True), ("arrival", True, True), ("arrival", False, False), ("event", None, False)],
)
def test_a_log_decides_what_windows_hold_if_it_sets_the_clock(kind, topic_times, decides):
    """topic_times: whether records of a topic count only with the times of the broker; None: a folder."""
    fields = EventFields()
    source = LogFolder("logs", fields)
    if topic_times is not None:
        source = KafkaTopic("localhost:9", "clicks", fields, append_times_only=topic_times)
    request = types.SimpleNamespace(clock=StreamClock(kind), source=source)
    assert StreamRequest.log_decides.fget(request) is decides


def test_each_part_has_an_output_of_its_own_and_nothing_to_resume(live):
    first = live.run("stream", "1", *live.until(2))
    assert first.returncode == 0, first.stderr
    assert "2 of the 12 windows of the run are closed" in first.stderr
    before = (live.folder / "run.state").read_bytes()
    assert "Each part that is a stream has an --output of its own" in error_of(live.run("stream", "1"))
    assert "holds other files" in error_of(live.run("stream", "logs"))
    resumed = live.run("stream", "2", "--engine", "flink", "--resume-from", "/savepoint")
    assert "the state has none" in error_of(resumed)
    assert "is done" in live.run("stream", "1", *live.until(2)).stderr
    assert "are published already" in error_of(live.run("stream", "2", *live.until(1)), 3)
    assert "Leave --run-id out" in error_of(live.run("stream", "2", "--run-id", "other"))
    assert (live.folder / "run.state").read_bytes() == before
    (live.folder / "run.state").write_bytes(before[: len(before) // 2])
    assert "it is damaged or cut" in error_of(live.run("stream", "2"))


def test_workers_whose_key_is_exchanged_publish_nothing(live):
    class Account(RunAccount):
        def start(self, facts=None):
            key_file(live.folder, bytes(range(100, 164)))  # as a rotation does

    _, *words = live.words("stream", "out", *live.until(3), "--population", "all", "--ledger", "ledger.db")
    with contextlib.chdir(live.folder):
        options = fill(StreamOptions, command.make_context("stream", words, obj=[]).params)
        account = Account(Ledger.open("ledger.db"), "all", Caps("20", "1e-5"))
        with pytest.raises(UserError, match="another key than that of the run"):
            run_stream_part(stream_request(options), [], StreamStatus(), account)
    assert not list((live.folder / "out").glob("2*.jsonl"))
    assert not live.state().rows


# Kills itself before or after the n-th call that changes what is on the disk, of a ledger or of anything else.
KILLED = """
import os
from tests.helpers.dying_programs import DyingProgram
program = DyingProgram()
program.dies_at(os, "replace", "link")
from dp_transforms.runs.ledger import Caps, Ledger
program.dies_at(Ledger, "reserve", "start", "publishing", "finish")
from dp_transforms.cli.main import main
main()
"""
END = 4


def is_killed(live, at):
    """Whether the stream was killed there, or had ended. The same command repairs it."""
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
    return ended.returncode == -9


@pytest.mark.parametrize("at", [3, 30])
def test_a_stream_that_is_killed_is_repaired_by_the_same_command(arriving, at):
    """What opens a part, and what ends it."""
    assert is_killed(arriving, at)


@pytest.mark.nightly
def test_a_stream_that_is_killed_anywhere_is_repaired_by_the_same_command(tmp_path):
    for at in itertools.count(1):
        (tmp_path / str(at)).mkdir()
        if not is_killed(LiveParts(tmp_path / str(at), clock="arrival"), at):
            break
    assert at > 30
