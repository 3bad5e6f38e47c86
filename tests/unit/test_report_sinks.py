"""What every sink of reports holds, whatever it is: the first answer of a window stays, whatever is written again."""

import contextlib
import shutil
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.errors import StreamError
from dp_transforms.reports import ReportFileError, sink_of
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.report_topic import ReportTopic
from tests.helpers.sinks import (
    EDGES,
    ENDED,
    HEADER,
    KINDS,
    OTHER,
    REPORTS,
    header,
    one_item,
    report,
    sink_of_kind,
    stored,
    write_all,
)

KEYS = [f"news|2017-10-{time}:00:00Z" for time in ("01T03", "01T05", "01T10", "02T09")]


@pytest.fixture
def sink(request, tmp_path):
    with sink_of_kind(request.param, tmp_path) as made:
        yield made


def what_is_written_is_read_in_order(sink):
    assert sink.read("run-1") == (None, [], None)
    assert write_all(sink, REPORTS[::-1], ended=None) == KEYS[::-1]
    assert sink.read("run-1") == (HEADER, REPORTS, None)
    assert write_all(sink, []) == ["news|end"]
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def every_value_comes_back_exactly(sink):
    write_all(sink, EDGES)
    assert sink.read("run-1")[1] == EDGES


class Row(NamedTuple):
    """What Beam makes of a report in another process: a type of its own with the same fields."""

    stream: str
    window_start: int
    window_end: int
    heavy_hitters: list[Any]
    epsilon_total: float
    delta: float
    epsilon_spent: float


def what_is_written_again_changes_nothing(sink):
    """Also in another order, under a guarantee that is worded anew, and as rows of Beam."""
    write_all(sink)
    before = stored(sink)
    write_all(sink, REPORTS[::-1], run=header(words="The same in other words."))
    write_all(sink, [Row(*window) for window in REPORTS])
    assert stored(sink) == before
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def a_second_answer_is_refused(sink):
    """By the writer that wrote the first one, and by the next; neither it nor anything else is written."""
    before = None
    for _ in range(2):
        with contextlib.closing(sink.open(HEADER)) as writer:
            assert (writer.write(REPORTS[1]), writer.end(ENDED)) == (KEYS[1], "news|end")
            for other in (OTHER, report(2), REPORTS[1]._replace(epsilon_spent=0.6)):
                with pytest.raises(StreamError, match="T05:00:00Z' already has another answer; nothing was written"):
                    writer.write(other)
            with pytest.raises(StreamError, match="has already ended"):
                writer.end(ENDED._replace(windows=47))
            assert writer.write(REPORTS[1]) == KEYS[1]
            writer.commit()
        before = before or stored(sink)
    assert stored(sink) == before
    assert sink.read("run-1") == (HEADER, [REPORTS[1]], ENDED)


def an_end_and_the_reports_must_agree(sink):
    """Reports beyond the end are another attempt's, which has read other records."""
    write_all(sink, REPORTS[:2], ended=None)
    before = stored(sink)
    with pytest.raises(StreamError, match="it holds 2 reports, and the run ends with 1; its end was not written"):
        write_all(sink, [], ENDED._replace(reports=1))
    assert stored(sink) == before
    write_all(sink, [], ENDED._replace(reports=3))
    write_all(sink, [REPORTS[2], REPORTS[0]], None)  # the last one may still come
    before = stored(sink)
    with pytest.raises(StreamError, match="the run has ended with 3 reports, and all are there; nothing was written"):
        write_all(sink, [REPORTS[3]], None)
    assert stored(sink) == before


def what_is_not_of_this_run_or_breaks_the_guarantee_is_refused(sink):
    with contextlib.closing(sink.open(HEADER)) as writer:
        with pytest.raises(StreamError, match="different streams"):
            writer.write(report(0, stream="olds"))
        with pytest.raises(StreamError, match="different streams"):
            writer.end(RunEnded("olds", 1))
        with pytest.raises(ReportFileError, match="noisy_count must be null"):
            writer.write(report(0, HeavyHitter("a", ABOVE, 5)))
        writer.commit()
    assert sink.read("run-1") == (HEADER, [], None)


def a_run_keeps_its_plan(sink):
    """A folder has one run of one stream; a report of windows is not one of blocks."""
    write_all(sink)
    before = stored(sink)
    others = {
        "another plan": header(epsilon=3.0),
        "it has the windows of run 'run-1', and not its blocks": replace(HEADER, of_blocks=True),
    }
    if isinstance(sink, ReportFolder):
        others["stream is 'news', and not 'olds'"] = header(stream="olds")
        others["run_id is 'run-1', and not 'run-2'"] = header("run-2")
    for said, other in others.items():
        with pytest.raises(StreamError, match=said):
            sink.open(other)
    assert stored(sink) == before


