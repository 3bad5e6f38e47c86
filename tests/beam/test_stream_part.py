"""A run of which one part is a replay, the next a stream and the last a replay again: the transcript of the one run."""

from __future__ import annotations

import pytest

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.write_state import WriteStateCounted
from dp_transforms.monitoring.window_report import RunEnded
from dp_transforms.run_state.run_part import RunPart
from dp_transforms.run_state.state_file import StateFile
from dp_transforms.run_state.state_header import PartRecord
from tests.helpers.beam_pipelines import Collected, local_pipeline, plain
from tests.helpers.hits_oracle import oracle_hits, stream_holders
from tests.helpers.memory_stream import MemoryStream
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.oracle import oracle_transcript
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.parts import INPUT, Parts
from tests.helpers.small_runs import RUN_ID, SECRET, key_file, ordered_log, settings_of, small_plan
from tests.helpers.stream_runs import CLOCK, arrivals_of, spread


def streamed(parts, end, log, *, shards):
    """The windows up to this one, as a stream of three partitions. Returns the reports and the end."""
    before = StateFile(parts.states[-1])
    part = RunPart(before.header.closed_through, end, before.path, before.fingerprint)
    pipeline, reports, ended = local_pipeline(), Collected(), Collected()
    monitor = MonitorStream(
        MemoryStream.of(spread(arrivals_of(log), 3), 50),
        parts.plan,
        clock=CLOCK,
        noise_key=key_file(parts.folder),
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
    header = before.header.after(PartRecord(part.first, end, INPUT, "report"))
    named_from = end - getattr(parts.plan, "forget_after", 0)
    _ = output.state | WriteStateCounted(after, header, part, named_from, "state", monitor.state_senders)
    pipeline.run().wait_until_finish()
    parts.states.append(after)
    parts.reports += sorted(reports.values, key=lambda report: report.window_start)
    return ended.values


def expected_of(plan, log):
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    if plan.release != "names":
        return oracle_transcript(log, settings, SECRET).reports
    if plan.hits_per_user:
        return reports_of(oracle_hits(stream_holders(log, settings, keys), settings, keys).named, settings)
    return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys), settings)


PLANS = {
    "names": lambda: small_names_plan(12, sliding=3, forget_after=4, most_looks=16),
    "hits": lambda: small_names_plan(12, sliding=3, forget_after=4, hits=1, known_error=0.12),
    "labels": lambda: small_plan(release="labels", sliding=3, hits_per_user=2),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_stream_goes_on_where_a_replay_ended_and_hands_over_to_the_next(tmp_path, kind):
    """And it leaves the state that a replay of its windows leaves, byte for byte."""
    plan = PLANS[kind]()
    log = ordered_log(plan, 6)
    mixed, replayed = Parts(tmp_path / "mixed", plan), Parts(tmp_path / "replayed", plan)
    mixed.take(4, log)
    (ended,) = streamed(mixed, 9, log, shards=3)
    mixed.take(plan.schedule.horizon, log)
    assert ended[:2] == RunEnded("events", 9, 0)[:2]
    for end in (4, 9, plan.schedule.horizon):
        replayed.take(end, log)
    assert [plain(report) for report in mixed.reports] == [plain(report) for report in expected_of(plan, log)] != []
    assert [path.read_bytes() for path in mixed.states] == [path.read_bytes() for path in replayed.states]


def test_a_part_of_a_stream_must_lie_in_the_plan():
    with pytest.raises(ValueError, match="not windows of the plan"):
        MonitorStream(
            MemoryStream.of([[]]), small_names_plan(12), clock=CLOCK, run_id=RUN_ID, part=RunPart(0, 13), noise_key="k"
        )
