"""What `MonitorStream` leaves out, refuses and tells, and how it is stopped. Whole logs: tests/conformance."""

import time

import pytest

from dp_transforms.beam import monitor_stream
from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.core.public_items import PublicItems
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.memory_stream import Arrival, MemoryStream
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, START, settings_of, small_plan
from tests.helpers.stream_runs import CLOCK, Ran, arrivals_of
from tests.reference.hits import oracle_reports


def test_both_clocks_leave_out_what_is_late_and_say_so(tmp_path):
    """30 holders of an item come too late for the first window; in sliding windows in time for the next ones."""
    for sliding, first_windows_missed in ((1, 1), (3, 3)):
        plan = small_plan(12, sliding=sliding, hits_per_user=3, window_seconds=60)
        slide = 60 // sliding
        early = (START + 1) * MICROS
        missed_end = START + slide * first_windows_missed
        in_time = [(f"u{user}", "news", early) for user in range(30)]
        late = [(f"u{user}", "news", early) for user in range(30, 60)]
        busy = [(f"u{user}", "sport", (missed_end + 1) * MICROS) for user in range(40)]
        for kind in ("arrival", "event"):
            clock = StreamClock(kind, 20, 0, 10**6, 0.2)
            tip = ("tip", "tip", (missed_end + 21) * MICROS)
            arrivals = [*arrivals_of(in_time), *arrivals_of(busy), Arrival(tip, tip[2])]
            arrivals += [Arrival(event, (missed_end + 20) * MICROS + 1) for event in late]
            ran = Ran(tmp_path, {"stream": (MemoryStream.of([arrivals], 7), plan, {"clock": clock})})
            assert ran.reports["stream"] == oracle_reports([*in_time, *busy, tip], settings_of(plan), SECRET)
            assert ran.counts["events_late"] == 30


def test_a_stop_file_ends_the_run_with_what_arrived_before_it(tmp_path):
    """Half of the records are stamped with a moment after it. Nothing but the file ends this run."""
    plan = small_plan(4)
    log = [(f"u{user}", "news", (START + 1) * MICROS) for user in range(30)]
    stop = tmp_path / "stop"
    stop.touch()
    never = StreamClock("event", 20, 0, idle_timeout_seconds=366 * 86_400, shown_within_seconds=0.1)
    later = [(f"u{user}", "sport", (START + 2) * MICROS) for user in range(30)]
    far = (int(time.time()) + 10**6) * MICROS
    source = MemoryStream.of([[*arrivals_of(log), *(Arrival(event, far) for event in later)]], 7)
    ran = Ran(tmp_path, {"stream": (source, plan, {"clock": never, "stop_file": str(stop)})})
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    assert ran.reports["stream"] == expected
    assert ran.ended["stream"] == [RunEnded("events", 4, reports=len(expected))]
    assert (ran.counts["events_after_stop"], "stops_seen_late" in ran.counts) == (30, False)


def test_the_state_of_a_run_knows_its_source_by_its_fingerprint(tmp_path, monkeypatch):
    """So it is refused for records that are read otherwise."""
    made, keep = [], monitor_stream.Polling
    monkeypatch.setattr(monitor_stream, "Polling", lambda *fields: made.append(keep(*fields)) or made[-1])
    source = LogFolder(str(tmp_path), EventFields("mail", "item", "timestamp"))
    _ = local_pipeline() | MonitorStream(source, small_plan(4), clock=CLOCK, run_id=RUN_ID)
    assert made[0].source == source.fingerprint() != LogFolder(str(tmp_path), EventFields()).fingerprint()


def test_arguments_that_cannot_be_used_are_refused(tmp_path):
    plan, source = small_plan(4), MemoryStream.of([[]])
    for arguments, message in (
        ({"run_id": None}, "run_id must be given"),
        ({"run_id": ""}, "run_id must be printable text"),
        ({"driver": "magic"}, "'timers' or 'loop'"),
        ({"clock": 60}, "clock must be a StreamClock"),
        ({"poll_seconds": 0}, "poll_seconds must be > 0"),
        ({"stop_file": "gs://bucket/stop"}, "stop_file must be a path"),
        ({"shards": 0}, "shards must be"),
        ({"public_items": PublicItems.of_ids(["a", "b"])}, "no public items"),
    ):
        with pytest.raises(ValueError, match=message):
            MonitorStream(source, plan, **{"clock": CLOCK, "run_id": RUN_ID, **arguments})
    with pytest.raises(StreamError, match="must have partitions"):
        _ = local_pipeline() | MonitorStream(MemoryStream.of([]), plan, clock=CLOCK, run_id=RUN_ID)
