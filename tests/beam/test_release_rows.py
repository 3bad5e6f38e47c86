"""`HeavyHitterRows` says what `ShiftingHeavyHitters` says of the same log, as rows, and in one order."""

from __future__ import annotations

import typing

import apache_beam as beam
import pytest
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import typing_to_runner_api

from dp_transforms.beam.release_heavy_hitters import ReleaseOutput
from dp_transforms.beam.release_rows import HeavyHitterRow, HeavyHitterRows, rows_of_report
from dp_transforms.beam.workers import operator_counts
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.plan.window_schedule import format_utc
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.small_runs import RUN_ID, key_file, random_log, small_plan
from tests.reference.run import reference

BUDGET = {"epsilon": 2, "delta": 1e-9, "start": "2026-01-01", "end": "2026-01-02", "window": "1h"}
FIELDS = {"user": "who", "item": "what", "time": "at"}


def released(log, time_type, **arguments):
    """Of events as rows with a schema, by a pipeline of its own; and the counts."""
    types = RowTypeConstraint.from_fields([("who", typing.Optional[str]), ("what", str), ("at", time_type)])  # noqa: UP045
    elements = [beam.Row(who=user, what=item, at=time) for user, item, time in log]
    pipeline, found = local_pipeline(), Collected()
    rows = pipeline | beam.Create(elements, reshuffle=False).with_output_types(types)
    _ = rows | HeavyHitterRows(**arguments, **FIELDS) | found.sink()
    result = pipeline.run()
    result.wait_until_finish()
    return found, operator_counts(result)


PLAN = small_plan(mode="hits")


def test_rows_are_the_reports_of_the_same_log_and_what_cannot_be_read_is_counted(tmp_path, monkeypatch):
    """Of one run and one noise key, so each line must be the same."""
    monkeypatch.setattr("dp_transforms.beam.release_heavy_hitters.fresh_run_id", lambda: RUN_ID)
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    log = [event for event in random_log(PLAN, seed=3, events=400) if 0 < event[2] < 2**60]
    bad = [(None, "item", 7), ("user", "x" * 16_385, 9)]
    words = {"plan": str(tmp_path / "plan.json"), "noise_key": key_file(tmp_path), "public_items": None}
    found, counts = released([*log, *bad], int, time_unit="us", **words)
    expected = [row for report in reference(log, PLAN) for row in rows_of_report(report)]
    assert found.values == expected
    assert len({row.window_start for row in expected}) >= 7
    assert all(row.window_end == format_utc(stamp.micros + 1) for row, stamp in found.stamped), "at their last instant"
    assert counts["events_rejected"] == 2


class Backwards(beam.PTransform):
    """In the place of what releases reports."""

    def __init__(self, reports):
        super().__init__()
        self._reports = reports

    def expand(self, rows):
        given = rows | beam.FlatMap(lambda _: reversed(self._reports)).with_output_types(WindowReport)
        return ReleaseOutput(given, given)


def test_rows_come_in_the_order_of_report_files_whatever_order_an_engine_gives():
    """It would tell of data that are not released."""
    found, rows, hour = Collected(), HeavyHitterRows(**BUDGET), 3_600_000_000
    heavy = [HeavyHitter("a", None, 7)]
    # As texts the times of these two have another order.
    reports = [WindowReport("news", at * hour, at * hour + hour, heavy, 2.0, 1e-9, 0.01 * at) for at in (2, 3)]
    rows._release = Backwards(reports)
    with local_pipeline() as pipeline:
        _ = pipeline | beam.Create([0]) | rows | found.sink()
    assert found.values == [row for report in reports for row in rows_of_report(report)]


def test_a_budget_of_plain_values_makes_a_plan_and_cannot_be_given_beside_one(tmp_path):
    (tmp_path / "plan.json").write_text(small_plan().to_json())
    assert HeavyHitterRows(**{**BUDGET, "epsilon": "2", "delta": "1e-9"}).plan.schedule.horizon == 24
    with pytest.raises(ValueError, match=r"^epsilon cannot be given beside plan"):
        HeavyHitterRows(str(tmp_path / "plan.json"), epsilon=2)
    with pytest.raises(ValueError, match=r"^delta, end must be given\. Give plan=PATH"):
        HeavyHitterRows(epsilon=2, start="2026-01-01", window="1h")
    with pytest.raises(ValueError, match=r"^plan: .* cannot be read: No such file"):
        HeavyHitterRows(str(tmp_path / "nowhere.json"))
    with pytest.raises(ValueError, match=r"^run_id cannot be given.* would draw the same noise.* Leave run_id out"):
        HeavyHitterRows(**BUDGET, run_id="nightly")


def test_the_schema_has_plain_types_alone():
    """Java, SQL and Parquet know none of Python's own."""
    types = {field.name: field.type for field in typing_to_runner_api(HeavyHitterRow).row_type.schema.fields}
    assert list(types) == list(HeavyHitterRow._fields)
    assert all(each.WhichOneof("type_info") == "atomic_type" for each in types.values())
    nullable = {name for name, each in types.items() if each.nullable}
    assert nullable == {"zone", "noisy_count", "level", "at_least_users"}
