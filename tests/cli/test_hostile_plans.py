"""What people type and what plan files hold, at its worst: a clear line, no traceback, no waiting."""

import itertools
import json
import random
import resource
import time

import pytest
from click.testing import CliRunner

from dp_transforms.cli import plan
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import words_of_mode
from tests.helpers.plan_files import changed_plan

HOURLY = ["--window", "1h", "--start", "2017-10-01T03:00:00Z", "--end", "2017-10-17T03:00:00Z"]
DAY = ["--window", "1h", "--start", "2017-10-01", "--end", "2017-10-02"]
LABELS = ["--charge", "hits"]
EXTREMES = [
    *("nan", "inf", "-0.0", "0", "5e-324", "2.2250738585072014e-308", "1e-160", "1e-16", "1e-4", "0.9999999999999999"),
    *("1", "40", "41", "1e154", "1.7976931348623157e308", "1e309", "-5e-324"),
]
PLAN = Plan.for_hits(
    epsilon=8,
    delta=1e-6,
    schedule=WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600),
    max_users=10_000,
)


def run_plan(*words):
    return CliRunner().invoke(plan.command, [*words])


def assert_told(result):
    """Done, a wrong command line, or one line."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, UserError), repr(result.exception)
        assert str(result.exception).isprintable()


@pytest.mark.parametrize(("mode", "extremes"), [("hits", EXTREMES[::2]), ("hits-with-counts", EXTREMES[1::4])])
def test_no_budget_ends_in_a_traceback(mode, extremes):
    for epsilon, delta in [*((e, "1e-9") for e in extremes), *(("2", d) for d in extremes), ("5e-324", "5e-324")]:
        assert_told(
            run_plan(*HOURLY, *words_of_mode(mode), "--epsilon", epsilon, "--delta", delta, "--hits-per-user", "1")
        )


def test_no_whole_number_ends_in_a_traceback():
    options = ("--hits-per-user", "--max-items-per-user", "--most-contributions")
    numbers = ("0", "-1", str(2**31), str(2**62 + 1), str(2**64), "1" + "0" * 400)
    for option, number in itertools.product(options, numbers):
        assert_told(run_plan(*DAY, *LABELS, "--epsilon", "8", "--delta", "1e-6", option, number))


@pytest.mark.parametrize(
    "words",
    [
        ["--window", "999999999w"],
        ["--window", "1s", "--end", "9999-12-31"],
        ["--slide", "1s", "--end", "9999-12-31"],
        ["--start", "0001-01-01", "--end", "9999-12-31T23:59:59Z"],
        ["--start", "0001-01-01T00:00:00+23:59"],
        ["--end", "9999-12-31T23:59:59-23:59"],
        ["--start", "\x1b[31m"],
        ["--start", "2017-10-01T03:00:00.5"],
    ],
)
def test_no_window_ends_in_a_traceback(words):
    assert_told(run_plan(*HOURLY, *LABELS, "--epsilon", "8", "--delta", "1e-6", *words))


# A large delta.


# Plan files.


def refusal(path):
    with pytest.raises(UserError) as caught:
        read_plan(str(path))
    message = str(caught.value)
    assert message.startswith(f"--plan {path}")
    assert message.isprintable()
    assert len(message) < 1000
    return message


def outcome(path):
    """The plan, or the error."""
    try:
        return read_plan(str(path)), ""
    except UserError as error:
        return None, str(error)


def test_every_cut_of_a_plan_is_refused(tmp_path):
    path, text = tmp_path / "plan.json", PLAN.to_json().encode()
    for size in range(len(text)):
        path.write_bytes(text[:size])
        refusal(path)


def test_a_plan_with_flipped_bits_is_refused_or_the_same(tmp_path):
    path, text, generator = tmp_path / "plan.json", PLAN.to_json().encode(), random.Random(5)
    refused = 0
    for _ in range(500):
        damaged = bytearray(text)
        for _ in range(generator.choice([1, 1, 2, 20])):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        read, message = outcome(path)
        assert read in (None, PLAN)  # a blank became another one, or a digit beyond the last
        assert message.isprintable()
        refused += read is None
    assert refused > 375


ODD = [None, True, [], {}, "2", "", -1, 0, 1.5, 10**30, -0.0, 5e-324, 1.7e308, 2**53 + 1, [[[]]], {"a": 1}]


FIELDS = json.loads(PLAN.to_json())
PLACES = [
    place
    for name, value in FIELDS.items()
    for place in (name, *(f"{name}.{inner}" for inner in (value if isinstance(value, dict) else ())))
]


@pytest.mark.parametrize("place", PLACES)
def test_a_field_of_another_type_is_refused_even_with_the_right_fingerprint(tmp_path, place):
    path = tmp_path / "plan.json"
    for value in ODD:
        changes = {place: value}
        text = json.dumps({**FIELDS, **changes}) if place == "fingerprint" else changed_plan(PLAN, changes)
        path.write_text(text)
        read, message = outcome(path)
        assert message.isprintable()
        may_be_read = ("epsilon", "delta", "max_users", "threshold", "schedule.start_seconds")
        assert read in (None, PLAN) or place in may_be_read, value


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "1" * 5000, "1e-999", "0x10", "1_000"])
def test_odd_numbers_are_refused(tmp_path, number):
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json().replace('"epsilon": 8.0', f'"epsilon": {number}'))
    refusal(path)


@pytest.mark.parametrize("kind", ["large", "deep", "deep in a field", "many fields", "zeros"])
def test_a_plan_of_any_size_takes_neither_time_nor_memory(tmp_path, kind):
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        if kind == "large":
            file.write(PLAN.to_json().encode() + b" " * 100_000_000)
        elif kind == "zeros":
            file.truncate(10**12)
        elif kind == "deep":
            file.write(b"[" * 1_000_000)
        elif kind == "deep in a field":
            file.write(PLAN.to_json().replace("8.0", "[" * 500_000 + "]" * 500_000, 1).encode())
        else:
            file.write(json.dumps({str(number): number for number in range(60_000)}).encode())
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert time.process_time() - begin < 30
