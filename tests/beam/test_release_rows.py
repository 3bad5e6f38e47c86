"""`HeavyHitterRows` and `ReadHeavyHitters` say what `ShiftingHeavyHitters` says of the same log, as rows."""

from __future__ import annotations

import datetime
import functools
import typing

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import typing_to_runner_api
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.collect_rows import CollectRows
from dp_transforms.beam.count_for_operator import EVENTS_REJECTED, operator_counts
from dp_transforms.beam.encode_rows import HeavyHitterRow, rows_of_report
from dp_transforms.beam.read_topic import ReadHeavyHittersOfTopic
from dp_transforms.beam.release_rows import HeavyHitterRows, ReadHeavyHitters
from dp_transforms.event_files import EventFields
from dp_transforms.rejected_events import RejectedEvents
from tests.helpers.beam_pipelines import Collected, batches_source, local_pipeline, run_monitor
from tests.helpers.small_runs import RUN_ID, START, batch_of, batches_of, key_file, random_log, small_plan

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


def test_rows_are_the_reports_of_the_same_log_however_times_are_written(tmp_path):
    plan = small_plan(release="labels")
    log = [event for event in random_log(plan, seed=3, events=600) if 0 < event[2] < 2**60]
    key = key_file(tmp_path)
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = {"user": "who", "item": "what", "noise_key": key, "run_id": RUN_ID}
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
    path = tmp_path / "log.parquet"
    users, items, micros = zip(*log, strict=True)
    pq.write_table(pa.table({"who": users, "what": items, "at": pa.array(micros, pa.timestamp("us"))}), path)
    found["a file"] = Collected()
    read = ReadHeavyHitters(str(path), time="at", **arguments)
    _ = pipeline | "Read" >> read | "Rows of the file" >> found["a file"].sink()
    pipeline.run().wait_until_finish()
    rows = expected(plan, log, key)
    for name, collected in found.items():
        assert sorted(HeavyHitterRow(*row) for row in collected.values) == rows, name


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


class Unreadable:
    def __getattr__(self, name):
        raise OverflowError("a cell")


def test_a_row_that_cannot_be_read_is_left_out_alone():
    """In one bundle, so in one batch, with all kinds of times that are not times."""
    good = [("u1", "i1", START), ("u2", "i2", START + 7)]
    bad_times = [None, True, 10**30, -(10**30), float("nan"), float("inf"), "", "soon", "½", b"1", [1], 10**17]
    elements = [beam.Row(who=user, what=item, at=time) for user, item, time in good]
    elements += [beam.Row(who="u3", what="i3", at=time) for time in bad_times]
    elements += [beam.Row(who=None, what="i3", at=1), beam.Row(who="u3", what="", at=1)]
    elements += [beam.Row(who="u3", other="i3", at=1), Unreadable()]
    pipeline = local_pipeline()
    rows = pipeline | beam.Create([elements], reshuffle=False) | beam.FlatMap(lambda each: each)
    batches, rejected = Collected(), Collected()
    events, left_out = rows | CollectRows(EventFields("who", "what", "at", "s"))
    _ = events | "Batches" >> batches.sink()
    _ = left_out | "Rejected" >> rejected.sink()
    result = pipeline.run()
    result.wait_until_finish()
    reasons = {each.reason: len(each.positions) for each in rejected.values if isinstance(each, RejectedEvents)}
    assert sum(reasons.values()) == operator_counts(result)[EVENTS_REJECTED] == len(elements) - len(good)
    assert reasons == {
        "time cannot be read": len(bad_times),
        "missing user": 1,
        "empty item": 1,
        "user, item or time cannot be read": 2,
    }
    (batch,) = batches.values
    assert batch.to_bytes() == batch_of([(user, item, time * 10**6) for user, item, time in good]).to_bytes()


def test_rows_without_events_give_no_rows(tmp_path):
    (tmp_path / "plan.json").write_text(small_plan().to_json())
    pipeline, found = local_pipeline(), Collected()
    rows = pipeline | rows_of([], int, int)
    release = HeavyHitterRows(str(tmp_path / "plan.json"), user="who", item="what", time="at", time_unit="us")
    _ = rows | release | found.sink()
    pipeline.run().wait_until_finish()
    assert found.values == []


BUDGET = {"epsilon": 2, "delta": 1e-9, "start": "2026-01-01", "end": "2026-01-02", "window": "1h"}


@pytest.mark.parametrize(
    ("time_type", "arguments", "words"),
    [
        (int, {"time": "at"}, r"^the field 'at' has numbers: give time_unit"),
        (typing.Optional[float], {"time": "at"}, r"^the field 'at' has numbers: give time_unit"),  # noqa: UP045
        (str, {"time": "when"}, r"^time='when' is not a field of the input, which has who, what, at\."),
        (str, {"user": "reader", "time": "at"}, r"^user='reader' is not a field"),
        (str, {"user": "reader"}, r"^user='reader' is not a field"),
        (str, {"time": "who", "user": "who"}, r"three different fields"),
    ],
)
def test_fields_that_the_input_has_not_are_refused(time_type, arguments, words):
    rows = local_pipeline() | rows_of([], str, time_type)
    with pytest.raises(ValueError, match=words):
        _ = rows | HeavyHitterRows(**{**BUDGET, "user": "who", "item": "what", **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"time_unit": "s"}, r"^time_unit is the unit of the field time"),
        ({"time": "at", "time_unit": "h"}, r"^time_unit must be one of"),
        ({"user": ""}, r"^user must be the name of a field"),
        ({"item": 7}, r"^item must be the name of a field, got 7"),
        ({"run_id": ""}, r"^run_id"),
        ({"domain": "items.txt"}, r"open domain"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, words):
    rows = local_pipeline() | rows_of([], str, str)
    with pytest.raises(ValueError, match=words):
        _ = rows | HeavyHitterRows(**{**BUDGET, "user": "who", "item": "what", **arguments})


def test_elements_without_a_schema_are_refused():
    with pytest.raises(ValueError, match=r"^the input must have a schema"):
        _ = local_pipeline() | beam.Create([{"user": "a"}]) | HeavyHitterRows(**BUDGET, time="at")


def test_the_time_of_a_stream_is_that_of_its_elements():
    rows = local_pipeline() | test_stream.TestStream()
    rows.element_type = RowTypeConstraint.from_fields([("user", str), ("item", str), ("at", str)])
    with pytest.raises(ValueError, match=r"^time cannot be given for a stream"):
        _ = rows | HeavyHitterRows(**BUDGET, time="at")


@pytest.mark.parametrize(
    "begin", [ReadHeavyHitters, functools.partial(ReadHeavyHittersOfTopic, "host:9092", run_id="r")]
)
def test_what_begins_a_pipeline_needs_the_field_of_the_time(begin):
    with pytest.raises(ValueError, match=r"^time must be the name of a field, got None"):
        begin("log", **BUDGET, time=None)
    with pytest.raises(ValueError, match=r"^end must be given"):
        begin("log", **{**BUDGET, "end": None})
