"""A folder of reports, of a disk and of a store: the first answer of a window stays, whatever is written again, by
workers that meet at one window or die in between."""

import dataclasses
import os
import pathlib
import shutil
import signal

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.errors import StreamError
from dp_transforms.reports import Report, ReportFileError, read_report
from dp_transforms.reports.files import report_file_bytes
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.stores import files, remote_files
from tests.helpers.report_samples import HEADER, MAX_LONG, files_of, report, write_all
from tests.runs.killed_nights import in_a_process

pytestmark = pytest.mark.xdist_group("s3")
ENDED = RunEnded("news", 48, 4)


def header(**changes):
    return dataclasses.replace(HEADER, **changes)


def one_item(window, users=9):
    return report(window, HeavyHitter("a", None, users))


REPORTS = [
    report(0, HeavyHitter("Ünïcode ☃ 🎄 '\";--", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(2, HeavyHitter("", None, -3), HeavyHitter("a\0b", None, -(1 << 63)), HeavyHitter("a\ufffdb", None, 9)),
    report(7),
    report(30, *(HeavyHitter(f"item-{rank}", None, None, MAX_LONG - rank, rank) for rank in range(40))),
]
KEYS = [f"news|2017-10-{time}:00:00Z" for time in ("01T03", "01T05", "01T10", "02T09")]
OTHER = report(2, HeavyHitter("", None, -4))
WINDOWS = [one_item(window) for window in range(6)]


def write(folder, reports=REPORTS, ended=ENDED, run=HEADER):
    return write_all(folder, reports, ended, run)


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path):
    """A new one."""
    if request.param == "disk":
        return ReportFolder(str(tmp_path / "deep" / "reports"))
    return ReportFolder(f"{request.getfixturevalue('bucket')}/deep/reports/")


@pytest.fixture
def on_disk(tmp_path):
    return ReportFolder(str(tmp_path / "reports"))


def stored(folder):
    """All of it."""
    if "://" not in folder.path:
        return files_of(folder.path)
    return {file.url: file.version for file in remote_files.list_beginning(folder.path)}


def windows_of(folder):
    return sorted(pathlib.Path(folder.path).glob("2017*"))


def test_what_is_written_is_read_in_order_and_written_again_changes_nothing(folder):
    """Also in another order, and under a guarantee that is worded anew."""
    assert folder.read("run-1") == (None, [], None)
    assert write(folder, REPORTS[::-1], ended=None) == KEYS[::-1]
    assert folder.read("run-1") == (HEADER, REPORTS, None)
    assert write(folder, []) == ["news|end"]
    before = stored(folder)
    write(folder, REPORTS, run=header(guarantee="The same in other words."))
    assert stored(folder) == before
    assert folder.read("run-1") == (HEADER, REPORTS, ENDED)
    assert read_report(folder.path) == Report(HEADER, tuple(REPORTS), ENDED)


def test_a_second_answer_is_refused(folder):
    """By the writer that wrote the first one, and by the next; neither it nor anything else is written."""
    before = None
    for _ in range(2):
        writer = folder.open(HEADER)
        assert (writer.write(REPORTS[1]), writer.end(ENDED)) == (KEYS[1], "news|end")
        for other in (OTHER, report(2), REPORTS[1]._replace(epsilon_spent=0.6)):
            with pytest.raises(StreamError, match="T05:00:00Z' already has another answer; nothing was written"):
                writer.write(other)
        with pytest.raises(StreamError, match="has already ended"):
            writer.end(ENDED._replace(windows=47))
        assert writer.write(REPORTS[1]) == KEYS[1]
        before = before or stored(folder)
    assert stored(folder) == before
    assert folder.read("run-1") == (HEADER, [REPORTS[1]], ENDED)


def test_an_end_and_the_reports_must_agree(on_disk):
    """Reports beyond the end are another attempt's, which has read other records."""
    write(on_disk, REPORTS[:2], ended=None)
    before = stored(on_disk)
    with pytest.raises(StreamError, match="it holds 2 reports, and the run ends with 1; its end was not written"):
        write(on_disk, [], ENDED._replace(reports=1))
    assert stored(on_disk) == before
    write(on_disk, [], ENDED._replace(reports=3))
    write(on_disk, [REPORTS[2], REPORTS[0]], None)  # the last one may still come
    before = stored(on_disk)
    with pytest.raises(StreamError, match="the run has ended with 3 reports, and all are there; nothing was written"):
        write(on_disk, [REPORTS[3]], None)
    assert stored(on_disk) == before


def test_what_is_not_of_this_run_or_plan_or_breaks_the_guarantee_is_refused(on_disk):
    writer = on_disk.open(HEADER)
    for write_other in (lambda: writer.write(report(0, stream="olds")), lambda: writer.end(RunEnded("olds", 1))):
        with pytest.raises(StreamError, match="different streams"):
            write_other()
    with pytest.raises(ReportFileError, match="noisy_count must be null"):
        writer.write(report(0, HeavyHitter("a", ABOVE, 5)))
    for said, other in {
        "another plan": header(plan={"epsilon": 3.0}),
        "stream is 'news', and not 'olds'": header(stream="olds"),
        "run_id is 'run-1', and not 'run-2'": header(run_id="run-2"),
    }.items():
        with pytest.raises(StreamError, match=said):
            on_disk.open(other)
    with pytest.raises(StreamError, match="'run-1', and not 'run-2'"):
        on_disk.read("run-2")
    assert on_disk.read() == (HEADER, [], None)


def test_files_of_others_are_not_touched(folder, tmp_path):
    if "://" in folder.path:
        remote_files.put(folder.place("thesis.tex"), b"mine")
    else:
        pathlib.Path(folder.path).mkdir(parents=True)
        pathlib.Path(folder.path, ".header.json.0123456789abcdef.partial").mkdir()  # of a worker that died
        assert folder.read() == (None, [], None)
        pathlib.Path(folder.path, "thesis.tex").write_text("mine")
    before = stored(folder)
    for asked in (folder.read, lambda: folder.open(HEADER)):
        with pytest.raises(StreamError, match="holds other files"):
            asked()
    assert stored(folder) == before


@pytest.mark.parametrize("place", ["", "kafka://b:1/t", "s3://user:secret@bucket/r", "sqlite:///r.db"])
def test_a_place_that_cannot_hold_reports_is_refused(place):
    with pytest.raises(ValueError, match=r"must be a path|must begin with|holds a password") as refused:
        ReportFolder(place)
    assert "secret" not in str(refused.value)


def test_a_follower_reads_each_report_once(folder):
    follower = folder.follow("run-1")
    assert follower.read_new() == (None, [], None)
    write(folder, REPORTS[1:3], None)
    assert follower.read_new() == (HEADER, REPORTS[1:3], None)
    assert follower.read_new() == (HEADER, [], None)
    write(folder, [REPORTS[1], REPORTS[3], REPORTS[0]], None)
    assert follower.read_new() == (HEADER, [REPORTS[0], REPORTS[3]], None)
    write(folder, [])
    assert follower.read_new() == (HEADER, [], ENDED)
    assert len(follower.known) == len(REPORTS)


def test_an_error_loses_nothing_and_what_was_read_is_not_read_again(on_disk):
    follower = on_disk.follow("run-1")
    write(on_disk, WINDOWS[:1], None)
    follower.read_new()
    windows_of(on_disk)[0].write_bytes(b"damaged")
    write(on_disk, WINDOWS[1:3], None)
    path = windows_of(on_disk)[-1]
    content = path.read_bytes()
    path.write_bytes(b"half of")
    with pytest.raises(StreamError):
        follower.read_new()
    path.write_bytes(content)
    assert follower.read_new() == (HEADER, WINDOWS[1:3], None)


def test_the_report_so_far_is_read_as_that_of_a_file(on_disk, tmp_path):
    pathlib.Path(on_disk.path).mkdir()
    with pytest.raises(ReportFileError, match="there is no report in"):
        read_report(on_disk.path)
    writer = on_disk.open(HEADER)
    assert read_report(on_disk.path) == Report(HEADER, ())
    writer.write(REPORTS[0])
    read_report(on_disk.path).write(tmp_path / "report.jsonl")
    assert read_report(tmp_path / "report.jsonl") == Report(HEADER, (REPORTS[0],))
    with pytest.raises(ReportFileError, match=r"has the report of a stream\. Read it by itself"):
        read_report(tmp_path / "report.jsonl", on_disk.path)


def test_the_same_answer_in_other_bytes_is_no_second_answer(on_disk):
    """As another release of a library may pack it."""
    writer = on_disk.open(HEADER)
    writer.write(REPORTS[0])
    (path,) = windows_of(on_disk)
    content = path.read_bytes()
    packed = content.replace(b", ", b",  ")
    path.write_bytes(packed)
    writer.write(REPORTS[0])
    assert path.read_bytes() == packed != content


def test_a_file_in_the_place_of_the_folder_is_told_in_one_line(on_disk):
    pathlib.Path(on_disk.path).write_text("a file")
    with pytest.raises(StreamError, match=rf"^the folder '{on_disk.path}' cannot be used: [^\n]*$"):
        on_disk.open(HEADER)


NEWS, OLDS = one_item(3), one_item(3)._replace(stream="olds")


@pytest.mark.parametrize(
    ("run", "reports"),
    [
        (header(run_id="run-2"), [NEWS]),
        (header(plan={"epsilon": 9.0}), [NEWS]),
        (HEADER, []),
        (HEADER, [NEWS, one_item(4)]),
        (HEADER, [one_item(4)]),
        (HEADER, [OLDS]),
    ],
    ids=["run", "plan", "none", "two", "window", "stream"],
)
def test_a_file_under_the_name_of_a_window_that_is_not_of_this_run_is_refused(on_disk, tmp_path, run, reports):
    """By a reader, and by a writer that finds it there: it is not the answer, and is not replaced. Of another stream
    also under its own name."""
    writer = on_disk.open(HEADER)
    writer.write(NEWS)
    windows_of(on_disk)[0].write_bytes(report_file_bytes(run, reports, "json"))
    before = files_of(on_disk.path)
    for asked in (on_disk.read, lambda: writer.write(NEWS)):
        with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
            asked()
    assert files_of(on_disk.path) == before
    if reports == [OLDS]:
        olds = ReportFolder(str(tmp_path / "olds"))
        olds.open(header(stream="olds")).write(OLDS)
        windows_of(on_disk)[0].unlink()
        shutil.copy(windows_of(olds)[0], on_disk.path)
        with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
            on_disk.read()


def interrupted_at(monkeypatch, place, step, other):
    """Before the next call of this function, another worker does its work."""
    original = getattr(place, step)

    def interrupted(*arguments, **options):
        monkeypatch.setattr(place, step, original)
        other()
        return original(*arguments, **options)

    monkeypatch.setattr(place, step, interrupted)


def lose_races(folder, interrupted):
    """Two answers for a window would be two outputs, of which the budget pays one. With the same answer it goes on; of
    two runs that begin in one folder one is refused."""
    interrupted(lambda: folder.open(HEADER))
    with pytest.raises(StreamError, match="its run_id is 'run-1', and not 'run-2'"):
        folder.open(header(run_id="run-2"))
    loser, winner = folder.open(HEADER), folder.open(HEADER)
    interrupted(lambda: winner.write(one_item(3, 40)))
    with pytest.raises(StreamError, match="already has another answer"):
        loser.write(one_item(3, 41))
    interrupted(lambda: winner.write(one_item(4, 40)))
    assert loser.write(one_item(4, 40)) == "news|2017-10-01T07:00:00Z"
    interrupted(lambda: winner.end(ENDED))
    with pytest.raises(StreamError, match="has already ended"):
        loser.end(ENDED._replace(windows=47))
    assert folder.read() == (HEADER, [one_item(3, 40), one_item(4, 40)], ENDED)


@pytest.mark.parametrize("step", ["fsync", "link"])  # of the second one, behind its look for an answer
def test_the_loser_of_a_race_on_a_disk_is_refused_and_the_first_answer_stays(on_disk, monkeypatch, step):
    lose_races(on_disk, lambda other: interrupted_at(monkeypatch, os, step, other))
    assert not [name for name in files_of(on_disk.path) if name.startswith(".")], "and what it had begun is tidied up"


def test_the_loser_of_a_race_in_a_store_is_refused_and_the_first_answer_stays(bucket, monkeypatch):
    folder = ReportFolder(f"{bucket}/reports")
    lose_races(folder, lambda other: interrupted_at(monkeypatch, files, "put", other))


@pytest.mark.parametrize("step", ["fsync", "link", "unlink"])
def test_a_worker_that_dies_between_two_steps_is_made_good(on_disk, step):
    """Before and after each step of a file, as a process would stop there: nothing is tidied up."""
    writer = on_disk.open(HEADER)
    for window, dies_after in enumerate((False, True)):

        def write_and_die(window=window, dies_after=dies_after):
            original = getattr(os, step)

            def die(*arguments, **options):
                if dies_after:
                    original(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(os, step, die)
            writer.write(WINDOWS[window])

        assert in_a_process(write_and_die) == (True, "")
        assert on_disk.read()[1] in (WINDOWS[:window], WINDOWS[: window + 1])
        writer.write(WINDOWS[window])
        assert on_disk.read()[1] == WINDOWS[: window + 1]
