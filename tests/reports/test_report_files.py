"""Report files: what is written, read by the formats' own libraries, and what must not be released."""

import dataclasses
import datetime
import json
import math
import os

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, decode_report, encode_report, report_format
from dp_transforms.reports.avro import WINDOW_REPORT_AVRO_SCHEMA
from dp_transforms.reports.files import write_report_file
from dp_transforms.reports.report_records import HEADER_KEY, MAX_HEADER_BYTES, MAX_HEAVY_HITTERS, MAX_RECORD_BYTES
from tests.helpers.report_samples import HEADER, IN_ORDER, LABELS, MAX_LONG, REPORTS, START, read_all, report, written


@pytest.mark.parametrize("ending", ["avro", "jsonl"])
def test_what_is_written_is_read_sorted_by_stream_and_window(tmp_path, ending):
    assert read_all(written(tmp_path, ending)) == (HEADER, IN_ORDER)
    assert IN_ORDER != REPORTS  # the order is the writer's work, not the test's
    os.unlink(tmp_path / f"report.{ending}")
    assert read_all(written(tmp_path, ending, [])) == (HEADER, []), "zero reports make a valid file"
    os.unlink(tmp_path / f"report.{ending}")
    many = [report(i, *(HeavyHitter(f"item {j}", None, j - 1) for j in range(i % 60))) for i in range(500)]
    frame = len(ReportHeader("r", "s", "g", {"x": ""}).to_json())
    header = ReportHeader("r", "s", "g", {"x": "y" * (MAX_HEADER_BYTES - frame)})
    assert read_all(written(tmp_path, ending, many, header)) == (header, many), "several blocks, the longest header"


def of_avro(path):
    with path.open("rb") as handle:
        reader = fastavro.reader(handle)
        records = list(reader)
    # As it is declared: of a schema that fastavro parsed, the order of keys depends on PYTHONHASHSEED.
    assert json.dumps(WINDOW_REPORT_AVRO_SCHEMA).encode() in path.read_bytes()
    return json.loads(reader.metadata[HEADER_KEY]), records


def of_json(path):
    header, *records = map(json.loads, path.read_text().rstrip("\n").split("\n"))
    for record in records:
        for name in ("window_start", "window_end"):
            record[name] = datetime.datetime.fromisoformat(record[name])
    return header["header"], records


@pytest.mark.parametrize(("ending", "read"), [("avro", of_avro), ("jsonl", of_json)])
def test_the_library_of_a_format_reads_what_is_written(tmp_path, ending, read):
    header, records = read(written(tmp_path, ending))
    assert header == {"version": 3, **{name: value for name, value in dataclasses.asdict(HEADER).items() if value}}
    unstated = {"level": None, "at_least_users": None}
    assert records[1] == {
        "stream": "news",
        "window_start": datetime.datetime(2017, 10, 1, 3, tzinfo=datetime.UTC),
        "window_end": datetime.datetime(2017, 10, 1, 4, tzinfo=datetime.UTC),
        "heavy_hitters": [
            {"item": 'Ünï\u2028code "[b]"', "zone": "above", "noisy_count": None, **unstated},
            {"item": "b", "zone": "between", "noisy_count": 812, **unstated},
        ],
        "epsilon_total": 2.0,
        "delta": 1e-9,
        "epsilon_spent": 0.25,
    }
    assert [tuple(each.values()) for each in records[3]["heavy_hitters"][1:]] == [
        ("big", None, 255, 3, 240),
        ("new", None, None, 1, 12),
        ("known", None, None, 1, 0),
    ]


@given(st.integers(-60 * 10**15, 250 * 10**15), st.integers(1, 10**9), st.floats(0, 1e300), st.floats(0, 1))
def test_numbers_and_times_survive_json_exactly(start, length, epsilon, delta):
    original = WindowReport("s", start, start + length, [], epsilon, delta, epsilon)
    assert decode_report(encode_report(original)) == original


