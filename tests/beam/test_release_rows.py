"""`HeavyHitterRows` says what `ShiftingHeavyHitters` says of the same log, as rows, and in one order."""

from __future__ import annotations

import typing

import apache_beam as beam
import pytest
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import typing_to_runner_api

from dp_transforms.beam.release_rows import HeavyHitterRow, HeavyHitterRows, rows_of_report
from dp_transforms.beam.workers import operator_counts
from dp_transforms.plan.window_schedule import format_utc
from tests.helpers.beam_pipelines import Collected, batches_source, local_pipeline, run_monitor
from tests.helpers.small_runs import RUN_ID, batches_of, key_file, random_log, small_plan

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


@pytest.fixture
def same_run(monkeypatch):
    """All pipelines of the test are one run, so with one noise key each line must be the same."""
    monkeypatch.setattr("dp_transforms.beam.release_heavy_hitters.fresh_run_id", lambda: RUN_ID)


@pytest.mark.usefixtures("same_run")
def test_rows_are_the_reports_of_the_same_log_and_what_cannot_be_read_is_counted(tmp_path):
    plan, key = small_plan(mode="hits"), key_file(tmp_path)
    (tmp_path / "plan.json").write_text(plan.to_json())
    log = [event for event in random_log(plan, seed=3, events=400) if 0 < event[2] < 2**60]
    bad = [(None, "item", 7), ("user", "x" * 16_385, 9)]
    found, counts = released(
        [*log, *bad], int, plan=str(tmp_path / "plan.json"), noise_key=key, public_items=None, time_unit="us"
    )
    reports = run_monitor(batches_source(batches_of(log, 200)), plan, noise_key=key).reports
    assert [HeavyHitterRow(*row) for row in found.values] == [row for each in reports for row in rows_of_report(each)]
    assert len(found.values) >= 9
    assert counts["events_rejected"] == 2


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


def test_a_pipeline_that_runs_again_with_its_noise_key_has_new_noise(tmp_path):
    """Else the counts of two runs would differ only where one user did. 12 items of 500 users each, where one needs
    some 250; each is counted as before with a probability below 0.03: 6 of them with one below 1e-6."""
    log = [(f"u{item}-{user}", f"i{item}", "2026-01-01T01:00:00Z") for user in range(500) for item in range(12)]
    more = {"epsilon": 4, "window": "1d", "charge": "hits", "counts": True, "noise_key": key_file(tmp_path)}
    first, again = (
        {row.item: row.noisy_count for row in released(log, str, **{**BUDGET, **more})[0].values} for _ in range(2)
    )
    assert first.keys() == again.keys() == {f"i{item}" for item in range(12)}
    assert sum(first[item] == again[item] for item in first) < 6


@pytest.mark.usefixtures("same_run")
def test_the_order_of_rows_does_not_tell_of_data_that_are_not_released(tmp_path):
    """With the same noise the rows are the same; before they were sorted, one more user could change their order."""
    words = {**BUDGET, "epsilon": 8, "delta": 1e-6, "noise_key": key_file(tmp_path)}
    others = [
        (f"u{hour}-{user}", f"i{hour}", f"2026-01-01T{hour:02}:00:00Z") for hour in range(24) for user in range(22)
    ]
    alone, _ = released(others, str, **words)
    assert all(row.window_end == format_utc(stamp.micros + 1) for row, stamp in alone.stamped), "at their last instant"
    starts = [row.window_start for row in alone.values]
    assert starts == sorted(starts)
    assert len(starts) >= 9
    more, _ = released([("X0", "only mine", "2026-01-01T21:00:00Z"), *others], str, **words)
    assert more.values == alone.values
