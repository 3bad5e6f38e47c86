"""Times in a declared form, and local times of a declared zone, against Python's strptime and zoneinfo."""

import datetime
import functools
import re
import zoneinfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError, find_log_chunks
from dp_transforms.logs.time_formats import NOT_A_TIME, pattern_of, read_times, utc_of_local
from dp_transforms.logs.times import parse_times, parse_values
from tests.helpers.event_files_oracle import read_all
from tests.helpers.log_files import write_avro, write_csv, write_json, write_parquet

EPOCH, MICRO = datetime.datetime(1970, 1, 1), datetime.timedelta(microseconds=1)
FORMS = [
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %I:%M %p",
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y%m%d%H%M%S",
    "%d.%m.%y %H:%M:%S.%f",
    "%A, %d %B %Y 100%% (%H)",
    "[%d-%b-%Y]",
]
MOMENTS = st.datetimes(datetime.datetime(1969, 1, 1), datetime.datetime(2068, 12, 31))


def _micros(text, form):
    try:
        moment = datetime.datetime.strptime(text, form)
    except ValueError:
        return None
    offset = moment.utcoffset() or datetime.timedelta()
    return (moment.replace(tzinfo=None) - offset - EPOCH) // MICRO


def _read(texts, form):
    micros, _ = read_times(pa.array(texts, pa.string()), *pattern_of(form))
    return [None if value == NOT_A_TIME else value for value in micros.tolist()]


@pytest.mark.parametrize("form", FORMS)
@given(moments=st.lists(MOMENTS, max_size=8), offset=st.integers(-14 * 60, 14 * 60))
def test_a_form_means_what_pythons_strptime_says(form, moments, offset):
    zone = datetime.timezone(datetime.timedelta(minutes=offset))
    texts = [moment.replace(tzinfo=zone).strftime(form) for moment in moments]
    assert _read(texts, form) == [_micros(text, form) for text in texts]
    assert None not in _read([case for text in texts for case in (text, text.upper(), text.lower())], form)


@pytest.mark.parametrize(
    ("form", "bad"),
    [
        ("%d.%m.%Y %H:%M", ["31.02.2026 10:00", "29.02.2025 1:00", "1.13.2026 1:00", "0.1.2026 1:00", "1.1.0000 1:00"]),
        ("%d.%m.%Y %H:%M", ["31.12.2026 24:00", "31.12.2026 10:60", "31.12.2026", " 31.12.2026 10:00", "x", ""]),
        ("%d.%m.%Y %H:%M", ["31.12.2026 10:00\n", "31.12.2026 10:00:00", "31.12.26 10:00", "31-12-2026 10:00"]),
        ("%m/%d/%Y %I:%M %p", ["12/31/2026 13:00 PM", "12/31/2026 0:00 AM", "31/12/2026 1:00 PM", "1/1/2026 1:00"]),
        ("%d/%b/%Y:%H:%M:%S %z", ["1/Foo/2026:00:00:00 Z", "1/Mai/2026:00:00:00 Z", "1/Jan/2026:00:00:00 +0160"]),
        ("%d/%b/%Y:%H:%M:%S %z", ["1/Jan/2026:00:00:00 +2400", "1/Jan/2026:00:00:60 Z", "1/Jan/2026:00:00:00"]),
        ("%d/%b/%Y", ["01/ſep/2026", "01/Auguſt/2026"]),
        ("%Y%m%d", ["2026111", "202611011", "20260231"]),
    ],
)
def test_what_is_not_of_the_form_is_a_bad_time(form, bad):
    assert _read(bad, form) == [None] * len(bad)
    assert parse_times(pa.array(bad), None, form).faults.all(), "also without a text beside them that is not UTF-8"


def test_a_form_may_have_any_printable_ascii_text_in_it_and_short_numbers():
    for character in r"""!"#$&'()*+,-./:;<=>?@[\]^_`{|}~xyz0""":
        form = f"{character}%d{character}%m{character}%Y"
        assert _read([f"{character}1{character}2{character}2026"], form) == [_micros("1 2 2026", "%d %m %Y")], character
        assert _read([f"{character}1#2{character}2026"], form) == [None] or character == "#"
    assert _read(["1.2.2026   3:4"], "%d.%m.%Y %H:%M") == [_micros("1.2.2026 3:4", "%d.%m.%Y %H:%M")]
    assert _read(["1/2/2026 0930", "1/2/2026 930"], "%d/%m/%Y %H%M") == [
        _micros("1/2/2026 9:30", "%d/%m/%Y %H:%M"),
        None,
    ]
    zones = ["Z", "UTC", "GMT", "+01", "+0100", "+01:00", "-0130"]
    micros = _read([f"01.01.1970 {zone}" for zone in zones], "%d.%m.%Y %z")
    assert micros == [hours * 3_600_000_000 for hours in (0, 0, 0, -1, -1, -1, 1.5)]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("%d.%m", "must have a day, a month and a year"),
        ("%d.%m.%Y %d", "must have a day, a month and a year"),
        ("%d.%m.%Y %I:%M", "%I with %p"),
        ("%d.%m.%Y %p", "%I with %p"),
        ("%d.%m.%Y %S", "from the hour down"),
        ("%d.%m.%Y %H:%f", "from the hour down"),
        ("%d.%m.%Y %q", "got %q"),
        ("%d.%m.%Y %", "got % in"),
        ("%d.%m.%Y µ", "printable ASCII"),
    ],
)
def test_a_form_that_cannot_be_used_is_refused(form, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        EventFields(time_format=form)
    assert str(caught.value).startswith("time_format must ")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "UTC"])
