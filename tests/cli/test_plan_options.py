"""What people type and what plan files hold, at its worst: a clear line, no traceback, no waiting."""

import json
import resource
import time

import pytest

from dp_transforms.cli.plan_options import read_plan
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import changed_plan
from tests.helpers.shh_here import shh

DAY = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)
PLAN = Plan.for_hits(epsilon=8, delta=1e-6, schedule=DAY, max_users=10_000)
BUDGET = "--charge hits --epsilon 8 --delta 1e-6 --window 1h --start 2026-01-01 --end 2026-01-02"
NUMBERS = ["nan", "inf", "-0.0", "5e-324", "1e-160", "1e-4", "0.9999999999999999", "40", "1e154", "1e309", "-5e-324"]
TYPED = [
    *(f"--epsilon {number} --hits-per-user 1" for number in NUMBERS),
    *(f"--delta {number} --counts" for number in NUMBERS),
    *(f"--hits-per-user {number}" for number in (-1, 2**64, "9" * 400)),
    *(f"--max-items-per-user {number}" for number in (-1, 2**64, "9" * 400)),
    "--window 999999999w",
    "--window 1s --end 9999-12-31",
    "--slide 1s --end 9999-12-31",
    "--start 0001-01-01 --end 9999-12-31T23:59:59Z",
    "--start 0001-01-01T00:00:00+23:59",
    "--start \x1b[31m",
    "--start 2017-10-01T03:00:00.5",
]


def test_nothing_that_is_typed_ends_in_a_traceback():
    for words in TYPED:
        done = shh("plan", *BUDGET.split(), *words.split(" "))
        assert done.returncode in (0, 1, 2), words
        assert "Traceback" not in done.stderr, words
        assert "should not happen" not in done.stderr, words
        assert done.returncode != 1 or done.stderr.count("\n") == 1, words


def read(path):
    """The plan, or None for one that is refused in a line."""
    said = ""
    try:
        return read_plan(str(path))
    except UserError as error:
        said = str(error)
    assert said.startswith(f"--plan {path}")
    assert said.isprintable()
    assert len(said) < 1000
    return None


ODD = [None, True, [], {}, "2", "", -1, 0, 1.5, 10**30, -0.0, 5e-324, 1.7e308, 2**53 + 1, [[[]]], {"a": 1}]
FIELDS = json.loads(PLAN.to_json())
PLACES = [
    place
    for name, value in FIELDS.items()
    for place in (name, *(f"{name}.{inner}" for inner in (value if isinstance(value, dict) else ())))
]


def test_a_field_of_another_type_is_refused_even_with_the_right_fingerprint(tmp_path):
    path = tmp_path / "plan.json"
    may_be_read = ("epsilon", "delta", "max_users", "threshold", "schedule.start_seconds")
    for place in PLACES:
        for value in ODD:
            changes = {place: value}
            path.write_text(
                json.dumps({**FIELDS, **changes}) if place == "fingerprint" else changed_plan(PLAN, changes)
            )
            assert read(path) in (None, PLAN) or place in may_be_read, (place, value)
    for number in ("1e999", "NaN", "Infinity", "1" * 5000, "1e-999", "0x10"):
        path.write_text(PLAN.to_json().replace('"epsilon": 8.0', f'"epsilon": {number}'))
        assert read(path) is None, number


@pytest.mark.parametrize("kind", ["large", "deep", "deep in a field", "zeros"])
def test_a_plan_of_any_size_takes_neither_time_nor_memory(tmp_path, kind):
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        if kind == "large":
            file.write(PLAN.to_json().encode() + b" " * 100_000_000)
        elif kind == "zeros":
            file.truncate(10**12)
        elif kind == "deep":
            file.write(b"[" * 1_000_000)
        else:
            file.write(PLAN.to_json().replace("8.0", "[" * 500_000 + "]" * 500_000, 1).encode())
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert read(path) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert time.process_time() - begin < 30