def a_follower_reads_each_report_once(sink):
    follower = sink.follow("run-1")
    assert follower.read_new() == (None, [], None, True)
    write_all(sink, REPORTS[1:3], None)
    assert follower.read_new()[:3] == (HEADER, REPORTS[1:3], None)
    assert follower.read_new() == (HEADER, [], None, False)
    write_all(sink, [REPORTS[1], REPORTS[3], REPORTS[0]], None)
    assert follower.read_new() == (HEADER, [REPORTS[0], REPORTS[3]], None, False)
    write_all(sink, [])
    assert follower.read_new() == (HEADER, [], ENDED, False)
    follower.close()
    second = sink.follow("run-1")
    assert second.read_new() == (HEADER, REPORTS, ENDED, True)
    second.close()


CONTRACT = (
    what_is_written_is_read_in_order,
    every_value_comes_back_exactly,
    what_is_written_again_changes_nothing,
    a_second_answer_is_refused,
    an_end_and_the_reports_must_agree,
    what_is_not_of_this_run_or_breaks_the_guarantee_is_refused,
    a_run_keeps_its_plan,
    a_follower_reads_each_report_once,
)


@pytest.mark.waits
@pytest.mark.parametrize("sink", KINDS, indirect=True)
@pytest.mark.parametrize("holds", CONTRACT, ids=lambda holds: holds.__name__)
def test_what_every_sink_holds(sink, holds):
    holds(sink)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ReportFolder(""), "must be a path that is not empty, got ''"),
        (lambda: ReportTopic("b:1", ""), "topic of a report topic must be text"),
        (lambda: ReportTopic("", "reports"), "bootstrap_servers of a report topic must be text"),
        (lambda: ReportTopic("b:1", 7), "topic of a report topic must be text"),
    ],
)
def test_a_sink_says_what_is_wrong_with_it(made, said):
    with pytest.raises(ValueError, match=said):
        made()


WINDOWS = [one_item(window) for window in range(6)]


def test_what_was_read_is_not_read_again(tmp_path):
    """Damage of an old window, which every reading of it refuses, goes unnoticed."""
    folder = ReportFolder(str(tmp_path / "reports"))
    follower = folder.follow("run-1")
    write_all(folder, WINDOWS[:2], None)
    assert follower.read_new()[1] == WINDOWS[:2]
    min((tmp_path / "reports").glob("2017*")).write_bytes(b"damaged")
    with pytest.raises(StreamError):
        folder.read("run-1")
    write_all(folder, WINDOWS[2:3], None)
    assert follower.read_new() == (HEADER, WINDOWS[2:3], None, False)


def test_another_run_in_its_place_is_a_first_reading(tmp_path):
    other, theirs = header("run-2"), [one_item(1, 77), WINDOWS[4]]
    sink = ReportFolder(str(tmp_path / "reports"))
    whichever = sink.follow()
    write_all(sink, WINDOWS[:3], None)
    assert whichever.read_new() == (HEADER, WINDOWS[:3], None, True)
    shutil.rmtree(tmp_path / "reports")
    write_all(sink, theirs, None, other)
    assert whichever.read_new() == (other, theirs, None, True)
    assert whichever.read_new() == (other, [], None, False)


def test_an_error_loses_nothing(tmp_path):
    folder = ReportFolder(str(tmp_path / "reports"))
    follower = folder.follow("run-1")
    write_all(folder, WINDOWS[:1], None)
    follower.read_new()
    write_all(folder, WINDOWS[1:3], None)
    name = max((tmp_path / "reports").glob("2017*"))
    content = name.read_bytes()
    name.write_bytes(b"half of")
    with pytest.raises(StreamError):
        follower.read_new()
    name.write_bytes(content)
    assert follower.read_new() == (HEADER, WINDOWS[1:3], None, False)
    with pytest.raises(StreamError, match="belongs to another run"):
        folder.follow("run-2").read_new()


def test_one_word_names_a_sink_and_the_sink_names_itself_by_it(tmp_path):
    folder = str(tmp_path / "reports")
    for place, kind in ((folder, ReportFolder), ("kafka://a:1,b:2/trends", ReportTopic)):
        made = sink_of(place)
        assert type(made) is kind
        assert made.folder == (folder if kind is ReportFolder else None)
        assert place in made.name or made.name == "the topic 'trends'"
    for place in ("kafka://b/t", "kafka://b:1/", "kafka://u:p@b:1/t", "sqlite:///r.db", "postgresql://h/d"):
        with pytest.raises(ValueError, match="must be"):
            sink_of(place)


def test_what_is_there_before_a_run(tmp_path):
    """Of a folder whichever run; a name that is fresh is looked for in no topic, where reading may take long."""
    nothing = (None, [], None)
    assert ReportFolder(str(tmp_path / "none")).before("r", is_fresh=True) == nothing
    assert sink_of("kafka://127.0.0.1:1/trends").before("r", is_fresh=True) == nothing
    folder = ReportFolder(str(tmp_path / "reports"))
    write_all(folder)
    assert folder.before("another", is_fresh=True) == (HEADER, REPORTS, ENDED)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".header.json.0123456789abcdef0123456789abcdef.tmp").touch()  # of a worker that died
    mine = ReportFolder(str(tmp_path / "mine"))
    assert mine.before("r", is_fresh=True) == nothing
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(StreamError, match="holds other files"):
        mine.before("r", is_fresh=True)
