"""The shared stream is one in which every fault shows, and the checker of answers finds what is planted."""

from __future__ import annotations

import dataclasses

import pytest

from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports.report_writer import key_of
from dp_transforms.reports.topic_records import encode_record
from tests.engines.answers import RawRecord, faults, repeats
from tests.engines.stream_case import STREAM, counted_events, history_case, names_transcript
from tests.helpers.oracle import oracle_transcript
from tests.helpers.small_runs import RUN_ID, SECRET, settings_of
from tests.helpers.trials import changed


def test_every_lost_or_doubled_charge_changes_later_reports():
    case = history_case()
    settings = settings_of(case.plan)
    expected = case.expected
    assert len(expected.reports) == case.plan.schedule.horizon
    assert len(expected.excluded) >= 50
    one_hit_more = changed(
        settings,
        hits_per_user=settings.hits_per_user + 1,
        epsilon_after_hits=(*settings.epsilon_after_hits, settings.epsilon_after_hits[-1]),
    )
    assert oracle_transcript(case.counted, one_hit_more, SECRET).reports != expected.reports
    for window in range(case.plan.schedule.horizon - 1):  # nobody asks for the charges of the last one
        for times in (0, 2):
            faulty = oracle_transcript(case.counted, settings, SECRET, charged_times={window: times}).reports
            assert faulty[:window] == expected.reports[:window]
            assert faulty[window + 1 :] != expected.reports[window + 1 :]


@pytest.mark.parametrize(
    "windows", [(0, 7, 15, 22), pytest.param(tuple(range(23)), marks=pytest.mark.nightly)], ids=["four", "all"]
)
def test_what_every_window_takes_out_of_purses_and_what_is_known_changes_later_reports(windows):
    """Lost, or taken twice, or forgotten."""
    case = history_case(mode="looks")
    expected = case.expected
    reports = expected.reports
    assert len(reports) == case.plan.schedule.horizon
    assert sum(wallet.left < case.plan.paid_looks.units[0] for wallet in expected.wallets.values()) >= 50
    assert sum(entry.was_known for entry in expected.named) >= 50
    assert any(entry.nobody for entry in expected.named)
    for window in windows:
        for fault in ({"paid_times": {window: 0}}, {"paid_times": {window: 2}}, {"forgotten_at": window + 1}):
            faulty = names_transcript(case.counted, case.plan, **fault).reports
            assert faulty[: window + 1] == reports[: window + 1]
            assert faulty[window + 1 :] != reports[window + 1 :], fault


def test_the_log_has_all_that_must_not_count():
    case = history_case()
    assert set(case.numbers) == {"read", "rejected", "from the future", "outside", "late"}
    assert min(case.numbers.values()) >= 20
    assert len({row.partition for row in case.rows}) == case.partitions
    times = [row.event[2] for row in case.rows if row.event is not None]
    assert times != sorted(times)
    # In one partition the same events are late.
    joined = [dataclasses.replace(row, partition=0) for row in case.rows]
    assert counted_events(joined, case.plan, 1)[0] == list(case.counted)


def _records(case) -> list[RawRecord]:
    """What a run without faults writes."""
    end = RunEnded(STREAM, case.plan.schedule.horizon, reports=len(case.expected.reports))
    records: list = [case.header, *case.expected.reports, end]
    keys = ["header", *map(key_of, case.expected.reports), "end"]
    return [
        RawRecord(key.encode(), encode_record(record, RUN_ID, "json"))
        for key, record in zip(keys, records, strict=True)
    ]


def test_the_checker_finds_what_is_planted():
    case = history_case()
    horizon = case.plan.schedule.horizon
    good = _records(case)

    def faults_of(records, **arguments) -> str:
        return "; ".join(faults(records, case.expected.reports, horizon, **arguments))

    assert faults_of(good) == ""
    assert faults_of([*good, *good[3:5]]) == ""  # the same answers again
    assert repeats([*good, *good[3:5]]) == 2
    report = case.expected.reports[4]
    first = report.heavy_hitters[0]
    other = report._replace(
        heavy_hitters=[first._replace(noisy_count=first.noisy_count + 1), *report.heavy_hitters[1:]]
    )
    second = RawRecord(good[5].key, encode_record(other, RUN_ID, "json"))
    assert "different records" in faults_of([*good, second])
    assert "2 answers" in faults_of([*good, second._replace(key=b"another key")])
    assert "expected" in faults_of([*good[:5], second, *good[6:]])
    assert "missing" in faults_of([*good[:5], *good[6:]])
    assert "ends: {}" in faults_of(good[:-1])
    assert "ends:" in faults_of([*good, good[-1]])
    assert "0 headers" in faults_of(good[1:])
    assert faults_of(good[:-5], is_whole=False) == ""
    assert "missing" in faults_of([*good[:5], *good[6:-5]], is_whole=False)
    assert "ended" in faults_of(good, is_whole=False)
