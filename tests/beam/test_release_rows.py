"""`HeavyHitterRows` says what `ShiftingHeavyHitters` says of the same log, as rows."""

from __future__ import annotations

import datetime
import typing

import apache_beam as beam
import pytest
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import typing_to_runner_api
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.release_rows import HeavyHitterRow, HeavyHitterRows, rows_of_report
from dp_transforms.beam.workers import operator_counts
from dp_transforms.plan.window_schedule import format_utc
from tests.helpers.beam_pipelines import Collected, batches_source, local_pipeline, run_monitor
from tests.helpers.small_runs import RUN_ID, batches_of, key_file, random_log, small_plan

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(micros: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=micros)


def either(micros: int) -> datetime.datetime:
    """With a zone or without, which is UTC as well."""
    return moment(micros) if micros % 2 else moment(micros).replace(tzinfo=None)


def rows_of(log, time, time_type):
    """The log as elements with a schema. time: from microseconds to a value of the field `at`."""
    fields = RowTypeConstraint.from_fields([("who", typing.Optional[str]), ("what", str), ("at", time_type)])  # noqa: UP045
    elements = [beam.Row(who=user, what=item, at=time(micros)) for user, item, micros in log]
    return beam.Create(elements, reshuffle=False).with_output_types(fields)


def expected(plan, log, key):
    reports = run_monitor(batches_source(batches_of(log, 200)), plan, noise_key=key).reports
    rows = sorted(row for report in reports for row in rows_of_report(report))
    assert len(rows) >= 9
    return rows


@pytest.fixture
def same_run(monkeypatch):
    """All pipelines of the test are one run, so with one noise key each line must be the same."""
    monkeypatch.setattr("dp_transforms.beam.release_heavy_hitters.fresh_run_id", lambda: RUN_ID)


@pytest.mark.usefixtures("same_run")
def test_rows_are_the_reports_of_the_same_log_however_times_are_written(tmp_path):
    plan = small_plan(mode="hits")
    log = [event for event in random_log(plan, seed=3, events=400) if 0 < event[2] < 2**60]
    key = key_file(tmp_path)
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = {"user": "who", "item": "what", "noise_key": key}
    arguments["plan"] = str(tmp_path / "plan.json")
    kinds = {
        "whole": (lambda micros: micros, int, {"time": "at", "time_unit": "us"}),
        "text of numbers": (str, typing.Optional[str], {"time": "at", "time_unit": "us"}),  # noqa: UP045
        "text": (lambda micros: moment(micros).isoformat(), str, {"time": "at"}),
        "timestamps": (lambda micros: Timestamp(micros=micros), Timestamp, {"time": "at"}),
        "datetimes": (either, typing.Any, {"time": "at"}),
        "elements": (lambda micros: micros, int, {}),
    }
    pipeline, found = local_pipeline(), {}
    for name, (time, time_type, fields) in kinds.items():
        found[name] = Collected()
        rows = pipeline | f"Create {name}" >> rows_of(log, time, time_type)
        if not fields:
            stamp = beam.Map(lambda row: TimestampedValue(row, Timestamp(micros=row.at)))
            rows = rows | "Stamp" >> stamp.with_output_types(rows.element_type)
        released = rows | f"Release {name}" >> HeavyHitterRows(**arguments, **fields)
        assert released.element_type is HeavyHitterRow
        _ = released | f"Rows {name}" >> found[name].sink()
    found["dicts"] = Collected()
    dicts = pipeline | "Dicts" >> beam.Create(
        [{"who": user, "what": item, "at": micros} for user, item, micros in log], reshuffle=False
    )
    release = HeavyHitterRows(**arguments, time="at", time_unit="us")
    _ = dicts | "Release dicts" >> release | "Rows of dicts" >> found["dicts"].sink()
    pipeline.run().wait_until_finish()
    rows = expected(plan, log, key)
    for name, collected in found.items():
        assert sorted(HeavyHitterRow(*row) for row in collected.values) == rows, name


def test_what_cannot_be_read_is_left_out_and_counted():
    log = [(None, "item", 7), ("user", "item", 8), ("user", "x" * 16_385, 9)]
    pipeline = local_pipeline()
    rows = pipeline | "Create" >> rows_of(log, lambda micros: micros, int)
    _ = rows | "Rows" >> HeavyHitterRows(**BUDGET, user="who", item="what", time="at", time_unit="us")
    result = pipeline.run()
    result.wait_until_finish()
    assert operator_counts(result)["events_rejected"] == 2


