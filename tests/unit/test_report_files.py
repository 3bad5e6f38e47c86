"""Report files: read by the formats' own libraries; from elsewhere they are hostile, and each ends in one line."""

import dataclasses
import datetime
import io
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
from tests.fuzz.avro_mutators import PACK
from tests.fuzz.mutators import zigzag
from tests.helpers.report_samples import (
    COUNTS,
    ENDINGS,
    HEADER,
    IN_ORDER,
    LABELS,
    MAX_LONG,
    NAMES,
    REPORTS,
    START,
    read_all,
    refusal,
    report,
    written,
)

NO_LEVEL = {"level": None, "at_least_users": None}
BIG_NEW_KNOWN = [
    {"item": item, "zone": None, "noisy_count": count, "level": level, "at_least_users": users}
    for item, count, level, users in (("big", 255, 3, 240), ("new", None, 1, 12), ("known", None, 1, 0))
]


@pytest.mark.parametrize("ending", [*ENDINGS, "json", "ndjson", "AVRO"])
def test_what_is_written_is_read_sorted_by_stream_and_window(tmp_path, ending):
    assert read_all(written(tmp_path, ending)) == (HEADER, IN_ORDER)
    assert IN_ORDER != REPORTS  # the order is the writer's work, not the test's
    os.unlink(tmp_path / f"report.{ending}")
    assert read_all(written(tmp_path, ending, [])) == (HEADER, []), "zero reports make a valid file"
    os.unlink(tmp_path / f"report.{ending}")
    many = [report(i, *(HeavyHitter(f"item {j}", None, j - 1) for j in range(i % 60))) for i in range(1100)]
    assert read_all(written(tmp_path, ending, many)) == (HEADER, many), "through several blocks of Avro"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_header_of_the_largest_size_is_read(tmp_path, ending):
    frame = len(ReportHeader("r", "s", "g", {"x": ""}).to_json())
    header = ReportHeader("r", "s", "g", {"x": "y" * (MAX_HEADER_BYTES - frame)})
    assert len(header.to_json()) == MAX_HEADER_BYTES
    assert read_all(written(tmp_path, ending, header=header)) == (header, IN_ORDER)


def of_avro(path):
    with path.open("rb") as handle:
        reader = fastavro.reader(handle)
        records = list(reader)
    # As it is declared: of a schema that fastavro parsed, the order of keys depends on PYTHONHASHSEED.
    assert json.dumps(WINDOW_REPORT_AVRO_SCHEMA).encode() in path.read_bytes()
    return json.loads(reader.metadata[HEADER_KEY]), records


def of_json(path):
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    header, *records = map(json.loads, lines)
    for record in records:
        for name in ("window_start", "window_end"):
            record[name] = datetime.datetime.fromisoformat(record[name])
    return header["header"], records


@pytest.mark.parametrize(("ending", "read"), [("avro", of_avro), ("jsonl", of_json)])
def test_the_library_of_a_format_reads_what_is_written(tmp_path, ending, read):
    header, records = read(written(tmp_path, ending))
    assert header == {"version": 3, **{name: value for name, value in dataclasses.asdict(HEADER).items() if value}}
    assert records[1] == {
        "stream": "news",
        "window_start": datetime.datetime(2017, 10, 1, 3, tzinfo=datetime.UTC),
        "window_end": datetime.datetime(2017, 10, 1, 4, tzinfo=datetime.UTC),
        "heavy_hitters": [
            {"item": 'Ünï\u2028code "[b]"', "zone": "above", "noisy_count": None, **NO_LEVEL},
            {"item": "b", "zone": "between", "noisy_count": 812, **NO_LEVEL},
        ],
        "epsilon_total": 2.0,
        "delta": 1e-9,
        "epsilon_spent": 0.25,
    }
    assert records[3]["heavy_hitters"][1:] == BIG_NEW_KNOWN


@given(st.integers(-60 * 10**15, 250 * 10**15), st.integers(1, 10**9), st.floats(0, 1e300), st.floats(0, 1))
def test_numbers_and_times_survive_json_exactly(start, length, epsilon, delta):
    original = WindowReport("s", start, start + length, [], epsilon, delta, epsilon)
    assert decode_report(encode_report(original)) == original


