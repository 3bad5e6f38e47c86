"""Reports that nobody wrote: whatever a file holds, it is read as what may be written, or refused in a line."""

import io
import json
import pathlib

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.errors import StreamError
from dp_transforms.reports import ReportFileError, decode_report, encode_report, read_report_file
from dp_transforms.reports.avro import WINDOW_REPORT_AVRO_SCHEMA
from dp_transforms.reports.files import report_file_bytes
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import HEADER_KEY, MAX_HEAVY_HITTERS, MAX_RECORD_BYTES, RunEnded
from dp_transforms.stores.avro_container import MAX_BLOCK_BYTES
from tests.helpers.avro_bytes import PACK, avro_container, zigzag
from tests.helpers.report_samples import COUNTS, HEADER, LABELS, NAMES, REPORTS, files_of, read_all, write_all
from tests.helpers.report_samples import refusal as refusal_of

PIECES = [b"\0", b"\xff", b'"', b"\n", b"{", b"}", b"[", b"null", b"-1", b"NaN", b"1e400", b'"\\ud800"', b"9" * 5000]
PIECES += [b"[" * 5000, b'{"a":' * 5000, b"\xef\xbb\xbf", *map(zigzag, (-1, 1 << 31, 1 << 62, -(1 << 63)))]
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(PIECES) | st.binary(max_size=8)), max_size=3
)


def edited(data, edits):
    """Each puts a piece in the place of some bytes. place: as a part of the whole."""
    for place, removed, piece in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + removed :]
    return data


@given(EDITS, st.sampled_from(["avro", "json"]))
def test_an_edited_file_is_refused_or_what_it_holds_can_be_written(tmp_path, edits, form):
    path = tmp_path / f"edited.{form}"
    path.write_bytes(edited(report_file_bytes(HEADER, REPORTS, form), edits))
    try:
        header, reports = read_report_file(path)
    except ReportFileError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may be read as well
        return
    for again in ("avro", "json"):
        (copy := tmp_path / f"copy.{again}").write_bytes(report_file_bytes(header, reports, again))
        found, held = read_report_file(copy)
        assert (found, sorted(map(repr, held))) == (header, sorted(map(repr, reports)))


@given(EDITS, st.integers(0, 5))
def test_a_folder_with_an_edited_file_is_refused_in_a_line_or_read(tmp_path_factory, edits, number):
    path = tmp_path_factory.mktemp("stream")
    write_all(ReportFolder(str(path)), [LABELS, COUNTS, NAMES], RunEnded("news", 12, 3))
    name = sorted(files_of(path))[number % 5]
    pathlib.Path(path, name).write_bytes(edited(files_of(path)[name], edits))
    try:
        header, _, _ = ReportFolder(str(path)).read()
    except StreamError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may be read as well
    else:
        ReportFolder(str(path)).open(header)


def refusal(path, content):
    """The one line with which a file of these bytes is refused."""
    path.write_bytes(content)
    return refusal_of(path)


@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_cut_file_is_refused_except_between_its_records(tmp_path, form):
    data = report_file_bytes(HEADER, REPORTS, form)
    # The sync marker ends the header of Avro, and each block: here there is one.
    ends = {place + 1 for place, byte in enumerate(data) if byte == ord("\n")}
    whole = ends if form == "json" else {len(data), data.index(data[-16:]) + 16}
    path = tmp_path / f"cut.{form}"
    for size in sorted({*range(0, len(data), 41), *whole}):
        if size in whole:
            path.write_bytes(data[:size])
            assert read_all(path)[0] == HEADER
        else:
            refusal(path, data[:size])


@pytest.mark.parametrize("form", ["avro", "jsonl"])
def test_a_file_of_another_version_names_the_remedy_whatever_its_schema(tmp_path, form):
    header = HEADER.to_json().replace('"version": 3', '"version": 2')
    content = io.BytesIO(f'{{"header": {header}}}\n'.encode())
    if form == "avro":
        other = {"type": "record", "name": "Other", "fields": []}
        fastavro.writer(content := io.BytesIO(), other, [], metadata={HEADER_KEY: header})
    said = "must have version 3. Read it with the version of shh"
    assert said in refusal(tmp_path / f"other.{form}", content.getvalue())


HEADER_LINE = f'{{"header": {HEADER.to_json()}}}\n'
RECORD_LINE = encode_report(LABELS) + "\n"
NAMES_LINE = encode_report(NAMES) + "\n"


def with_header(line):
    return HEADER_LINE.encode() + (line if isinstance(line, bytes) else line.encode())