def test_a_budget_makes_the_plan_that_a_file_has(tmp_path):
    (tmp_path / "plan.json").write_text(small_plan().to_json())
    budget = {"epsilon": "2", "delta": "1e-9", "start": "2026-01-01", "end": "2026-01-02", "window": "1h"}
    assert HeavyHitterRows(**budget).plan.schedule.horizon == 24
    with pytest.raises(ValueError, match=r"^epsilon cannot be given beside plan"):
        HeavyHitterRows(str(tmp_path / "plan.json"), epsilon=2)


def test_the_schema_has_plain_types_alone():
    """Java, SQL and Parquet know none of Python's own."""
    types = {field.name: field.type for field in typing_to_runner_api(HeavyHitterRow).row_type.schema.fields}
    assert list(types) == list(HeavyHitterRow._fields)
    assert all(each.WhichOneof("type_info") == "atomic_type" for each in types.values())
    nullable = {name for name, each in types.items() if each.nullable}
    assert nullable == {"zone", "noisy_count", "level", "at_least_users"}


BUDGET = {"epsilon": 2, "delta": 1e-9, "start": "2026-01-01", "end": "2026-01-02", "window": "1h"}


def released(log, **arguments):
    """Of events with text for a time, by a pipeline of its own."""
    pipeline, found = local_pipeline(), Collected()
    rows = pipeline | rows_of(log, str, str)
    _ = rows | HeavyHitterRows(**arguments, user="who", item="what", time="at") | found.sink()
    pipeline.run().wait_until_finish()
    return found


def counts_of(log, key):
    """Each item's noisy count."""
    budget = {**BUDGET, "epsilon": 4, "window": "1d", "charge": "hits", "counts": True, "noise_key": key}
    found = released(log, **budget)
    return {row.item: row.noisy_count for row in found.values}


def test_a_pipeline_that_runs_again_with_its_noise_key_has_new_noise(tmp_path):
    """Else the counts of two runs would differ only where one user did. 12 items of 1,000 users each, where one needs
    some 250; each is counted as before with a probability below 0.03: 6 of them with one below 1e-6."""
    key = key_file(tmp_path)
    log = [(f"u{item}-{user}", f"i{item}", "2026-01-01T01:00:00Z") for user in range(1000) for item in range(12)]
    first, again = counts_of(log, key), counts_of(log, key)
    assert first.keys() == again.keys() == {f"i{item}" for item in range(12)}
    assert sum(first[item] == again[item] for item in first) < 6


@pytest.mark.parametrize("key", ["noise.key", None])
def test_a_run_id_is_refused_because_fixed_texts_run_again(key):
    with pytest.raises(ValueError, match=r"^run_id cannot be given.* would draw the same noise.* Leave run_id out"):
        HeavyHitterRows(**BUDGET, noise_key=key, run_id="nightly")


def order_of_windows(added, key, **arguments):
    """The hours of the rows, in the order in which a step sees them, for 22 users of an item in each hour."""
    mine = [] if added is None else [(added, "only mine", "2026-01-01T21:00:00Z")]
    others = [
        (f"u{hour}-{user}", f"i{hour}", f"2026-01-01T{hour:02}:00:00Z") for hour in range(24) for user in range(22)
    ]
    found = released([*mine, *others], **{**BUDGET, "epsilon": 8, "delta": 1e-6}, noise_key=key, **arguments)
    for row, timestamp in found.stamped:
        assert row.window_end == format_utc(timestamp.micros + 1), "the maximal timestamp of its window"
    return [row.window_start[11:13] for row in found.values]


@pytest.mark.usefixtures("same_run")
@pytest.mark.parametrize("charge", ["contributions", "hits"])
def test_the_order_of_rows_does_not_tell_of_data_that_are_not_released(tmp_path, charge):
    """With the same noise the rows are the same; before they were sorted, one more user could change their order."""
    key, more = key_file(tmp_path), {"charge": charge}
    alone = order_of_windows(None, key, **more)
    assert alone == sorted(alone)
    assert len(alone) >= (9 if charge == "contributions" else 0)
    assert order_of_windows("X0", key, **more) == alone
