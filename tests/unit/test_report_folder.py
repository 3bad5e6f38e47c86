"""A folder of reports: its files, files of others in it, and workers that meet at one window or die in between."""

import itertools
import os
import pathlib
import shutil
import signal
import stat
import time

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.reports import Report, ReportFileError, read_report, read_report_file
from dp_transforms.reports.files import report_file_bytes
from dp_transforms.reports.report_folder import ReportFolder
from tests.helpers.killed_nights import in_a_process
from tests.helpers.sinks import ENDED, HEADER, MANY, REPORTS, files_of, header, one_item, write_all


@pytest.fixture
def sink(tmp_path):
    return ReportFolder(str(tmp_path / "deep" / "reports"))


def folder_of(sink):
    return pathlib.Path(sink.path)


def windows_of(sink):
    return sorted(folder_of(sink).glob("2017*"))


def test_windows_are_report_files_which_all_can_read_and_which_are_the_same_elsewhere(sink, tmp_path):
    before = os.umask(0o077)
    try:
        write_all(sink)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder_of(sink).iterdir()} == {0o644}
    times = ["2017-10-01T030000Z", "2017-10-01T050000Z", "2017-10-01T100000Z", "2017-10-02T090000Z"]
    assert [path.name[:18] for path in windows_of(sink)] == times
    assert {*files_of(sink.path)} - {path.name for path in windows_of(sink)} == {"header.json", "ended.json"}
    found, reports = read_report_file(windows_of(sink)[1])
    assert (found, list(reports)) == (HEADER, [REPORTS[1]])
    write_all(ReportFolder(str(tmp_path / "again")), REPORTS[::-1])
    assert files_of(tmp_path / "again") == files_of(sink.path)
    assert read_report(sink.path) == Report(HEADER, tuple(REPORTS), ENDED)
    assert (tmp_path / "again").stat().st_mode & 0o755 == 0o755, "others may read it"


def test_the_report_so_far_is_read_as_that_of_a_file(sink, tmp_path):
    folder_of(sink).mkdir(parents=True)
    with pytest.raises(ReportFileError, match="there is no report in"):
        read_report(sink.path)
    writer = sink.open(HEADER)
    assert read_report(sink.path) == Report(HEADER, ())
    writer.write(REPORTS[0])
    assert read_report(folder_of(sink)) == Report(HEADER, (REPORTS[0],))
    write_all(sink)
    report_path = tmp_path / "report.jsonl"
    read_report(sink.path).write(report_path)
    assert read_report(report_path) == Report(HEADER, tuple(REPORTS))
    with pytest.raises(ReportFileError, match=r"has the report of a stream\. Read it by itself"):
        read_report(report_path, sink.path)
    (folder_of(sink) / "header.json").write_text("{}")
    with pytest.raises(ReportFileError, match=r"cannot be used: .*header\.json"):
        read_report(sink.path)


def test_the_same_answer_in_other_bytes_is_no_second_answer(sink):
    """As another release of a library may pack it."""
    writer = sink.open(HEADER)
    writer.write(REPORTS[0])
    (path,) = windows_of(sink)
    content = path.read_bytes()
    packed = content.replace(b", ", b",  ")
    path.write_bytes(packed)
    writer.write(REPORTS[0])
    assert path.read_bytes() == packed != content


def test_a_run_reads_under_its_name_only(sink):
    write_all(sink)
    with pytest.raises(StreamError, match="'run-1', and not 'run-2'"):
        sink.read("run-2")


def test_files_of_others_are_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StreamError, match="holds other files"):
        ReportFolder(str(tmp_path)).open(HEADER)
    with pytest.raises(StreamError, match="cannot be used"):
        ReportFolder(str(tmp_path / "thesis.tex")).open(HEADER)
    with pytest.raises(ReportFileError, match="there is no report in"):
        read_report(tmp_path)
    assert files_of(tmp_path) == {"thesis.tex": b"mine"}


def test_damage_is_told_in_one_line(sink):
    write_all(sink)
    for name, content in itertools.product(files_of(sink.path), (b"", b"{}\n", b"[1]\n", b"\xff\x00")):
        good = (folder_of(sink) / name).read_bytes()
        (folder_of(sink) / name).write_bytes(content)
        with pytest.raises(StreamError) as caught:
            sink.read("run-1")
        assert "\n" not in str(caught.value)
        (folder_of(sink) / name).write_bytes(good)


def test_an_error_names_the_folder(tmp_path):
    path = tmp_path / "reports"
    sink = ReportFolder(str(path))
    writer = sink.open(HEADER)

    def fails(*asked):
        for ask in asked:
            with pytest.raises(StreamError, match=rf"^the folder '{path}' cannot be used: "):
                ask()

    (path / "ended.json").mkdir()
    fails(lambda: writer.end(ENDED), sink.read)
    path.rename(tmp_path / "away")
    fails(lambda: writer.write(REPORTS[0]))
    path.write_text("a file")
    fails(lambda: sink.open(HEADER))


