"""A run of which some parts are replays and some are streams, stopped when nobody declared it: as the one run."""

from __future__ import annotations

import math

import pytest

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.beam.write_state import WriteState
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_file import StateFile
from dp_transforms.runs.state_header import PartRecord
from tests.helpers.beam_pipelines import Collected, local_pipeline, plain
from tests.helpers.hits_oracle import oracle_hits, stream_holders
from tests.helpers.memory_stream import MemoryStream
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.oracle import oracle_transcript
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.parts import INPUT, Parts
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, key_file, ordered_log, settings_of, small_plan
from tests.helpers.stream_runs import CLOCK, arrivals_of, spread


class ClockOfStop(StreamClock):
    """Knows when a stop is asked for, whatever the clock of the file system says."""

    stop_at = 0

    def stop_micros(self, asked_micros):
        return self.stop_at


def streamed(parts, end, log, *, shards, stop_at=None):
    """The windows up to this one, as a stream of three partitions, or up to a stop. Returns the end."""
    before = StateFile(parts.states[-1])
    part = RunPart(before.header.closed_through, end, before.path, before.fingerprint)
    ClockOfStop.stop_at = stop_at
    stop_file = parts.folder / "stop"
    stop_file.touch()
    pipeline, reports, ended = local_pipeline(), Collected(), Collected()
    monitor = MonitorStream(
        MemoryStream.of(spread(arrivals_of(log), 3), 50),
        parts.plan,
        clock=CLOCK if stop_at is None else ClockOfStop(**vars(CLOCK)),
        stop_file=None if stop_at is None else str(stop_file),
        noise_key=key_file(parts.folder),
        domain=domain_of(parts.plan),
        run_id=RUN_ID,
        driver="loop",
        poll_seconds=0.05,
        shards=shards,
        part=part,
    )
    output = pipeline | monitor
    _ = output.reports | "Reports" >> reports.sink()
    _ = output.ended | "Ended" >> ended.sink()
    after = parts.folder / f"state-{len(parts.states)}"
    header = before.header.with_intent(PartRecord(part.first, end, INPUT, "report"))
    forget_after = getattr(parts.plan, "forget_after", 0)
    _ = output.state | WriteState(
        after, header, part, forget_after, "state", KeyFile(key_file(parts.folder)), monitor.state_senders
    )
    pipeline.run().wait_until_finish()
    parts.states.append(after)
    parts.reports += sorted(reports.values, key=lambda report: report.window_start)
    return ended.values


def domain_of(plan):
    return ItemDomain.of_ids(DOMAIN) if plan.domain_size else None


def expected_of(plan, log):
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    if plan.domain_size:
        log = [event for event in log if event[1] in DOMAIN]
        if plan.release == "names":
            return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys, DOMAIN), settings)
        return oracle_transcript(log, settings, SECRET, domain=DOMAIN).reports
    if plan.release != "names":
        return oracle_transcript(log, settings, SECRET).reports
    if plan.hits_per_user:
        return reports_of(oracle_hits(stream_holders(log, settings, keys), settings, keys).named, settings)
    return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys), settings)


DOMAIN = tuple(f"item-{number}" for number in range(1, 8))
PLANS = {
    "names": lambda: small_names_plan(12, sliding=3, forget_after=4, most_looks=16),
    "hits": lambda: small_names_plan(12, sliding=3, forget_after=4, hits=1, known_error=0.12),
    "labels": lambda: small_plan(release="labels", sliding=3, hits_per_user=2),
    "counts": lambda: small_plan(sliding=1),
    "known names": lambda: small_names_plan(12, forget_after=4, domain=DOMAIN),
    "known kms21": lambda: small_plan(release="kms21", hits_per_user=2, domain=DOMAIN, threshold=100),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_stream_goes_on_where_a_replay_ended_and_hands_over_to_the_next(tmp_path, kind):
    """And it leaves the state that a replay of its windows leaves, byte for byte."""
    plan = PLANS[kind]()
    log = ordered_log(plan, 6)
    mixed, replayed = (Parts(tmp_path / name, plan, domain=domain_of(plan)) for name in ("mixed", "replayed"))
    mixed.take(4, log)
    (ended,) = streamed(mixed, 9, log, shards=3)
    mixed.take(plan.schedule.horizon, log)
    assert ended[:2] == RunEnded("events", 9, 0)[:2]
    for end in (4, 9, plan.schedule.horizon):
        replayed.take(end, log)
    assert [plain(report) for report in mixed.reports] == [plain(report) for report in expected_of(plan, log)] != []
    assert [path.read_bytes() for path in mixed.states] == [path.read_bytes() for path in replayed.states]


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("window", [5, 7.4])
def test_a_stream_that_is_stopped_leaves_open_windows_whole_to_the_next_part(tmp_path, kind, window):
    """Replay, a stream stopped in the middle of a window, a stream with other shards, replay: the one run."""
    plan = PLANS[kind]()
    log = ordered_log(plan, 6)
    horizon, schedule = plan.schedule.horizon, plan.schedule
    stop_at = schedule.window_end_micros(0) + int(window * schedule.slide_seconds * MICROS)
    stop_at += CLOCK.behind_micros
    mixed, replayed = (Parts(tmp_path / name, plan, domain=domain_of(plan)) for name in ("mixed", "replayed"))
    mixed.take(3, log)
    (ended,) = streamed(mixed, horizon, log, shards=3, stop_at=stop_at)
    stopped = math.ceil(window)
    assert ended.windows == stopped
    assert ended.reports == len([r for r in mixed.reports if r.window_start >= schedule.window_start_micros(3)])
    streamed(mixed, 10, log, shards=2)
    mixed.take(horizon, log)
    for end in (3, stopped, 10, horizon):
        replayed.take(end, log)
    assert [plain(report) for report in mixed.reports] == [plain(report) for report in expected_of(plan, log)] != []
    assert [path.read_bytes() for path in mixed.states] == [path.read_bytes() for path in replayed.states]


def test_a_stream_that_is_stopped_before_a_window_ends_leaves_the_state_as_it_was(tmp_path):
    plan = PLANS["names"]()
    log = ordered_log(plan, 6)
    parts = Parts(tmp_path, plan)
    parts.take(4, log)
    before = len(parts.reports)
    (ended,) = streamed(parts, 12, log, shards=3, stop_at=plan.schedule.window_end_micros(2))
    assert ended == RunEnded("events", 4, 0)
    assert parts.states[-1].read_bytes() == parts.states[-2].read_bytes()
    assert len(parts.reports) == before


def test_a_part_of_a_stream_must_lie_in_the_plan():
    with pytest.raises(ValueError, match="not windows of the plan"):
        MonitorStream(
            MemoryStream.of([[]]), small_names_plan(12), clock=CLOCK, run_id=RUN_ID, part=RunPart(0, 13), noise_key="k"
        )