def test_local_times_are_those_of_zoneinfo(zone):
    """In all years, and around every change of the clock of some; summer time after 2037 too."""
    source = np.random.default_rng(len(zone))
    seconds = np.concatenate(
        [source.integers(-62_135_596_800, 253_402_300_800, 1000), source.integers(-(2**31), 2**32, 3000)]
        + [np.arange(begin, begin + 366 * 86_400, 1799) for begin in (1_767_225_600, 2_240_524_800)]
    )
    micros = seconds * 1_000_000 + source.integers(0, 10**6, len(seconds))
    known = zoneinfo.ZoneInfo(zone)
    expected = [value - (known.utcoffset(EPOCH + value * MICRO) or EPOCH - EPOCH) // MICRO for value in micros.tolist()]
    assert utc_of_local(micros, zone).tolist() == expected


def test_a_zone_moves_what_has_none_and_nothing_else():
    noon, hour, zone = 1_767_268_800_000_000, 3_600_000_000, "Europe/Berlin"  # 2026-01-01T12:00:00Z
    local = [
        pa.array(["2026-01-01T12:00:00", "2026-01-01 12:00", "2026-01-01T12:00:00.0000001"]),
        pa.array([noon], pa.timestamp("us")),
        pa.array([noon * 1000], pa.timestamp("ns")),
        pa.array([20_454], pa.date32()),
    ]
    for array in local:
        (plain,) = set(parse_times(array, None).micros.tolist())
        assert set(parse_times(array, None, None, zone).micros.tolist()) == {plain - hour}
    fixed = ["2026-01-01T12:00:00Z", "2026-01-01T13:00:00+01:00", "2026-01-01T07:00-05"]
    for array in (pa.array(fixed), pa.array([noon], pa.timestamp("us", "UTC"))):
        assert set(parse_times(array, None, None, zone).micros.tolist()) == {noon}
    assert parse_times(pa.array([noon]), "us", None, zone).micros.tolist() == [noon]
    mixed = parse_times(pa.array(["2026-01-01T12:00:00", "2026-01-01T12:00:00Z", "x", None]), None, None, zone)
    assert mixed.micros.tolist()[:2] == [noon - hour, noon]
    assert (mixed.faults == 0).tolist() == [True, True, False, False]
    values = [datetime.datetime(2026, 1, 1, 12), datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)]
    assert parse_values(values, None, None, zone).micros.tolist() == [noon - hour, noon]
    ends = parse_times(pa.array(["0001-01-01T00:30:00", "9999-12-31T23:30:00"]), None, None, zone)
    assert (ends.faults == 0).tolist() == [False, True], "it is moved out of the years"


GERMAN = EventFields(time_format="%d.%m.%Y %H:%M", time_zone="Europe/Berlin", csv_separator=";")
ROWS = [("u1", "i", "01.07.2026 02:00"), ("u2", "i", "1.1.2026 1:00"), ("u3", "i", "31.02.2026 02:00"), ("u4", "i", "")]
WRITERS = {
    "csv": functools.partial(write_csv, separator=";"),
    "jsonl": write_json,
    "parquet": lambda path, rows: write_parquet(path, rows, [pa.string()] * 3),
    "avro": lambda path, rows: write_avro(path, rows, ("string",) * 3),
}


@pytest.mark.parametrize("ending", WRITERS)
def test_every_reader_reads_a_form_and_a_zone(tmp_path, ending):
    events, rejected = read_all(WRITERS[ending](tmp_path / f"log.{ending}", ROWS), GERMAN)
    assert events == [("u1", "i", 1_782_864_000_000_000), ("u2", "i", 1_767_225_600_000_000)]
    first = 2 if ending == "csv" else 1
    assert rejected == {"bad time": [first + 2], "missing time": [first + 3]}


@pytest.mark.parametrize(("logical", "is_local"), [("timestamp-millis", False), ("local-timestamp-millis", True)])
def test_an_avro_type_says_whether_its_times_are_local(tmp_path, logical, is_local):
    types = ("string", "string", {"type": "long", "logicalType": logical})
    path = write_avro(tmp_path / "log.avro", [("u", "i", 1_767_225_600_000)], types)
    events, _ = read_all(path, EventFields(time_zone="Europe/Berlin"))
    assert events == [("u", "i", 1_767_225_600_000_000 - 3_600_000_000 * is_local)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"time_zone": "Berlin"}, "that this machine knows, got 'Berlin'. Use a name such as Europe/Berlin"),
        ({"time_zone": "../etc/passwd"}, "that this machine knows, got '../etc/passwd'. Use a name such as"),
        ({"time_format": "%d.%m.%Y", "time_unit": "s"}, "time_format and time_unit must not be given together"),
        ({"time_unit": "ns"}, "time_unit must be one of s, ms, us, iso, got 'ns'"),
    ],
)
def test_a_reading_of_times_that_cannot_be_is_refused(fields, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        EventFields(**fields)


def test_numbers_where_a_form_is_declared_are_refused_with_a_remedy(tmp_path):
    pq.write_table(pa.table({"user": ["u"], "item": ["i"], "timestamp": [20260101]}), tmp_path / "log.parquet")
    with pytest.raises(EventFileError, match="holds numbers without a unit"):
        find_log_chunks([str(tmp_path / "log.parquet")], EventFields(time_format="%Y%m%d"))