NEWS, OLDS = one_item(3), one_item(3)._replace(stream="olds")


@pytest.mark.parametrize(
    ("run", "reports"),
    [
        (header("run-2"), [NEWS]),
        (header(epsilon=9.0), [NEWS]),
        (HEADER, []),
        (HEADER, [NEWS, one_item(4)]),
        (HEADER, [one_item(4)]),
        (HEADER, [OLDS]),
    ],
    ids=["run", "plan", "none", "two", "window", "stream"],
)
def test_a_file_under_the_name_of_a_window_that_is_not_of_this_run_is_refused(sink, run, reports):
    """By a reader, and by a writer that finds it there: it is not the answer, and is not replaced."""
    writer = sink.open(HEADER)
    writer.write(NEWS)
    windows_of(sink)[0].write_bytes(report_file_bytes(run, reports, "json"))
    before = files_of(sink.path)
    for asked in (lambda: sink.read("run-1"), lambda: writer.write(NEWS)):
        with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
            asked()
    assert files_of(sink.path) == before


def test_a_window_of_another_stream_under_its_own_name_is_refused(sink, tmp_path):
    """The name alone says nothing: this one fits what is in the file."""
    olds = ReportFolder(str(tmp_path / "olds"))
    olds.open(header(stream="olds")).write(OLDS)
    sink.open(HEADER).write(NEWS)
    shutil.copy(windows_of(olds)[0], sink.path)
    with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
        sink.read("run-1")


def test_what_the_dead_left_is_removed_when_it_is_old(sink):
    write_all(sink)
    before = files_of(sink.path)
    names = [f".2017-10-01T030000Z-00000000.jsonl.{number:032x}.tmp" for number in range(2)]
    for name in names:
        (folder_of(sink) / name).write_bytes(b"half")
    os.utime(folder_of(sink) / names[0], times=(time.time() - 4000,) * 2)
    sink.open(HEADER)
    assert files_of(sink.path) == {**before, names[1]: b"half"}
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def interrupted_at(monkeypatch, step, other):
    """Before the next call of this function of `os`, another worker does its work."""
    original = getattr(os, step)

    def interrupted(*arguments, **options):
        monkeypatch.setattr(os, step, original)
        other()
        return original(*arguments, **options)

    monkeypatch.setattr(os, step, interrupted)


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link"])  # of the second one, behind its look for an answer
def test_the_loser_of_a_race_is_refused_and_the_first_answer_stays(sink, monkeypatch, step):
    """Two answers for a window would be two outputs, of which the budget pays one. With the same answer it goes on; of
    two runs that begin in one folder one is refused."""
    interrupted_at(monkeypatch, step, lambda: sink.open(HEADER))
    with pytest.raises(StreamError, match="its run_id is 'run-1', and not 'run-2'"):
        sink.open(header("run-2"))
    loser, winner = sink.open(HEADER), sink.open(HEADER)
    interrupted_at(monkeypatch, step, lambda: winner.write(one_item(3, 40)))
    with pytest.raises(StreamError, match="already has another answer"):
        loser.write(one_item(3, 41))
    interrupted_at(monkeypatch, step, lambda: winner.write(one_item(4, 40)))
    assert loser.write(one_item(4, 40)) == "news|2017-10-01T07:00:00Z"
    interrupted_at(monkeypatch, step, lambda: winner.end(ENDED))
    with pytest.raises(StreamError, match="has already ended"):
        loser.end(ENDED._replace(windows=47))
    assert sink.read("run-1") == (HEADER, [one_item(3, 40), one_item(4, 40)], ENDED)
    assert not [name for name in files_of(sink.path) if name.endswith(".tmp")], "and what it had begun is tidied up"


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link", "unlink"])
def test_a_worker_that_dies_between_two_steps_is_made_good(sink, step):
    """Before and after each step of a file, as a process would stop there: nothing is tidied up."""
    writer = sink.open(HEADER)
    for window, dies_after in enumerate((False, True)):

        def write_and_die(window=window, dies_after=dies_after):
            original = getattr(os, step)

            def die(*arguments, **options):
                if dies_after:
                    original(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(os, step, die)
            writer.write(MANY[window])

        assert in_a_process(write_and_die) == (True, "")
        assert sink.read("run-1")[1] in (MANY[:window], MANY[: window + 1])
        writer.write(MANY[window])
        assert sink.read("run-1")[1] == MANY[: window + 1]