NOT_WHOLE = (True, 1.0, math.nan, "5", MAX_LONG + 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heavy_hitters": [HeavyHitter("a", ABOVE, 700)]}, "noisy_count must be null"),
        ({"heavy_hitters": [HeavyHitter("a", "below", None)]}, "zone"),
        *(({"heavy_hitters": [HeavyHitter("a", BETWEEN, count)]}, "noisy_count") for count in NOT_WHOLE),
        ({"heavy_hitters": [HeavyHitter("a", ABOVE, None, 1, 5)]}, "null beside a level"),
        ({"heavy_hitters": [HeavyHitter("a", BETWEEN, 700, 1, 5)]}, "null beside a level"),
        ({"heavy_hitters": [HeavyHitter("a", None, -1, 1, 5)]}, "at least 0 beside a level"),
        ({"heavy_hitters": [HeavyHitter("a", None, None, None, 5)]}, "at_least_users of a heavy hitter must be null"),
        ({"heavy_hitters": [HeavyHitter("a", None, 5, None, 0)]}, "at_least_users of a heavy hitter must be null"),
        *(({"heavy_hitters": [HeavyHitter("a", None, None, level, 5)]}, "level") for level in (0, -1, *NOT_WHOLE)),
        *(
            ({"heavy_hitters": [HeavyHitter("a", None, None, 1, users)]}, "at_least_users")
            for users in (-1, *NOT_WHOLE)
        ),
        ({"heavy_hitters": [HeavyHitter("\ud800", BETWEEN, 1)]}, "item"),
        ({"heavy_hitters": [HeavyHitter(7, BETWEEN, 1)]}, "item"),
        ({"stream": None}, "stream"),
        ({"window_end": START}, "window_end"),
        ({"window_start": -(1 << 62)}, "window_start"),
        ({"window_end": 1 << 62}, "window_end"),
        ({"epsilon_spent": math.nan}, "epsilon_spent"),
        ({"epsilon_total": math.inf}, "epsilon_total"),
        ({"delta": 1.5}, "delta"),
        ({"delta": -1e-9}, "delta"),
    ],
)
def test_what_must_not_be_released_is_not_written(tmp_path, change, named):
    with pytest.raises(ReportFileError, match=named):
        written(tmp_path, "avro", [LABELS, LABELS._replace(**change)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "fields",
    [{"plan": []}, {"run_id": 7}, {"guarantee": "\ud800"}, {"plan": {"x": math.nan}}, {"plan": {"x": object()}}],
)
def test_a_header_holds_json_only(tmp_path, fields):
    with pytest.raises(ReportFileError):
        write_report_file(tmp_path / "r.jsonl", dataclasses.replace(HEADER, **fields), [])
    assert os.listdir(tmp_path) == []


def test_format_by_ending():
    assert report_format("a/b.avro") == "avro"
    assert report_format("x.ndjson") == report_format("x.json") == report_format("x.JSONL") == "json"
    for path in ("report", "report.csv", "report.avro.gz", "a.avro/b", ".partial", "x\ny", "report.parquet"):
        with pytest.raises(ReportFileError, match=r"must end in one of .*\.jsonl") as caught:
            report_format(path)
        assert "\n" not in str(caught.value)
        assert ("For a table of it: shh show REPORT" in str(caught.value)) == path.endswith((".csv", ".parquet"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_another_version_names_the_remedy_whatever_its_schema(tmp_path, ending):
    header = HEADER.to_json().replace('"version": 3', '"version": 2')
    path = tmp_path / f"other.{ending}"
    if ending == "avro":
        with path.open("wb") as handle:
            other = {"type": "record", "name": "Other", "fields": []}
            fastavro.writer(handle, other, [], metadata={HEADER_KEY: header})
    else:
        path.write_text(f'{{"header": {header}}}\n')
    with pytest.raises(ReportFileError, match=r"must have version 3\. Read it with the version of shh"):
        read_all(path)


ONE = HeavyHitter("i", ABOVE, None)
TOO_MANY = [ONE] * (MAX_HEAVY_HITTERS + 1)
TOO_LONG = [HeavyHitter("x" * MAX_RECORD_BYTES, ABOVE, None)]


@pytest.mark.parametrize("held", [TOO_MANY, TOO_LONG], ids=["many", "long"])
def test_a_report_beyond_the_bounds_is_not_written(tmp_path, held):
    with pytest.raises(ReportFileError, match=r"<= 262144 heavy hitters and .* JSON\. Run with a higher threshold"):
        written(tmp_path, "jsonl", [report(0, *held)])
    assert not list(tmp_path.iterdir())


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


def test_an_error_names_no_field_that_the_file_names():
    with pytest.raises(ReportFileError) as raised:
        decode_report('{"stream": "s", "secret": 5}')
    assert "secret" not in str(raised.value)
    with pytest.raises(ReportFileError, match=r"not what shh writes: heavy_hitters\[1\]\.item"):
        decode_report(RECORD_LINE.replace('"b"', "5"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_cut_file_is_refused_except_between_its_records(tmp_path, ending):
    data = written(tmp_path, ending).read_bytes()
    cut = tmp_path / f"cut.{ending}"
    whole = {len(data)}
    if ending == "jsonl":
        whole |= {place + 1 for place, byte in enumerate(data) if byte == ord("\n")}
    if ending == "avro":  # the sync marker ends the header, and each block: here there is one
        whole |= {data.index(data[-16:]) + 16}
    for size in sorted({*range(0, len(data), 17), *whole}):
        cut.write_bytes(data[:size])
        if size in whole:
            assert read_all(cut)[0] == HEADER
        else:
            refusal(cut)


def json_file(tmp_path, *lines):
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


HEADER_LINE = f'{{"header": {HEADER.to_json()}}}\n'
RECORD_LINE = encode_report(LABELS) + "\n"
NAMES_LINE = encode_report(NAMES) + "\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["[" * 100_000 + "]" * 100_000 + "\n"],
        ['{"header": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}\n"],
        *([line] for line in (RECORD_LINE, "null\n", '{"header": {"version": 3}}\n', '{"header": []}\n')),
        *([HEADER_LINE.replace('"version": 3', f'"version": {other}')] for other in ("2", "[3]")),
        *([HEADER_LINE, line] for line in ("{}\n", "[1]\n", "\n", RECORD_LINE.rstrip("\n"), b'{"stream": "\xff"}\n')),
        [HEADER_LINE, RECORD_LINE, RECORD_LINE[:-20]],
        *([HEADER_LINE, RECORD_LINE.replace("0.25", number)] for number in ("1e400", "NaN", "1" * 400)),
        *([HEADER_LINE, RECORD_LINE.replace("812", number)] for number in ("1" * 5000, "1e2")),
        [HEADER_LINE, RECORD_LINE.replace('"b"', '"\\ud800"')],
        *([HEADER_LINE, RECORD_LINE.replace('"delta"', f'{more}, "delta"')] for more in ('"raw_count": 5',)),
        [HEADER_LINE, RECORD_LINE.replace('"zone": "above", "noisy_count": null', '"zone": "above", "noisy_count": 5')],
        [HEADER_LINE, NAMES_LINE.replace('"level": 3', '"level": 3.0')],
        [HEADER_LINE, RECORD_LINE.replace(', "at_least_users": null', "")],
        [HEADER_LINE, RECORD_LINE.replace(', "zone": "between"', "").replace(', "noisy_count": 812', "")],
        [HEADER_LINE, " " * (MAX_RECORD_BYTES + 1)],
        *(
            [HEADER_LINE, RECORD_LINE.replace('"2017-10-01T04:00:00Z"', time)]
            for time in ('"2017-10-01T04:00:00+02:00"', '"2017-13-01T04:00:00Z"', '"٢٠١٧-10-01T04:00:00Z"', "7")
        ),
    ],
    ids=lambda _: "case",
)
def test_hostile_json_is_refused(tmp_path, lines):
    refusal(json_file(tmp_path, *lines))


def test_the_json_cases_above_start_from_a_file_that_is_read(tmp_path):
    assert read_all(json_file(tmp_path, HEADER_LINE, RECORD_LINE, NAMES_LINE)) == (HEADER, [LABELS, NAMES])


def avro_file(tmp_path, schema, blocks=b"", *, codec=b"deflate", count=3, header=None):
    """An Avro container made by hand."""
    entries = [
        (b"avro.schema", schema if isinstance(schema, bytes) else json.dumps(schema).encode()),
        (b"avro.codec", codec),
        (HEADER_KEY.encode(), HEADER.to_json().encode() if header is None else header),
    ]
    data = b"Obj\x01" + zigzag(count)
    for key, value in entries:
        data += zigzag(len(key)) + key + zigzag(len(value)) + value
    path = tmp_path / "hostile.avro"
    path.write_bytes(data + zigzag(0) + b"S" * 16 + blocks)
    return path


def avro_block(count, payload, size=None):
    data = PACK["deflate"](payload)
    return zigzag(count) + zigzag(len(data) if size is None else size) + data + b"S" * 16


def avro_payload(*reports):
    buffer = io.BytesIO()
    for one in reports:
        fields = {**one._asdict(), "heavy_hitters": [entry._asdict() for entry in one.heavy_hitters]}
        fastavro.schemaless_writer(
            buffer, fastavro.parse_schema(json.loads(json.dumps(WINDOW_REPORT_AVRO_SCHEMA))), fields
        )
    return buffer.getvalue()


def test_the_avro_cases_below_start_from_a_file_that_is_read(tmp_path):
    blocks = avro_block(1, avro_payload(LABELS)) + avro_block(0, b"") + avro_block(2, avro_payload(COUNTS, NAMES))
    path = avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, blocks)
    assert read_all(path) == (HEADER, [LABELS, COUNTS, NAMES])


def nested_schema(depth):
    schema = "string"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        b"not json",
        b"[" * 200_000,
        b'{"type":"array","items":' * 20_000 + b'"string"' + b"}" * 20_000,
        "string",
        nested_schema(100),
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": "R"}]},
        {**WINDOW_REPORT_AVRO_SCHEMA, "fields": WINDOW_REPORT_AVRO_SCHEMA["fields"][:-1]},
    ],
    ids=lambda _: "case",
)
def test_an_avro_file_with_another_schema_is_refused_before_it_is_decoded(tmp_path, schema):
    refusal(avro_file(tmp_path, schema, avro_block(1, b"\0" * 100)))


@pytest.mark.parametrize(
    "blocks",
    [
        avro_block(1, avro_payload(LABELS))[:-1],
        avro_block(1, avro_payload(LABELS))[:-1] + b"X",
        avro_block(3, avro_payload(LABELS, COUNTS)),
        avro_block(1, avro_payload(LABELS, COUNTS)),
        avro_block(0, avro_payload(LABELS)),
        avro_block(-1, avro_payload(LABELS)),
        avro_block(1 << 60, avro_payload(LABELS)),
        avro_block(1, avro_payload(LABELS), size=1 << 60),
        avro_block(1, avro_payload(LABELS), size=-1),
        avro_block(1, b"\xff" * 200),
        zigzag(1) + zigzag(8) + b"\xff" * 8 + b"S" * 16,
        b"\xff" * 30,
        avro_block(1, avro_payload(LABELS._replace(heavy_hitters=[HeavyHitter("a", ABOVE, 5)]))),
        avro_block(1, b"\0" * 3 + zigzag(MAX_HEAVY_HITTERS + 1) + b"\0" * 2_000_000),
        avro_block(1, avro_payload(LABELS._replace(window_end=(1 << 63) - 1))),
    ],
    ids=lambda _: "case",
)
def test_broken_avro_blocks_are_refused(tmp_path, blocks):
    refusal(avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, blocks))


def test_an_avro_block_that_unpacks_to_more_than_the_bound_is_refused(tmp_path):
    path = avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, avro_block(1, bytes(MAX_RECORD_BYTES + (1 << 17))))
    assert path.stat().st_size < 100_000
    assert "unpacks to more than" in refusal(path)


@pytest.mark.parametrize(
    "metadata",
    [{"codec": b"zstandard"}, {"count": 1 << 40}, {"header": b"{"}, {"header": b"[" * 99_999}, {"header": b"7"}],
    ids=lambda _: "case",
)
def test_hostile_avro_metadata_is_refused(tmp_path, metadata):
    refusal(avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, **metadata))


def test_an_avro_file_with_a_header_larger_than_any_report_has_is_refused(tmp_path):
    assert "the header of the Avro file has more than" in refusal(
        avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, header=b" " * (1 << 21))
    )