@pytest.mark.parametrize(
    "content",
    [
        *(line.encode() for line in (RECORD_LINE, "null\n", '{"header": []}\n')),
        b'{"header": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}\n",
        *map(with_header, ("[1]\n", "\n", RECORD_LINE.rstrip("\n"), b'{"stream": "\xff"}\n')),
        *(with_header(RECORD_LINE.replace("0.25", number)) for number in ("1e400", "NaN")),
        *(with_header(RECORD_LINE.replace("812", number)) for number in ("1" * 5000, "1e2")),
        with_header(RECORD_LINE.replace('"b"', '"\\ud800"')),
        with_header(RECORD_LINE.replace('"delta"', '"raw_count": 5, "delta"')),
        with_header(RECORD_LINE.replace('"zone": "above", "noisy_count": null', '"zone": "above", "noisy_count": 5')),
        with_header(RECORD_LINE.replace(', "at_least_users": null', "")),
        with_header(" " * (MAX_RECORD_BYTES + 1)),
        *(with_header(RECORD_LINE.replace("04:00:00Z", time)) for time in ("04:00:00+02:00", "٤:00:00Z", "7")),
    ],
    ids=lambda _: "case",
)
def test_json_that_no_report_has_is_refused(tmp_path, content):
    refusal(tmp_path / "hostile.jsonl", content)


def test_an_error_names_no_field_that_the_file_names():
    with pytest.raises(ReportFileError) as raised:
        decode_report('{"stream": "s", "secret": 5}')
    assert "secret" not in str(raised.value)
    with pytest.raises(ReportFileError, match=r"not what shh writes: heavy_hitters\[1\]\.item"):
        decode_report(RECORD_LINE.replace('"b"', "5"))


def container(*blocks, schema=WINDOW_REPORT_AVRO_SCHEMA, codec=b"deflate", header=None):
    """An Avro file made by hand. blocks: number of records, and what is unpacked."""
    metadata = {
        "avro.schema": schema if isinstance(schema, bytes) else json.dumps(schema).encode(),
        "avro.codec": codec,
        HEADER_KEY: HEADER.to_json().encode() if header is None else header,
    }
    return avro_container(metadata, [(count, PACK["deflate"](payload)) for count, payload in blocks])


def payload(*reports):
    buffer = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(json.dumps(WINDOW_REPORT_AVRO_SCHEMA)))
    for one in reports:
        fields = {**one._asdict(), "heavy_hitters": [entry._asdict() for entry in one.heavy_hitters]}
        fastavro.schemaless_writer(buffer, schema, fields)
    return buffer.getvalue()


LABELS_BLOCK = (1, payload(LABELS))


def test_the_cases_below_start_from_a_file_that_is_read(tmp_path):
    (path := tmp_path / "good.avro").write_bytes(container(LABELS_BLOCK, (0, b""), (2, payload(COUNTS, NAMES))))
    assert read_all(path) == (HEADER, [LABELS, COUNTS, NAMES])
    (path := tmp_path / "good.jsonl").write_text(HEADER_LINE + RECORD_LINE + NAMES_LINE)
    assert read_all(path) == (HEADER, [LABELS, NAMES])


@pytest.mark.parametrize(
    "schema",
    [
        b"not json",
        b"[" * 200_000,
        b'{"type":"array","items":' * 20_000 + b'"string"' + b"}" * 20_000,
        "string",
        {**WINDOW_REPORT_AVRO_SCHEMA, "fields": WINDOW_REPORT_AVRO_SCHEMA["fields"][:-1]},
    ],
    ids=lambda _: "case",
)
def test_an_avro_file_with_another_schema_is_refused_before_it_is_decoded(tmp_path, schema):
    """Some of them end the process of who decodes by them. What it holds would be a report."""
    refusal(tmp_path / "hostile.avro", container(LABELS_BLOCK, schema=schema))


def test_a_block_of_other_or_more_records_than_it_says_is_refused(tmp_path):
    wrong = LABELS._replace(heavy_hitters=[HeavyHitter("a", ABOVE, 5)])
    for block in ((1, payload(LABELS, COUNTS)), (3, payload(LABELS, COUNTS)), (1, payload(wrong))):
        refusal(tmp_path / "hostile.avro", container(block))


def test_what_unpacks_or_is_larger_than_any_report_is_refused(tmp_path):
    bomb = container((1, bytes(MAX_BLOCK_BYTES + 1)))
    assert len(bomb) < 100_000
    assert "is damaged or not a report file (TooLargeError)" in refusal(tmp_path / "bomb.avro", bomb)
    many = container((1, b"\0" * 3 + zigzag(MAX_HEAVY_HITTERS + 1) + b"\0" * 500))
    assert "must have <= 262144 heavy hitters" in refusal(tmp_path / "many.avro", many), "counted before any is read"
    large = container(header=b" " * (1 << 21))
    assert "is damaged or not a report file" in refusal(tmp_path / "large.avro", large)