NOT_WHOLE = (True, math.nan, "5", MAX_LONG + 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heavy_hitters": [HeavyHitter("a", ABOVE, 700)]}, "noisy_count must be null"),
        ({"heavy_hitters": [HeavyHitter("a", "below", None)]}, "zone"),
        *(({"heavy_hitters": [HeavyHitter("a", BETWEEN, count)]}, "noisy_count") for count in NOT_WHOLE),
        ({"heavy_hitters": [HeavyHitter("a", ABOVE, None, 1, 5)]}, "null beside a level"),
        ({"heavy_hitters": [HeavyHitter("a", None, -1, 1, 5)]}, "at least 0 beside a level"),
        ({"heavy_hitters": [HeavyHitter("a", None, 5, None, 0)]}, "at_least_users of a heavy hitter must be null"),
        *(({"heavy_hitters": [HeavyHitter("a", None, None, level, 5)]}, "level") for level in (0, -1, *NOT_WHOLE)),
        *(({"heavy_hitters": [HeavyHitter("a", None, None, 1, n)]}, "at_least_users") for n in (-1, *NOT_WHOLE)),
        ({"heavy_hitters": [HeavyHitter("\ud800", BETWEEN, 1)]}, "item"),
        ({"window_end": START}, "window_end"),
        ({"window_start": -(1 << 62)}, "window_start"),
        ({"epsilon_spent": math.nan}, "epsilon_spent"),
        ({"epsilon_total": math.inf}, "epsilon_total"),
        ({"delta": 1.5}, "delta"),
        ({"heavy_hitters": [HeavyHitter("i", ABOVE, None)] * (MAX_HEAVY_HITTERS + 1)}, "<= 262144 heavy hitters"),
        ({"heavy_hitters": [HeavyHitter("x" * MAX_RECORD_BYTES, ABOVE, None)]}, "Run with a higher threshold"),
    ],
)
def test_what_must_not_be_released_is_not_written(tmp_path, change, named):
    with pytest.raises(ReportFileError, match=named):
        written(tmp_path, "avro", [LABELS, LABELS._replace(**change)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "fields",
    [{"plan": []}, {"run_id": 7}, {"guarantee": "\ud800"}, {"plan": {"x": math.nan}}],
)
def test_a_header_holds_json_only(tmp_path, fields):
    with pytest.raises(ReportFileError):
        write_report_file(tmp_path / "r.jsonl", dataclasses.replace(HEADER, **fields), [])
    assert os.listdir(tmp_path) == []


def test_the_size_of_a_report_is_never_told_too_small():
    """Else it could be written and not be read again. Escapes are the worst: six bytes for a character."""
    label = '\0\x1f\\"' * ((MAX_RECORD_BYTES - 3000) // 16 // 2)
    held = [HeavyHitter(label, None, None, MAX_LONG, MAX_LONG), HeavyHitter("", "between", -(1 << 63))]
    largest = report(0, *held, stream=label, spent=1.2345678901234567e-300)
    line = encode_report(largest)
    assert MAX_RECORD_BYTES - 5000 < len(line.encode()) < MAX_RECORD_BYTES
    assert decode_report(line) == largest
    with pytest.raises(ReportFileError, match="bytes as JSON"):
        encode_report(largest._replace(stream=f"{label}{'x' * 3000}"))


def test_format_by_ending():
    assert report_format("a/b.avro") == "avro"
    assert report_format("x.ndjson") == report_format("x.json") == report_format("x.JSONL") == "json"
    for path in ("report", "report.csv", "report.avro.gz", "a.avro/b", ".partial", "x\ny", "report.parquet"):
        with pytest.raises(ReportFileError, match=r"must end in one of .*\.jsonl") as caught:
            report_format(path)
        assert "\n" not in str(caught.value)
        assert ("For a table of it: shh show REPORT" in str(caught.value)) == path.endswith((".csv", ".parquet"))
