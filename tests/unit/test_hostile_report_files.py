"""Report files from elsewhere are hostile input: each ends in one line, and none ends the process."""

import io
import json

import fastavro
import pytest

from dp_transforms.monitor.window_report import ABOVE, WINDOW_REPORT_AVRO_SCHEMA, HeavyHitter
from dp_transforms.reports import HEADER_KEY, encode_report
from dp_transforms.reports.report_records import MAX_HEAVY_HITTERS, MAX_RECORD_BYTES
from tests.fuzz.avro_mutators import PACK
from tests.fuzz.mutators import zigzag
from tests.helpers.report_samples import COUNTS, ENDINGS, HEADER, LABELS, NAMES, read_all, refusal, written


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
        [RECORD_LINE],
        ['{"header": {"version": 2}}\n'],
        [HEADER_LINE.replace('"version": 2', '"version": 3')],
        [HEADER_LINE.replace('"version": 2', '"version": [2]')],
        ['{"header": {"version": 1, "run_id": "r"}}\n'],
        ['{"header": []}\n'],
        ["null\n"],
        [HEADER_LINE, "{}\n"],
        [HEADER_LINE, "[1]\n"],
        [HEADER_LINE, "\n"],
        [HEADER_LINE, RECORD_LINE, RECORD_LINE[:-20]],
        [HEADER_LINE, RECORD_LINE.rstrip("\n")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "1e400")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "NaN")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "1" * 400)],
        [HEADER_LINE, RECORD_LINE.replace("812", "1" * 5000)],
        [HEADER_LINE, RECORD_LINE.replace("812", "1e2")],
        [HEADER_LINE, RECORD_LINE.replace('"b"', '"\\ud800"')],
        [HEADER_LINE, RECORD_LINE.replace('"delta"', '"stream": "x", "delta"')],
        [HEADER_LINE, RECORD_LINE.replace('"delta"', '"raw_count": 5, "delta"')],
        [HEADER_LINE, RECORD_LINE.replace('"zone": "above", "noisy_count": null', '"zone": "above", "noisy_count": 5')],
        [HEADER_LINE, NAMES_LINE.replace('"level": 3', '"level": 3.0')],
        [HEADER_LINE, RECORD_LINE.replace(', "at_least_users": null', "")],
        [HEADER_LINE, RECORD_LINE.replace(', "zone": "between"', "").replace(', "noisy_count": 812', "")],
        [HEADER_LINE, " " * (MAX_RECORD_BYTES + 1)],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "2017-10-01T04:00:00+02:00")],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "2017-13-01T04:00:00Z")],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "٢٠١٧-10-01T04:00:00Z")],
        [HEADER_LINE, RECORD_LINE.replace('"2017-10-01T04:00:00Z"', "7")],
        [HEADER_LINE, b'{"stream": "\xff"}\n'],
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
