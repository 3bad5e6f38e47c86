"""A plan from plain values is the one that `Plan.calibrate` makes, whatever a reader of YAML made of it."""

import datetime

import pytest

from dp_transforms.beam.release_rows import declared_plan
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, parse_duration

BUDGET = {"epsilon": 2, "delta": 1e-9, "start": "2026-01-01", "end": "2026-01-03T00:00:00Z", "window": "1h"}
SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)
PLAN = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, mode="hits")


def budget(**changes):
    return {**BUDGET, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": "2", "delta": "1e-9"},
        {"start": datetime.date(2026, 1, 1), "end": datetime.datetime(2026, 1, 3)},
        {"end": datetime.datetime(2026, 1, 3, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))},
        {"window": 3600, "slide": "60m"},
        {"start": SCHEDULE.start_seconds, "end": SCHEDULE.end_seconds},
    ],
)
def test_all_ways_to_write_a_budget_make_one_plan(changes):
    assert declared_plan(**budget(mode="hits", **changes)).fingerprint == PLAN.fingerprint


def test_slide_and_mode_are_those_of_the_plan():
    assert declared_plan(**budget()).mode == "looks"
    plan = declared_plan(**budget(slide="30m", mode="hits"))
    assert (plan.schedule.window_seconds, plan.schedule.slide_seconds, plan.mode) == (3600, 1800, "hits")


def test_a_file_has_all_of_it(tmp_path):
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    assert declared_plan(tmp_path / "plan.json") == declared_plan(str(tmp_path / "plan.json")) == PLAN
    with pytest.raises(ValueError, match=r"^epsilon, mode cannot be given beside plan"):
        declared_plan(tmp_path / "plan.json", epsilon=2, mode="looks")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": None, "window": None}, r"^epsilon, window must be given\. Give plan=PATH"),
        ({"epsilon": "two"}, r"^epsilon must be a number, got 'two'"),
        ({"delta": True}, r"^delta must be a number, got True"),
        ({"epsilon": "nan"}, r"epsilon"),
        ({"start": 1.5}, r"^start must be an ISO 8601 time"),
        ({"start": "yesterday"}, r"is not an ISO 8601 time"),
        ({"end": True}, r"^end must be an ISO 8601 time"),
        ({"window": "an hour"}, r"^window: 'an hour' is not a duration"),
        ({"window": 1.5}, r"^window must be a duration"),
        ({"window": 0}, r"window_seconds must be >= 1"),
        ({"slide": "7m"}, r"slide_seconds must divide"),
        ({"mode": "all"}, r"^mode must be one of"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        declared_plan(**budget(**changes))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, r"cannot be read: No such file"), (b"{}", r"format_version"), (b" " * ((1 << 20) + 1), r"more than 1 MB")],
)
def test_a_file_that_is_no_plan_is_named(tmp_path, content, words):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        declared_plan(path)
    assert str(path) in str(error.value)


def test_a_plan_must_be_a_path():
    with pytest.raises(ValueError, match=r"^plan must be a path, got 7"):
        declared_plan(7)


def test_durations_have_a_number_and_a_unit():
    assert [parse_duration(text) for text in ("90s", "15m", " 1h", "1d ", "2 w")] == [90, 900, 3600, 86_400, 1_209_600]
    for text in ("", "1", "h", "-1h", "1.5h", "1y", "1h30m"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
